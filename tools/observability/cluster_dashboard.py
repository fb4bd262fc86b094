"""The whole cluster."""

from __future__ import annotations

from typing import Final

from panels import (
    NAMESPACE,
    NODE,
    NOT_ENFORCED_SAYS,
    OF_NODE,
    OF_TENANT,
    OUT_OF_BAND_SAYS,
    OVER,
    Dashboard,
    Panel,
    Query,
    Row,
    quantile,
)

CLUSTER: Final = Dashboard(
    "hami-cluster",
    "HAMi / cluster",
    "Cards of the cluster: promised, used, waited for, and what is wrong.",
    (NODE, NAMESPACE),
    (
        Row(
            "Now",
            (
                Panel("Cards", "short", (Query(f"count(hami_card_info{{{OF_NODE}}})"),), kind="stat"),
                Panel(
                    "Memory promised",
                    "percentunit",
                    (
                        Query(
                            f"sum(hami_card_memory_promised_bytes{{{OF_NODE}}}) / "
                            f"sum(hami_card_memory_bytes{{{OF_NODE}}})"
                        ),
                    ),
                    kind="stat",
                ),
                Panel(
                    "Memory in use",
                    "percentunit",
                    (
                        Query(
                            f"sum(hami_card_memory_used_bytes{{{OF_NODE}}}) / sum(hami_card_memory_bytes{{{OF_NODE}}})"
                        ),
                    ),
                    kind="stat",
                ),
                Panel(
                    "Cores promised",
                    "percentunit",
                    (Query(f"avg(hami_card_cores_promised_ratio{{{OF_NODE}}})"),),
                    kind="stat",
                ),
                Panel(
                    "Cores in use",
                    "percentunit",
                    (Query(f"avg(hami_card_utilization_ratio{{{OF_NODE}}})"),),
                    kind="stat",
                ),
                Panel(
                    "Pods that wait",
                    "short",
                    (Query("max(hami_scheduler_rejected_pods)"),),
                    "That the last filter call found no node for.",
                    kind="stat",
                ),
            ),
        ),
        Row(
            "Promised and used",
            (
                Panel(
                    "Memory",
                    "bytes",
                    (
                        Query(f"sum(hami_card_memory_bytes{{{OF_NODE}}})", "there is"),
                        Query(f"sum(hami_card_memory_promised_bytes{{{OF_NODE}}})", "promised"),
                        Query(f"sum(hami_card_memory_used_bytes{{{OF_NODE}}})", "used on the cards"),
                        Query(f"sum(hami_slice_memory_used_bytes{{{OF_NODE}}})", "used by slices"),
                    ),
                    "What is used on the cards beside the slices is the driver's own, or out of band.",
                ),
                Panel(
                    "Compute, in cards",
                    "short",
                    (
                        Query(f"count(hami_card_info{{{OF_NODE}}})", "there are"),
                        Query(f"sum(hami_card_cores_promised_ratio{{{OF_NODE}}})", "promised"),
                        Query(f"sum(hami_card_utilization_ratio{{{OF_NODE}}})", "used"),
                    ),
                ),
                Panel(
                    "Memory promised by namespace",
                    "bytes",
                    (Query(f"sum by (namespace) (hami_slice_memory_promised_bytes{{{OF_TENANT}}})", "{{namespace}}"),),
                ),
                Panel(
                    "Memory used by namespace",
                    "bytes",
                    (Query(f"sum by (namespace) (hami_slice_memory_used_bytes{{{OF_TENANT}}})", "{{namespace}}"),),
                ),
                Panel(
                    "Quota of memory used",
                    "percentunit",
                    (
                        Query(
                            "max by (namespace, vendor) (hami_scheduler_quota_memory_used_bytes"
                            '{namespace=~"$namespace"}) / '
                            "max by (namespace, vendor) (hami_scheduler_quota_memory_limit_bytes"
                            '{namespace=~"$namespace"})',
                            "{{namespace}} {{vendor}}",
                        ),
                    ),
                    is_quiet=True,
                ),
                Panel(
                    "Cards of a node that are promised most",
                    "percentunit",
                    (
                        Query(
                            f"max by (node) (hami_card_memory_promised_bytes{{{OF_NODE}}} / "
                            f"hami_card_memory_bytes{{{OF_NODE}}})",
                            "{{node}}",
                        ),
                    ),
                ),
            ),
        ),
        Row(
            "Decisions",
            (
                Panel(
                    "Filter calls by their end",
                    "reqps",
                    (Query(f"sum by (end) (rate(hami_scheduler_decisions_total{OVER}))", "{{end}}"),),
                ),
                Panel(
                    "Latency",
                    "s",
                    (
                        Query(quantile("0.5", "hami_scheduler_filter_seconds"), "filter, half"),
                        Query(quantile("0.99", "hami_scheduler_filter_seconds"), "filter, 99 %"),
                        Query(quantile("0.99", "hami_scheduler_bind_seconds"), "bind, 99 %"),
                        Query(quantile("0.99", "hami_webhook_review_seconds"), "admission, 99 %"),
                    ),
                    "From a complete request to its answer; a bind's time holds the API server's.",
                ),
                Panel(
                    "Why nodes do not fit",
                    "short",
                    (Query(f"sum by (reason) (rate(hami_scheduler_rejected_nodes_total{OVER}))", "{{reason}}"),),
                    "Of unschedulable pods, nodes a second by reason: docs/reasons.md.",
                    is_quiet=True,
                ),
                Panel(
                    "Pods",
                    "short",
                    (
                        Query("max(hami_scheduler_bound_pods)", "bound"),
                        Query("max(hami_scheduler_reservations)", "reserved"),
                        Query("max(hami_scheduler_rejected_pods)", "waiting"),
                    ),
                ),
                Panel(
                    "Binds by their end",
                    "reqps",
                    (Query(f"sum by (end) (rate(hami_scheduler_binds_total{OVER}))", "{{end}}"),),
                ),
                Panel(
                    "Admission by verdict",
                    "reqps",
                    (
                        Query(
                            f"sum by (verdict, reason) (rate(hami_webhook_reviews_total{OVER}))",
                            "{{verdict}} {{reason}}",
                        ),
                    ),
                ),
            ),
        ),
        Row(
            "What is wrong",
            (
                Panel(
                    "Unhealthy cards",
                    "short",
                    (Query(f'sum by (node) (hami_node_agent_cards{{health="unhealthy", {OF_NODE}}})', "{{node}}"),),
                ),
                Panel(
                    "XIDs",
                    "short",
                    (
                        Query(
                            f"sum by (node, xid) (hami_card_xids_total{{{OF_NODE}}})",
                            "{{node}}: XID {{xid}}",
                        ),
                    ),
                    "Errors that the driver reported since the monitor began to listen.",
                    is_quiet=True,
                ),
                Panel(
                    "Slices that nothing holds",
                    "short",
                    (
                        Query(
                            "sum by (namespace, pod, container, reason) "
                            f"(hami_slice_not_enforced_processes{{{OF_TENANT}}})",
                            "{{namespace}}/{{pod}} {{container}}: {{reason}}",
                        ),
                    ),
                    NOT_ENFORCED_SAYS,
                    is_quiet=True,
                ),
                Panel(
                    "Out-of-band users",
                    "short",
                    (
                        Query(
                            f'sum by (node, of) (hami_card_processes{{of=~"other-pod|host", {OF_NODE}}})',
                            "{{node}}: {{of}}",
                        ),
                    ),
                    OUT_OF_BAND_SAYS,
                ),
                Panel(
                    "Hand-overs",
                    "short",
                    (
                        Query(
                            f"sum by (result) (increase(hami_node_agent_handovers_total{{{OF_NODE}}}{OVER}))",
                            "{{result}}",
                        ),
                    ),
                    "Containers by what came of handing their slice over; failed ones do not start.",
                ),
                Panel(
                    "Containers that wait for a more urgent one",
                    "short",
                    (
                        Query(f"sum by (node) (hami_slice_blocked{{{OF_TENANT}}})", "{{node}}: blocked"),
                        Query(f"sum by (node) (hami_slice_cores_held{{{OF_TENANT}}})", "{{node}}: held to their cores"),
                    ),
                    is_quiet=True,
                ),
            ),
        ),
    ),
)
