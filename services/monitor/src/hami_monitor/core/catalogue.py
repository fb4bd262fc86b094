"""Every metric of the monitor, declared once: the exposition, `docs/metrics.md` and tests read this list."""

from __future__ import annotations

from typing import Final

from hami_model.metric_spec import MetricSpec

SLICE: Final = ("node", "namespace", "pod", "container", "card")
CARD: Final = ("node", "card", "index")

# ---- ours: a slice --------------------------------------------------------------------------------------------------

SLICE_INFO: Final = MetricSpec(
    name="hami_slice_info",
    help=(
        "1: what holds the container to its slice of the card: preload (the library), mig (an instance of its own), "
        "none (the pod opted out, or the operator chose so). Absent where it cannot be told."
    ),
    labels=(*SLICE, "enforced_by"),
)
SLICE_MEMORY_PROMISED: Final = MetricSpec(
    name="hami_slice_memory_promised_bytes",
    help="Memory of the card that the container is promised; 0: none, though it uses the card.",
    labels=SLICE,
)
SLICE_MEMORY_USED: Final = MetricSpec(
    name="hami_slice_memory_used_bytes",
    help=(
        "Memory that the container's processes hold on the card, as its library counts; of MIG instances as the driver "
        "tells."
    ),
    labels=SLICE,
)
SLICE_MEMORY_LIMIT: Final = MetricSpec(
    name="hami_slice_memory_limit_bytes",
    help="Memory that the container's library lets it have; 0: no limit.",
    labels=SLICE,
)
SLICE_MEMORY_PARTS: Final = MetricSpec(
    name="hami_slice_memory_part_bytes",
    help="Memory used, by what for: context, module, data.",
    labels=(*SLICE, "part"),
)
SLICE_CORES_PROMISED: Final = MetricSpec(
    name="hami_slice_cores_promised_ratio",
    help="Share of the card's compute that the container is promised, 0 to 1; 0: what is free.",
    labels=SLICE,
)
SLICE_CORES_USED: Final = MetricSpec(
    name="hami_slice_cores_used_ratio",
    help="Share of the card's compute that the container uses, 0 to 1; absent where nobody measures it.",
    labels=SLICE,
)
SLICE_PROCESSES: Final = MetricSpec(
    name="hami_slice_processes", help="Processes of the container that hold memory on the card.", labels=SLICE
)
SLICE_LAST_LAUNCH: Final = MetricSpec(
    name="hami_slice_last_launch_timestamp_seconds",
    help="When the container last launched work on any of its cards, or first used them.",
    labels=SLICE,
)
SLICE_NOT_ENFORCED: Final = MetricSpec(
    name="hami_slice_not_enforced_processes",
    help=(
        "Processes of the container on the card that no library holds to the slice, by reason: opted-out (by the pod's "
        "specification), no-region, region-unreadable, no-slot (it runs without the library)."
    ),
    labels=(*SLICE, "reason"),
)

# ---- ours: a whole card ---------------------------------------------------------------------------------------------

CARD_INFO: Final = MetricSpec(
    name="hami_card_info", help="1: the driver shows this card; its model.", labels=(*CARD, "model")
)
CARD_MEMORY: Final = MetricSpec(name="hami_card_memory_bytes", help="Memory that the card has.", labels=CARD)
CARD_MEMORY_USED: Final = MetricSpec(
    name="hami_card_memory_used_bytes", help="Memory in use on the card, by whomever.", labels=CARD
)
CARD_MEMORY_PROMISED: Final = MetricSpec(
    name="hami_card_memory_promised_bytes", help="Memory of the card promised to live pods.", labels=CARD
)
CARD_CORES_PROMISED: Final = MetricSpec(
    name="hami_card_cores_promised_ratio", help="Share of the card's compute promised to live pods.", labels=CARD
)
CARD_UTILISATION: Final = MetricSpec(
    name="hami_card_utilization_ratio", help="Part of the last moments in which the card computed, 0 to 1.", labels=CARD
)
CARD_MEMORY_CONTROLLER: Final = MetricSpec(
    name="hami_card_memory_controller_utilization_ratio",
    help="Part of the last moments in which the card's memory was read or written, 0 to 1.",
    labels=CARD,
)
CARD_TEMPERATURE: Final = MetricSpec(name="hami_card_temperature_celsius", help="Temperature of the card.", labels=CARD)
CARD_POWER: Final = MetricSpec(name="hami_card_power_watts", help="Power that the card draws.", labels=CARD)
CARD_POWER_LIMIT: Final = MetricSpec(
    name="hami_card_power_limit_watts", help="Power that the card may draw.", labels=CARD
)
CARD_CLOCK: Final = MetricSpec(
    name="hami_card_clock_hertz",
    help="Clock of the card's SMs (sm) and of its memory (memory).",
    labels=(*CARD, "clock"),
)
CARD_CLOCK_LIMITED: Final = MetricSpec(
    name="hami_card_clock_limited",
    help=(
        "1 while this holds the card's clocks down: power-limit, power-brake, thermal, hardware-thermal, "
        "hardware-slowdown, sync-boost."
    ),
    labels=(*CARD, "reason"),
)
CARD_ECC_ERRORS: Final = MetricSpec(
    name="hami_card_ecc_errors_total",
    kind="counter",
    help="Memory errors since the driver was loaded: corrected, uncorrected. Absent where the card has no ECC.",
    labels=(*CARD, "kind"),
)
CARD_XIDS: Final = MetricSpec(
    name="hami_card_xids_total",
    kind="counter",
    help="Errors that the driver reported of the card, by XID number; a number has a series from its first on.",
    labels=(*CARD, "xid"),
)
CARD_PROCESSES: Final = MetricSpec(
    name="hami_card_processes",
    help=(
        "Processes on the card: of pods with a slice of it (slice), out of band of pods without (other-pod) and of no "
        "pod (host); unknown: it ended meanwhile, or the monitor does not see the host's processes."
    ),
    labels=(*CARD, "of"),
)
CARD_PROCESS_MEMORY: Final = MetricSpec(
    name="hami_card_process_memory_bytes",
    help="Memory of the card that those processes hold, as the driver tells it by process.",
    labels=(*CARD, "of"),
)
CARD_PODS: Final = MetricSpec(name="hami_card_pods", help="Live pods that hold slices of the card.", labels=CARD)

