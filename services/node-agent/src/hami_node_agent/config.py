"""Settings of the node-agent."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, Literal

import msgspec
from hami_chassis.bus import BusSettings
from hami_chassis.http import HttpSettings
from hami_chassis.kube import KubeSettings
from hami_chassis.log import LogSettings
from hami_model.events import subjects
from hami_model.events.streams import StreamSettings

from hami_node_agent.core.device_lists import IdStrategy, Strategy
from hami_node_agent.core.machine_devices import IMEX_CHANNELS
from hami_node_agent.core.static_mig import MigStrategy

MAX_CONTEXT_MIB: Final = 65536
HandoffMode = Literal["late-binding", "lock", "auto"]


class NodeSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which node this is, and what it offers."""

    name: str = ""
    """Name of the Node object. Must be set."""
    device_config_file: str = ""
    """HAMi's device configuration (YAML). Empty: NVIDIA cards with the default resource names."""
    overrides_file: str = ""
    """HAMi's per-node file (`{"nodeconfig": [...]}`). Empty: none."""
    topology_scores: bool = True
    """Whether to publish how well cards are connected (hami.io/node-nvidia-score), which placement by topology needs;
    HAMi's ENABLE_TOPOLOGY_SCORE. Off: that annotation is left as it is."""
    switch_mig_on: bool = True
    """Whether the MIG mode of cards that are to be offered as instances is switched on, where nobody uses them."""
    heartbeat_seconds: float = 30.0
    """How often the whole inventory is published without a change."""


class HandoffSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How slices reach containers."""

    mode: HandoffMode = "late-binding"
    """`late-binding` finds out before each container starts whose it is; `lock` is HAMi's way, one pod of a node after
    the other; `auto` binds late where the node can, and says what it chose."""
    runtime_cdi: Literal["auto", "yes", "no"] = "auto"
    """Whether the container runtime resolves CDI names; `auto` judges by its version."""
    shown_by: Literal["auto", "runtime", "cdi"] = "auto"
    """What shows cards to a container: NVIDIA's runtime handler, by NVIDIA_VISIBLE_DEVICES, or NVIDIA's CDI
    specification, merged into ours. `auto`: CDI where such a specification is there and the pod does not ask for
    NVIDIA's runtime class."""
    runtime_classes: tuple[str, ...] = ("nvidia",)
    """RuntimeClass names whose handler is NVIDIA's."""


class DeviceSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How containers are told which devices are their own; docs/device-lists.md: what that means in each hand-off."""

    list_strategies: tuple[Strategy, ...] = ("envvar",)
    """`envvar`, `volume-mounts`, `cdi-annotations`, `cdi-cri`, or several; HAMi's DEVICE_LIST_STRATEGY."""
    id_strategy: IdStrategy = "uuid"
    """Whether cards are named by `uuid` or by `index`; HAMi's DEVICE_ID_STRATEGY."""
    mig_strategy: MigStrategy = "none"
    """What becomes of MIG devices that were made beforehand: `single` offers them as cards, `mixed` as resources
    `nvidia.com/mig-<profile>`, `none` does not; HAMi's MIG_STRATEGY."""
    pass_nodes: bool = False
    """Whether kubelet, too, is told the device nodes; HAMi's PASS_DEVICE_SPECS."""
    gdrcopy: bool = False
    """Whether containers get GDRCopy's device; HAMi's GDRCOPY_ENABLED."""
    gds: bool = False
    """Whether containers get the devices of GPUDirect Storage; HAMi's GDS_ENABLED."""
    mofed: bool = False
    """Whether containers get Mellanox' devices; HAMi's MOFED_ENABLED."""
    imex_channels: tuple[int, ...] = ()
    """IMEX channels that containers get where the machine has them: none, or 0; HAMi's IMEX_CHANNEL_IDS."""
    imex_required: bool = False
    """Whether a channel that is not there keeps the node-agent from starting; HAMi's IMEX_REQUIRED."""
    cdi_annotation_prefix: str = "cdi.k8s.io/"
    """Beginning of the annotation that names CDI devices; HAMi's CDI_ANNOTATION_PREFIX."""

    cdi_hook_file: str = "/usr/bin/nvidia-ctk"
    """NVIDIA's nvidia-ctk or nvidia-cdi-hook on the host, which links the driver's libraries in a container; written in
    specifications of whole cards. Empty: none is called; HAMi's NVIDIA_CDI_HOOK_PATH."""

    def faults(self) -> Iterator[tuple[str, str]]:
        """What is wrong in this group."""
        if self.cdi_hook_file and not self.cdi_hook_file.startswith("/"):
            yield "cdi_hook_file", "must be an absolute path of the host, or empty"
        if not self.list_strategies:
            yield "list_strategies", "name at least one way in which containers are told their devices"
        if len(set(self.list_strategies)) < len(self.list_strategies):
            yield "list_strategies", "each way may be named once"
        if not set(self.imex_channels) <= set(IMEX_CHANNELS):
            yield "imex_channels", "only channel 0 can be given to containers: others belong to one workload each"
        if not self.cdi_annotation_prefix.endswith("/"):
            yield "cdi_annotation_prefix", "must end with a slash, as the prefix of an annotation's key does"


class EnforcementSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What holds containers to their limits. Slices of cards in MIG mode are held by the card, whatever stands here.

    A change counts for pods that are handed over afterwards, but for `compute` and `context_mib`, which reach all.
    """

    cards: Literal["preload", "driver", "none"] = "preload"
    """`preload`: libvgpu in every process; `driver`: the driver itself, which this agent cannot ask for yet, so it
    refuses to start and names what it found; `none`: nothing."""
    by_card: dict[str, Literal["preload", "driver", "none"]] = {}
    """Other choices for single cards, by UUID."""
    opt_out: Literal["allowed", "forbidden"] = "allowed"
    """Whether CUDA_DISABLE_CONTROL in a pod's own specification keeps the library out, as with HAMi."""
    compute: Literal["always", "contended"] = "always"
    """When a share of compute holds where HAMi's gpuCorePolicy is `default`: always, or only while others use the card.
    For the second a monitor sets a word that the container can write as well, and so lift its limit."""
    context_mib: int = 0
    """Memory that a CUDA context takes on these cards; 0: the library finds out."""


class KubeletPaths(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where kubelet is met."""

    plugins_dir: str = "/var/lib/kubelet/device-plugins"
    """Folder of kubelet.sock and of kubelet's device checkpoint."""
    pod_resources_socket: str = "/var/lib/kubelet/pod-resources/kubelet.sock"
    """Socket of kubelet's PodResources service, a cross-check. Empty: none is made."""


class NvmlSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the driver is reached."""

    library_file: str = ""
    """The driver's libnvidia-ml.so.1. Empty: under `driver_root`, else as the loader finds it."""
    driver_root: str = ""
    """Where the host's driver lies in this container. Empty: /driver-root where that is there, else /; HAMi's
    DRIVER_ROOT_CTR_PATH."""
    required: bool = True
    """Whether a driver that cannot be used ends the node-agent. Else it idles and offers nothing, until it is started
    anew; HAMi's FAIL_ON_INIT_ERROR."""
    host_driver_root: str = "/"
    """Where it lies on the host, such as /run/nvidia/driver with GPU Operator; HAMi's NVIDIA_DRIVER_ROOT."""
    host_dev_root: str = ""
    """Folder of the host that holds dev/ with the driver's nodes. Empty: `host_driver_root`; HAMi's NVIDIA_DEV_ROOT."""


class HealthSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When a card counts as broken, and when as mended."""

    ignored_xids: tuple[int, ...] = ()
    """Faults that are not the card's, in addition to 13, 31, 43, 45, 68 and 109."""
    watched_xids: tuple[int, ...] = ()
    """Faults that are the card's in spite of both lists."""
    ignore_no_xid: bool = False
    """Every fault is the card's; HAMi's DP_ENABLE_HEALTHCHECKS=all."""
    watch_xids: bool = True
    """Whether faults that the driver reports count at all; HAMi's DP_DISABLE_HEALTHCHECKS=all. Probes go on."""
    probe_seconds: float = 5.0
    """How often every card is asked whether it is there."""
    answer_seconds: float = 5.0
    """How long the driver may take to answer about a card before that counts as its fault."""
    clean_probes: int = 3
    """How many good answers in a row make a broken card whole again."""


class FileSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Files of the host. This process must see them at the same paths."""

    hook_path: str = "/usr/local"
    """`<hook_path>/vgpu` holds the library and a folder for each container; HAMi's HOOK_PATH."""
    library_file: str = ""
    """The libvgpu.so to install there. Empty: it is there already."""
    library_version: str = ""
    """Ending of the installed library's name. Empty: taken from its content."""
    lock_dir: str = "/tmp/vgpulock"  # noqa: S108  # the path that older libraries have built in
    """Folder that older libraries lock in; mounted into every container."""
    cdi_dir: str = "/var/run/cdi"
    """Where our CDI specifications are written; the runtime must read this folder."""
    nvidia_cdi_dirs: tuple[str, ...] = ("/etc/cdi", "/var/run/cdi")
    """Where NVIDIA's CDI specifications may lie."""
    state_dir: str = "/var/lib/hami/node-agent"
    """Where the node-agent remembers what it handed out."""


class EventSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How events go out."""

    prefix: str = subjects.DEFAULT_PREFIX
    """First part of every subject."""
    streams: StreamSettings = StreamSettings()
    """Limits of the streams; the same for all services."""


class NodeAgentSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that can be set."""

    log: LogSettings = LogSettings()
    """What is logged."""
    node: NodeSettings = NodeSettings()
    """Which node this is, and what it offers."""
    handoff: HandoffSettings = HandoffSettings()
    """How slices reach containers."""
    devices: DeviceSettings = DeviceSettings()
    """How containers are told which devices are their own."""
    enforcement: EnforcementSettings = EnforcementSettings()
    """What holds containers to their limits."""
    kubelet: KubeletPaths = KubeletPaths()
    """Where kubelet is met."""
    nvml: NvmlSettings = NvmlSettings()
    """How the driver is reached."""
    health: HealthSettings = HealthSettings()
    """When a card counts as broken, and when as mended."""
    files: FileSettings = FileSettings()
    """Files of the host."""
    observation: HttpSettings = HttpSettings(port=9397)
    """Where /healthz, /readyz and /metrics are."""
    kube: KubeSettings = KubeSettings()
    """How the API server is reached."""
    bus: BusSettings = BusSettings()
    """How NATS is reached for events."""
    events: EventSettings = EventSettings()
    """How events go out."""

    def faults(self) -> Iterator[tuple[str, str]]:
        """What is wrong across groups."""
        if self.health.clean_probes < 1:
            yield "health.clean_probes", "must be at least 1"
        if not 0 <= self.enforcement.context_mib <= MAX_CONTEXT_MIB:
            yield "enforcement.context_mib", f"must be 0 to {MAX_CONTEXT_MIB}"
        for name, seconds in (
            ("health.probe_seconds", self.health.probe_seconds),
            ("health.answer_seconds", self.health.answer_seconds),
            ("node.heartbeat_seconds", self.node.heartbeat_seconds),
        ):
            if seconds <= 0:
                yield name, "must be positive"
        if self.handoff.shown_by == "runtime" and set(self.devices.list_strategies) <= {"cdi-annotations", "cdi-cri"}:
            yield "handoff.shown_by", "`runtime` contradicts devices.list_strategies, which has only cdi strategies"
        for name in ("hook_path", "lock_dir", "cdi_dir", "state_dir"):
            path = getattr(self.files, name)
            if not path.startswith("/") or not path.strip("/"):
                yield f"files.{name}", f"{path!r} is no absolute path of a folder of its own"
        if re.search(r"[\s:]", self.files.hook_path):
            # The loader ends a name in its list of libraries to preload there, and goes on without the library.
            yield (
                "files.hook_path",
                f"{self.files.hook_path!r} has a blank or a colon, so no library below is preloaded",
            )
        if not re.fullmatch(r"[0-9A-Za-z._-]*", self.files.library_version):
            yield "files.library_version", "is part of a file's name: use letters, digits, '.', '_' and '-'"


def serving_faults(settings: NodeAgentSettings) -> Iterator[str]:
    """What is missing for serving, though not for other commands."""
    if not settings.node.name:
        yield "node.name must be set: the name of this machine's Node object (HAMI_NODE_NAME)"
