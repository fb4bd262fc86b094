"""One pod."""

from __future__ import annotations

from typing import Final

from panels import (
    NAMESPACE,
    NOT_ENFORCED_SAYS,
    OF_POD,
    OUT_OF_BAND_SAYS,
    POD,
    SLICE_LEGEND,
    Dashboard,
    Panel,
    Query,
    Row,
)

POD_DASHBOARD: Final = Dashboard(
    "hami-pod",
    "HAMi / pod",
    "One pod: what it was promised, what it uses, and how it fares on its cards.",
    (NAMESPACE, POD),
    (
        Row(
            "Promised and used",
            (
                Panel(
                    "Memory",
                    "bytes",
                    (
                        Query(f"hami_slice_memory_promised_bytes{{{OF_POD}}}", f"{SLICE_LEGEND}: promised"),
                        Query(f"hami_slice_memory_limit_bytes{{{OF_POD}}}", f"{SLICE_LEGEND}: limit"),
                        Query(f"hami_slice_memory_used_bytes{{{OF_POD}}}", f"{SLICE_LEGEND}: used"),
                    ),
                    "The limit is what the library in the container holds it to.",
                ),
                Panel(
                    "Cores",
                    "percentunit",
                    (
                        Query(f"hami_slice_cores_promised_ratio{{{OF_POD}}}", f"{SLICE_LEGEND}: promised"),
                        Query(f"hami_slice_cores_used_ratio{{{OF_POD}}}", f"{SLICE_LEGEND}: used"),
                    ),
                    "Of one card. Promised 0: what is free.",
                ),
                Panel(
                    "Memory by what for",
                    "bytes",
                    (Query(f"hami_slice_memory_part_bytes{{{OF_POD}}}", "{{container}}: {{part}}"),),
                ),
                Panel("Processes", "short", (Query(f"hami_slice_processes{{{OF_POD}}}", SLICE_LEGEND),)),
                Panel(
                    "Since the last launch",
                    "s",
                    (Query(f"time() - hami_slice_last_launch_timestamp_seconds{{{OF_POD}}}", SLICE_LEGEND),),
                ),
                Panel(
                    "Waits for a more urgent container",
                    "short",
                    (
                        Query(f"hami_slice_blocked{{{OF_POD}}}", "{{container}}: blocked"),
                        Query(f"hami_slice_cores_held{{{OF_POD}}}", "{{container}}: held to its cores"),
                    ),
                    is_quiet=True,
                ),
            ),
        ),
        Row(
            "Its cards",
            (
                Panel(
                    "Memory in use, by whomever",
                    "percentunit",
                    (
                        Query(
                            "(hami_card_memory_used_bytes / hami_card_memory_bytes) and on (card) "
                            f"hami_slice_memory_promised_bytes{{{OF_POD}}}",
                            "{{node}} card {{index}}",
                        ),
                    ),
                ),
                Panel(
                    "Compute in use, by whomever",
                    "percentunit",
                    (
                        Query(
                            f"hami_card_utilization_ratio and on (card) hami_slice_memory_promised_bytes{{{OF_POD}}}",
                            "{{node}} card {{index}}",
                        ),
                    ),
                ),
                Panel(
                    "Pods with slices of them",
                    "short",
                    (
                        Query(
                            f"hami_card_pods and on (card) hami_slice_memory_promised_bytes{{{OF_POD}}}",
                            "{{node}} card {{index}}",
                        ),
                    ),
                ),
                Panel(
                    "XIDs",
                    "short",
                    (
                        Query(
                            f"hami_card_xids_total and on (card) hami_slice_memory_promised_bytes{{{OF_POD}}}",
                            "{{node}} card {{index}}: XID {{xid}}",
                        ),
                    ),
                    is_quiet=True,
                ),
                Panel(
                    "Processes that nothing holds",
                    "short",
                    (Query(f"hami_slice_not_enforced_processes{{{OF_POD}}}", "{{container}}: {{reason}}"),),
                    NOT_ENFORCED_SAYS,
                    is_quiet=True,
                ),
                Panel(
                    "Out-of-band users of its cards",
                    "short",
                    (
                        Query(
                            'hami_card_processes{of=~"other-pod|host"} and on (card) '
                            f"hami_slice_memory_promised_bytes{{{OF_POD}}}",
                            "{{node}} card {{index}}: {{of}}",
                        ),
                    ),
                    OUT_OF_BAND_SAYS,
                ),
            ),
        ),
    ),
)