# ---- ours: a MIG instance -------------------------------------------------------------------------------------------

INSTANCE: Final = (*CARD, "instance")
INSTANCE_INFO: Final = MetricSpec(
    name="hami_mig_instance_info",
    help="1: this MIG instance is on the card; its profile and its numbers there.",
    labels=(*INSTANCE, "profile", "gpu_instance", "compute_instance"),
)
INSTANCE_MEMORY: Final = MetricSpec(
    name="hami_mig_instance_memory_bytes", help="Memory that the instance has.", labels=INSTANCE
)
INSTANCE_MEMORY_USED: Final = MetricSpec(
    name="hami_mig_instance_memory_used_bytes", help="Memory in use on the instance.", labels=INSTANCE
)
INSTANCE_XIDS: Final = MetricSpec(
    name="hami_mig_instance_xids_total",
    kind="counter",
    help="Of the card's errors by XID number, those that the driver attributed to the instance.",
    labels=(*INSTANCE, "xid"),
)

# ---- ours: the monitor itself ---------------------------------------------------------------------------------------

FOLDERS: Final = MetricSpec(
    name="hami_monitor_folders",
    help="Folders of containers by what was found: read, no-region (no card used yet), unreadable, unknown-pod, ended.",
    labels=("state",),
)
DRIVER_UP: Final = MetricSpec(name="hami_monitor_driver_up", help="1 while the driver shows its cards to the monitor.")
LAST_SAMPLE: Final = MetricSpec(
    name="hami_monitor_last_sample_timestamp_seconds", help="When the values of this page were taken."
)
SAMPLE_SECONDS: Final = MetricSpec(
    name="hami_monitor_sample_seconds",
    kind="histogram",
    help="Time to read all regions and join them with pods and cards.",
)
DRIVER_FAILURES: Final = MetricSpec(
    name="hami_monitor_driver_failures_total",
    kind="counter",
    help="Queries that the driver failed to answer, by query; what a card does not support is not counted.",
    labels=("query",),
)
IMPLAUSIBLE: Final = MetricSpec(
    name="hami_monitor_implausible_values_total",
    kind="counter",
    help="Values in region files that cannot be, such as more memory than the card has; they are left out.",
)

# ---- ours: what is written back -------------------------------------------------------------------------------------

SLICE_BLOCKED: Final = MetricSpec(
    name="hami_slice_blocked",
    help="1: launches of the container wait, since one of more urgent priority is active on its card; 0: they do not.",
    labels=("node", "namespace", "pod", "container"),
)
SLICE_CORES_HELD: Final = MetricSpec(
    name="hami_slice_cores_held",
    help="1: its card is contended, so its share of compute is held; 0: under the default policy it has what is free.",
    labels=("node", "namespace", "pod", "container"),
)
WORDS_WRITTEN: Final = MetricSpec(
    name="hami_monitor_region_words_written_total",
    kind="counter",
    help="Words written into region files: feedback between containers, and pids on the host.",
)
WRITE_FAILURES: Final = MetricSpec(
    name="hami_monitor_region_write_failures_total",
    kind="counter",
    help="Region files that could not be written, by why: replaced (it is another file by now), refused.",
    labels=("why",),
)

