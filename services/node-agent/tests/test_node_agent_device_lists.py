"""How containers are told their devices, by HAMi's strategies, and HAMi's names of settings."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hami_chassis.settings import SettingsError, load_settings
from hami_node_agent.adapters.machine_files import device_rules
from hami_node_agent.config import NodeAgentSettings
from hami_node_agent.core import hami_names
from hami_node_agent.core.device_lists import DeviceNode, DeviceRules, VisibleDevice, device_list
from hami_node_agent.core.grant import HostLayout, Mount
from hami_node_agent.core.machine_devices import ImexChannelMissingError, MachineDevices

CARDS = (
    VisibleDevice(uuid="GPU-b", index="1", nodes=("/dev/nvidia4",)),
    VisibleDevice(uuid="GPU-a", index="0", nodes=("/dev/nvidia3",)),
)
KIND = "k8s.device-plugin.nvidia.com"
CHANNEL = "/dev/nvidia-caps-imex-channels/channel0"


def listed(**rules: Any) -> dict[str, Any]:
    """What is not empty of a container's list."""
    found = device_list(CARDS, DeviceRules(**rules), "x")
    return {name: value for name, value in msgspec.structs.asdict(found).items() if value}


def null_mount(name: str) -> Mount:
    return Mount(container_path=f"/var/run/nvidia-container-devices/{name}", host_path="/dev/null", read_only=False)


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        pytest.param({}, {"environment": {"NVIDIA_VISIBLE_DEVICES": "GPU-b,GPU-a"}}, id="by variable"),
        pytest.param({"id_strategy": "index"}, {"environment": {"NVIDIA_VISIBLE_DEVICES": "1,0"}}, id="by index"),
        pytest.param(
            {"strategies": ("envvar", "volume-mounts"), "imex_channels": (0,)},
            {
                "environment": {
                    "NVIDIA_VISIBLE_DEVICES": "/var/run/nvidia-container-devices",
                    "NVIDIA_IMEX_CHANNELS": "0",
                },
                "mounts": (null_mount("GPU-b"), null_mount("GPU-a"), null_mount("imex/0")),
            },
            id="the folder is named where both are asked for",
        ),
        pytest.param(
            {
                "strategies": ("cdi-annotations", "cdi-cri"),
                "pass_nodes": True,
                "features": ("gdrcopy", "gds"),
                "features_found": frozenset({"gds"}),
                "imex_channels": (0,),
            },
            {
                "annotations": {
                    "cdi.k8s.io/nvidia-device-plugin_x": f"{KIND}/gpu=GPU-b,{KIND}/gpu=GPU-a,"
                    f"{KIND}/imex-channel=0,{KIND}/gds=all"
                },
                "cdi_devices": (f"{KIND}/gpu=GPU-b", f"{KIND}/gpu=GPU-a", f"{KIND}/imex-channel=0", f"{KIND}/gds=all"),
            },
            id="CDI alone passes no nodes and tells NVIDIA's runtime nothing",
        ),
        pytest.param(
            {"features": ("gdrcopy", "mofed")},
            {
                "environment": {
                    "NVIDIA_VISIBLE_DEVICES": "GPU-b,GPU-a",
                    "NVIDIA_GDRCOPY": "enabled",
                    "NVIDIA_MOFED": "enabled",
                }
            },
            id="features by variable, whether they are there or not",
        ),
        pytest.param(
            {
                "pass_nodes": True,
                "control_nodes": ("/dev/nvidiactl",),
                "host_dev_root": "/run/nvidia/driver",
                "imex_channels": (0,),
            },
            {
                "environment": {"NVIDIA_VISIBLE_DEVICES": "GPU-b,GPU-a", "NVIDIA_IMEX_CHANNELS": "0"},
                "nodes": tuple(
                    DeviceNode(container_path=path, host_path=f"/run/nvidia/driver{path}")
                    for path in ("/dev/nvidiactl", "/dev/nvidia4", "/dev/nvidia3", CHANNEL)
                ),
            },
            id="nodes lie under the host's root",
        ),
    ],
)
def test_a_container_is_told_its_devices_as_the_strategies_say(rules: dict[str, Any], expected: dict[str, Any]) -> None:
    assert listed(**rules) == expected


def test_a_device_is_named_once_and_instances_share_their_card_s_node() -> None:
    instances = [
        VisibleDevice(uuid=f"MIG-{cap}", index=f"0:{cap}", nodes=("/dev/nvidia0", f"/dev/nvidia-caps/nvidia-cap{cap}"))
        for cap in (30, 31)
    ]

    found = device_list([*instances, instances[0]], DeviceRules(pass_nodes=True), "x")

    assert found.environment == {"NVIDIA_VISIBLE_DEVICES": "MIG-30,MIG-31"}
    assert [node.container_path for node in found.nodes] == [
        "/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap30", "/dev/nvidia-caps/nvidia-cap31",
    ]  # fmt: skip


