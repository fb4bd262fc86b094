"""One node."""

from __future__ import annotations

from typing import Final

from panels import (
    CARD_LEGEND,
    NOT_ENFORCED_SAYS,
    OF_NODE,
    ONE_NODE,
    OUT_OF_BAND_SAYS,
    OVER,
    Dashboard,
    Panel,
    Query,
    Row,
)

NODE_DASHBOARD: Final = Dashboard(
    "hami-node",
    "HAMi / node",
    "One node: its cards, who is on them, and the services that serve it.",
    (ONE_NODE,),
    (
        Row(
            "Cards: promised and used",
            (
                Panel(
                    "Memory in use",
                    "bytes",
                    (Query(f"hami_card_memory_used_bytes{{{OF_NODE}}}", CARD_LEGEND),),
                ),
                Panel(
                    "Memory promised",
                    "percentunit",
                    (
                        Query(
                            f"hami_card_memory_promised_bytes{{{OF_NODE}}} / hami_card_memory_bytes{{{OF_NODE}}}",
                            CARD_LEGEND,
                        ),
                    ),
                ),
                Panel(
                    "Compute in use",
                    "percentunit",
                    (Query(f"hami_card_utilization_ratio{{{OF_NODE}}}", CARD_LEGEND),),
                ),
                Panel(
                    "Cores promised",
                    "percentunit",
                    (Query(f"hami_card_cores_promised_ratio{{{OF_NODE}}}", CARD_LEGEND),),
                ),
                Panel("Pods", "short", (Query(f"hami_card_pods{{{OF_NODE}}}", CARD_LEGEND),)),
                Panel(
                    "Memory traffic",
                    "percentunit",
                    (Query(f"hami_card_memory_controller_utilization_ratio{{{OF_NODE}}}", CARD_LEGEND),),
                ),
            ),
        ),
        Row(
            "Cards: condition",
            (
                Panel("Temperature", "celsius", (Query(f"hami_card_temperature_celsius{{{OF_NODE}}}", CARD_LEGEND),)),
                Panel(
                    "Power",
                    "watt",
                    (
                        Query(f"hami_card_power_watts{{{OF_NODE}}}", CARD_LEGEND),
                        Query(f"max(hami_card_power_limit_watts{{{OF_NODE}}})", "limit"),
                    ),
                ),
                Panel(
                    "Clocks",
                    "hertz",
                    (Query(f"hami_card_clock_hertz{{{OF_NODE}}}", "card {{index}} {{clock}}"),),
                ),
                Panel(
                    "Clocks held down by",
                    "short",
                    (Query(f"hami_card_clock_limited{{{OF_NODE}}} > 0", "card {{index}}: {{reason}}"),),
                    is_quiet=True,
                ),
                Panel(
                    "Memory errors",
                    "short",
                    (Query(f"hami_card_ecc_errors_total{{{OF_NODE}}}", "card {{index}} {{kind}}"),),
                    "Since the driver was loaded.",
                ),
                Panel(
                    "XIDs",
                    "short",
                    (Query(f"hami_card_xids_total{{{OF_NODE}}}", "card {{index}}: XID {{xid}}"),),
                    is_quiet=True,
                ),
            ),
        ),
        Row(
            "Who is on the cards",
            (
                Panel(
                    "Memory by container",
                    "bytes",
                    (Query(f"hami_slice_memory_used_bytes{{{OF_NODE}}}", "{{namespace}}/{{pod}} {{container}}"),),
                ),
                Panel(
                    "Cores by container",
                    "percentunit",
                    (Query(f"hami_slice_cores_used_ratio{{{OF_NODE}}}", "{{namespace}}/{{pod}} {{container}}"),),
                ),
                Panel(
                    "Processes",
                    "short",
                    (Query(f"sum by (of) (hami_card_processes{{{OF_NODE}}})", "{{of}}"),),
                    OUT_OF_BAND_SAYS,
                ),
                Panel(
                    "Memory of processes",
                    "bytes",
                    (Query(f"sum by (of) (hami_card_process_memory_bytes{{{OF_NODE}}})", "{{of}}"),),
                ),
                Panel(
                    "Slices that nothing holds",
                    "short",
                    (
                        Query(
                            f"hami_slice_not_enforced_processes{{{OF_NODE}}}",
                            "{{namespace}}/{{pod}} {{container}}: {{reason}}",
                        ),
                    ),
                    NOT_ENFORCED_SAYS,
                    is_quiet=True,
                ),
                Panel(
                    "Memory of MIG instances",
                    "bytes",
                    (
                        Query(
                            f"hami_mig_instance_memory_used_bytes{{{OF_NODE}}} * on (instance) group_left (profile) "
                            f"hami_mig_instance_info{{{OF_NODE}}}",
                            "card {{index}} {{profile}}",
                        ),
                    ),
                    is_quiet=True,
                ),
            ),
        ),
        Row(
            "Node agent and monitor",
            (
                Panel(
                    "Hand-overs",
                    "short",
                    (
                        Query(
                            f"sum by (result) (increase(hami_node_agent_handovers_total{{{OF_NODE}}}{OVER}))",
                            "{{result}}",
                        ),
                    ),
                ),
                Panel(
                    "Answers to kubelet",
                    "s",
                    (
                        Query(
                            "histogram_quantile(0.99, sum by (le, call) "
                            f"(rate(hami_node_agent_kubelet_call_seconds_bucket{{{OF_NODE}}}{OVER})))",
                            "{{call}}, 99 %",
                        ),
                    ),
                ),
                Panel(
                    "Known to kubelet",
                    "short",
                    (Query(f"hami_node_agent_kubelet_registered{{{OF_NODE}}}", "1: yes"),),
                ),
                Panel(
                    "Age of the last sample",
                    "s",
                    (Query(f"time() - hami_monitor_last_sample_timestamp_seconds{{{OF_NODE}}}", "age"),),
                ),
                Panel(
                    "Queries that the driver did not answer",
                    "short",
                    (
                        Query(
                            f"sum by (query) (increase(hami_monitor_driver_failures_total{{{OF_NODE}}}{OVER}))",
                            "{{query}}",
                        ),
                    ),
                    is_quiet=True,
                ),
                Panel(
                    "Containers' folders",
                    "short",
                    (Query(f"hami_monitor_folders{{{OF_NODE}}}", "{{state}}"),),
                ),
            ),
        ),
    ),
)