# ---- HAMi's names ---------------------------------------------------------------------------------------------------

_HOST: Final = ("node", "device_index", "device_uuid", "device_type", "zone")
_VGPU: Final = ("namespace", "pod", "container", "vdevice_index", "device_uuid", "zone")
_LEGACY_HOST: Final = ("nodeid", "deviceidx", "deviceuuid", "devicetype", "zone")
_LEGACY_VGPU: Final = ("podnamespace", "podname", "ctrname", "vdeviceid", "deviceuuid", "zone")


def _hami(name: str, text: str, labels: tuple[str, ...]) -> MetricSpec:
    return MetricSpec(name=name, help=text, labels=labels, names="hami")


def _legacy(name: str, text: str, labels: tuple[str, ...]) -> MetricSpec:
    return MetricSpec(name=name, help=text, labels=labels, names="hami-legacy")


HAMI_HOST_MEMORY_USED: Final = _hami("hami_host_gpu_memory_used_bytes", "Memory in use on the card.", _HOST)
HAMI_HOST_UTILISATION: Final = _hami("hami_host_gpu_utilization_ratio", "Utilisation of the card, 0 to 100.", _HOST)
HAMI_HOST_MEMORY_CONTROLLER: Final = _hami(
    "hami_host_gpu_memory_controller_utilization_ratio",
    "Utilisation of the card's memory, 0 to 100. Without the node, as HAMi has it.",
    _HOST[1:],
)
HAMI_MEMORY_USED: Final = _hami("hami_vgpu_memory_used_bytes", "Memory that the container holds on the card.", _VGPU)
HAMI_MEMORY_LIMIT: Final = _hami("hami_vgpu_memory_limit_bytes", "Limit of that memory; 0: none.", _VGPU)
HAMI_MEMORY: Final = _hami("hami_container_device_memory_bytes", "The same as hami_vgpu_memory_used_bytes.", _VGPU)
HAMI_UTILISATION: Final = _hami(
    "hami_container_device_utilization_ratio", "Sum over the container's processes, 0 to 100 each.", _VGPU
)
HAMI_LAST_KERNEL: Final = _hami(
    "hami_container_last_kernel_elapsed_seconds", "Time since the container last launched work.", _VGPU
)
HAMI_CONTEXT: Final = _hami("hami_vgpu_memory_context_bytes", "Memory of contexts.", _VGPU)
HAMI_MODULE: Final = _hami("hami_vgpu_memory_module_bytes", "Memory of modules.", _VGPU)
HAMI_BUFFER: Final = _hami("hami_vgpu_memory_buffer_bytes", "Memory of the container's own buffers.", _VGPU)
HAMI_MIG: Final = _hami(
    "hami_mig_device_info",
    "1: the container holds this MIG instance.",
    (*_VGPU[:5], "mig_uuid", "profile", "gpu_instance_id", "compute_instance_id", "zone"),
)
HAMI_BUILD: Final = _hami(
    "hami_build_info",
    "1: which build answers.",
    ("version", "revision", "build_date", "go_version", "compiler", "platform"),
)
LEGACY_HOST_MEMORY: Final = _legacy("HostGPUMemoryUsage", "As hami_host_gpu_memory_used_bytes.", _LEGACY_HOST)
LEGACY_HOST_UTILISATION: Final = _legacy("HostCoreUtilization", "As hami_host_gpu_utilization_ratio.", _LEGACY_HOST)
LEGACY_MEMORY_USED: Final = _legacy(
    "vGPU_device_memory_usage_in_bytes", "As hami_vgpu_memory_used_bytes.", _LEGACY_VGPU
)
LEGACY_MEMORY_LIMIT: Final = _legacy(
    "vGPU_device_memory_limit_in_bytes", "As hami_vgpu_memory_limit_bytes.", _LEGACY_VGPU
)
LEGACY_MEMORY: Final = _legacy(
    "Device_memory_desc_of_container",
    "As hami_vgpu_memory_used_bytes, with its parts in labels: every change makes a new series.",
    (*_LEGACY_VGPU[:5], "context", "module", "data", "offset", "zone"),
)
LEGACY_UTILISATION: Final = _legacy(
    "Device_utilization_desc_of_container", "As hami_container_device_utilization_ratio.", _LEGACY_VGPU
)
LEGACY_LAST_KERNEL: Final = _legacy(
    "Device_last_kernel_of_container", "As hami_container_last_kernel_elapsed_seconds.", _LEGACY_VGPU
)
LEGACY_MIG: Final = _legacy("MigInfo", "As hami_mig_device_info.", (*_LEGACY_VGPU[:5], "instanceid", "zone"))

CATALOGUE: Final[tuple[MetricSpec, ...]] = tuple(
    value for value in list(vars().values()) if isinstance(value, MetricSpec)
)
"""In the order of this file."""