def settings(*flags: str, **environment: str) -> NodeAgentSettings:
    given = hami_names.found_in(flags, environment)
    assert not given.faults
    return load_settings(NodeAgentSettings, others=given.values, environment={})


def test_hami_s_flags_and_names_become_settings() -> None:
    found = settings(
        "--device-list-strategy=cdi-cri", "--device-list-strategy", "envvar", "--gdrcopy-enabled", "-v=4",
        "--nvidia-driver-root=/run/nvidia/driver", "--imex-channel-ids=0", "--pass-device-specs=0",
        DEVICE_LIST_STRATEGY="volume-mounts", PASS_DEVICE_SPECS="true", NODE_NAME="n7", HOOK_PATH="/opt/",
        KUBELET_SOCKET="/data/plugins/kubelet.sock", DP_DISABLE_HEALTHCHECKS="XIDs,48",
        DP_ENABLE_HEALTHCHECKS="13", DRIVER_ROOT_CTR_PATH="/driver-root",
    )  # fmt: skip

    assert found.devices.list_strategies == ("cdi-cri", "envvar")
    assert (found.devices.gdrcopy, found.devices.pass_nodes, found.devices.imex_channels) == (True, False, (0,))
    assert (found.nvml.driver_root, found.nvml.host_driver_root) == ("/driver-root", "/run/nvidia/driver")
    assert (found.node.name, found.kubelet.plugins_dir) == ("n7", "/data/plugins")
    assert HostLayout(hook_path=found.files.hook_path).folder == "/opt/vgpu"
    assert (found.health.watch_xids, found.health.ignored_xids, found.health.watched_xids) == (False, (48,), (13,))


def test_a_setting_of_ours_outweighs_hami_s_name() -> None:
    given = hami_names.found_in(["--device-id-strategy=index"], {})

    found = load_settings(NodeAgentSettings, others=given.values, environment={"HAMI_DEVICES_ID_STRATEGY": "uuid"})

    assert found.devices.id_strategy == "uuid"


@pytest.mark.parametrize(
    "arguments",
    [
        ["--device-split-count=5"], ["--device-memory-scaling", "2"], ["--disable-core-limit"],
        ["--resource-name=x/y"], ["--node-name=n"],
    ],
)  # fmt: skip
def test_what_hami_ignores_is_told(arguments: list[str]) -> None:
    found = hami_names.found_in(arguments, {})

    assert len(found.notes) == 1
    assert "no effect" in found.notes[0]
    assert not found.values
    assert not found.faults


@pytest.mark.parametrize(
    ("arguments", "environment", "said"),
    [
        (["--no-such-flag"], {}, "neither an option"),
        (["serve"], {}, "neither an option"),
        (["--mig-strategy"], {}, "needs a value"),
        (["--gds-enabled=maybe"], {}, "true or false"),
        (["--device-discovery-strategy=tegra"], {}, "NVML"),
        (["--v=x"], {}, "a number"),
        ([], {"DP_DISABLE_HEALTHCHECKS": "13,most"}, "most"),
        ([], {"KUBELET_SOCKET": "/x/other.sock"}, "kubelet.sock"),
    ],
)
def test_what_cannot_be_is_refused(arguments: list[str], environment: dict[str, str], said: str) -> None:
    found = hami_names.found_in(arguments, environment)

    assert len(found.faults) == 1
    assert said in " ".join(found.faults[0])


@pytest.mark.parametrize(
    "environment",
    [
        {"HOOK_PATH": ""}, {"HOOK_PATH": "/"}, {"DEVICE_LIST_STRATEGY": "bogus"}, {"DEVICE_ID_STRATEGY": "bogus"},
        {"IMEX_CHANNEL_IDS": "1"}, {"DEVICE_LIST_STRATEGY": "envvar,envvar"}, {"CDI_ANNOTATION_PREFIX": "x"},
    ],
)  # fmt: skip
def test_a_value_that_cannot_be_keeps_it_from_starting(environment: dict[str, str]) -> None:
    with pytest.raises(SettingsError):
        settings(**environment)


@pytest.mark.parametrize(("nodes", "channels"), [({CHANNEL}, (0,)), (set(), ())])
def test_a_channel_is_given_where_it_is_there(nodes: set[str], channels: tuple[int, ...]) -> None:
    found = settings("--imex-channel-ids=0")

    rules = device_rules(found.devices, found.nvml, MachineDevices(nodes=frozenset(nodes)))

    assert rules.imex_channels == channels


def test_a_channel_that_is_required_and_missing_is_told() -> None:
    found = settings("--imex-channel-ids=0", "--imex-required")

    with pytest.raises(ImexChannelMissingError, match="channel0 is not there"):
        device_rules(found.devices, found.nvml, MachineDevices())
