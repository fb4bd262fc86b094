"""Environment, CDI, mounts and paths of a container, as values."""

import contextlib
import json

import msgspec
import pytest
import yaml
from hami_sim.kubelet.cdi import CdiMount, CdiRegistry, ContainerEdits, DeviceNode, Unresolvable, decode_spec
from hami_sim.kubelet.environment import (
    ReferenceFault,
    Sources,
    expand,
    field_value,
    referenced_names,
    spec_environment,
)
from hami_sim.kubelet.launch import (
    Bind,
    Launch,
    host_paths,
    in_mount_order,
    placeholders,
    preload_source,
    runtime_environment,
    with_host_paths,
)
from hami_sim.kubelet.objects import ConfigMap, ObjectMeta, Pod, Secret
from hami_sim.kubelet.settings import DriverSettings
from hami_sim.kubelet.visibility import visible_cards
from hami_sim.kubelet.volumes import prepare_volumes, volume_binds
from hypothesis import given
from hypothesis import strategies as st

# ---- environment ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain", "plain"),
        ("$(A)", "1"),
        ("x$(A)y$(B)", "x1y2"),
        ("$(NONE)", "$(NONE)"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$1"),
        ("$A", "$A"),
        ("$(A", "$(A"),
        ("$()", "$()"),
        ("", ""),
    ],
)
def test_expansion(text, expected):
    assert expand(text, {"A": "1", "B": "2"}) == expected


@given(st.text(alphabet="$()AB x"), st.dictionaries(st.sampled_from(["A", "B"]), st.text()))
def test_expansion_takes_any_text(text, values):
    assert isinstance(expand(text, values), str)
    if "$" not in text:
        assert expand(text, values) == text


def pod_of(env=(), env_from=(), volumes=(), mounts=()) -> Pod:
    container = {"name": "c", "env": list(env), "envFrom": list(env_from), "volumeMounts": list(mounts)}
    metadata = {"name": "p", "namespace": "ns", "uid": "u-1", "labels": {"a/b": "l"}, "annotations": {"x": "y"}}
    spec = {"containers": [container], "volumes": list(volumes), "nodeName": "n1", "serviceAccountName": "sa"}
    return msgspec.convert({"metadata": metadata, "spec": spec}, Pod)


SOURCES = Sources(
    config_maps={"m": ConfigMap(ObjectMeta(), {"k": "v", "A": "from-map"}, {"b": "AAE="})},
    secrets={"s": Secret(ObjectMeta(), {"k": "c2VjcmV0"})},
)


@pytest.mark.parametrize(
    ("env", "env_from", "expected"),
    [
        pytest.param(
            [{"name": "A", "value": "1"}, {"name": "B", "value": "$(A)$(C)"}],
            [],
            {"A": "1", "B": "1$(C)"},
            id="earlier ones are known",
        ),
        pytest.param([{"name": "A", "value": "1"}, {"name": "A", "value": "2"}], [], {"A": "2"}, id="the last wins"),
        pytest.param(
            [], [{"prefix": "P_", "configMapRef": {"name": "m"}}], {"P_k": "v", "P_A": "from-map"}, id="whole map"
        ),
        pytest.param(
            [{"name": "A", "value": "own"}],
            [{"configMapRef": {"name": "m"}}],
            {"k": "v", "A": "own"},
            id="env over envFrom",
        ),
        pytest.param([], [{"secretRef": {"name": "s"}}], {"k": "secret"}, id="whole secret"),
        pytest.param([], [{"secretRef": {"name": "none", "optional": True}}], {}, id="optional"),
        pytest.param(
            [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}],
            [],
            {"A": "secret"},
            id="secret key",
        ),
        pytest.param(
            [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "m", "key": "no", "optional": True}}}],
            [],
            {},
            id="optional key",
        ),
        pytest.param(
            [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}}], [], {"A": "u-1"}, id="field"
        ),
    ],
)
def test_the_spec_s_environment(env, env_from, expected):
    pod = pod_of(env, env_from)

    assert spec_environment(pod, pod.spec.containers[0], SOURCES, "10.0.0.1") == expected


@pytest.mark.parametrize(
    ("env", "env_from", "message"),
    [
        ([], [{"configMapRef": {"name": "none"}}], 'configmap "none" not found'),
        ([], [{"secretRef": {"name": "none"}}], 'secret "none" not found'),
        ([{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "m", "key": "no"}}}], [], "couldn't find key no"),
        ([{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "none", "key": "no"}}}], [], "not found"),
        ([{"name": "A", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}}], [], "knows fieldRef"),
        (
            [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "status.phase"}}}],
            [],
            "cannot give field status.phase",
        ),
    ],
)
def test_references_that_lead_nowhere(env, env_from, message):
    pod = pod_of(env, env_from)

    with pytest.raises(ReferenceFault, match=message):
        spec_environment(pod, pod.spec.containers[0], SOURCES, "10.0.0.1")


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("metadata.name", "p"),
        ("metadata.namespace", "ns"),
        ("metadata.labels['a/b']", "l"),
        ("metadata.annotations['x']", "y"),
        ("metadata.annotations['none']", ""),
        ("spec.nodeName", "n1"),
        ("spec.serviceAccountName", "sa"),
        ("status.hostIP", "10.0.0.1"),
    ],
)
def test_fields(path, value):
    assert field_value(pod_of(), path, "10.0.0.1") == value


def test_what_a_pod_refers_to():
    pod = pod_of(
        [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "m1", "key": "k"}}}],
        [{"secretRef": {"name": "s1"}}],
        [{"name": "v", "configMap": {"name": "m2"}}, {"name": "w", "secret": {"secretName": "s2"}}],
    )

    assert referenced_names(pod) == ({"m1", "m2"}, {"s1", "s2"})


# ---- volumes -------------------------------------------------------------------------------------------------------


def test_volumes_become_host_paths(tmp_path):
    (tmp_path / "host").mkdir()
    pod = pod_of(
        volumes=[
            {"name": "empty", "emptyDir": {}},
            {"name": "host", "hostPath": {"path": str(tmp_path / "host")}},
            {"name": "made", "hostPath": {"path": str(tmp_path / "made"), "type": "DirectoryOrCreate"}},
            {"name": "map", "configMap": {"name": "m", "items": [{"key": "k", "path": "sub/file"}]}},
            {"name": "binary", "configMap": {"name": "m"}},
            {"name": "secret", "secret": {"secretName": "s"}},
            {"name": "token", "projected": {}},
        ],
        mounts=[
            {"name": "empty", "mountPath": "/e", "subPath": "deep"},
            {"name": "map", "mountPath": "/m", "readOnly": True},
            {"name": "token", "mountPath": "/var/run/secrets"},
        ],
    )

    volumes = prepare_volumes(pod, tmp_path / "pod", SOURCES)

    assert set(volumes) == {"empty", "host", "made", "map", "binary", "secret"}
    assert (volumes["map"] / "sub/file").read_text() == "v"
    assert (volumes["binary"] / "b").read_bytes() == b"\x00\x01"
    assert (volumes["secret"] / "k").read_text() == "secret"
    assert volume_binds(pod.spec.containers[0], volumes) == [
        Bind(f"{tmp_path}/pod/volumes/empty/deep", "/e"),
        Bind(f"{tmp_path}/pod/volumes/map", "/m", read_only=True),
    ]


@pytest.mark.parametrize(
    ("volume", "message"),
    [
        ({"persistentVolumeClaim": {"claimName": "x"}}, "knows emptyDir, hostPath, configMap and secret only"),
        ({"hostPath": {"path": "/no/such/folder", "type": "Directory"}}, "does not exist"),
        ({"configMap": {"name": "none"}}, 'configmap "none" not found'),
        ({"configMap": {"name": "m", "items": [{"key": "none", "path": "x"}]}}, "no key none"),
        ({"configMap": {"name": "m", "items": [{"key": "k", "path": "../x"}]}}, "leaves its volume"),
        ({"secret": {"secretName": "none"}}, 'secret "none" not found'),
    ],
)
def test_volumes_that_cannot_be(tmp_path, volume, message):
    with pytest.raises(ReferenceFault, match=message):
        prepare_volumes(pod_of(volumes=[{"name": "v", **volume}]), tmp_path, SOURCES)


# ---- CDI -----------------------------------------------------------------------------------------------------------


def spec(kind: str, devices: dict[str, dict], **edits) -> dict:
    return {
        "cdiVersion": "0.6.0",
        "kind": kind,
        "containerEdits": edits,
        "devices": [{"name": name, "containerEdits": own} for name, own in devices.items()],
    }


def test_edits_of_several_devices_are_merged_in_order(tmp_path):
    (tmp_path / "a.json").write_text(
        json.dumps(
            spec(
                "v/gpu",
                {"0": {"env": ["X=0"], "deviceNodes": [{"path": "/dev/nvidia0"}]}, "1": {"env": ["X=1"]}},
                env=["ALL=1"],
                mounts=[{"hostPath": "/h", "containerPath": "/c", "options": ["ro", "bind"]}],
                hooks=[{"hookName": "createContainer", "path": "/hook"}],
            )
        )
    )
    (tmp_path / "b.yaml").write_text(yaml.safe_dump(spec("v/other", {"z": {"env": ["Z=1"]}})))

    edits = CdiRegistry((str(tmp_path),)).resolve(["v/other=z", "v/gpu=1", "v/gpu=0"])

    assert edits == ContainerEdits(
        env=["Z=1", "ALL=1", "X=1", "X=0"],
        device_nodes=[DeviceNode("/dev/nvidia0")],
        mounts=[CdiMount("/h", "/c", ["ro", "bind"])],
        hooks=[{"hookName": "createContainer", "path": "/hook"}],
    )


def test_the_later_folder_wins_and_two_in_one_folder_are_nobody_s(tmp_path):
    static, dynamic = tmp_path / "static", tmp_path / "dynamic"
    for folder, value in ((static, "static"), (dynamic, "dynamic")):
        folder.mkdir()
        (folder / "x.json").write_text(json.dumps(spec("v/c", {"d": {"env": [f"FROM={value}"]}})))
    registry = CdiRegistry((str(static), str(dynamic), str(tmp_path / "none")))

    assert registry.resolve(["v/c=d"]).env == ["FROM=dynamic"]

    (dynamic / "y.json").write_text(json.dumps(spec("v/c", {"d": {}})))
    assert registry.resolve(["v/c=d", "v/c=e"]) == Unresolvable(("v/c=d", "v/c=e"))


def test_a_file_that_changes_or_makes_no_sense(tmp_path):
    registry = CdiRegistry((str(tmp_path),))
    file = tmp_path / "x.json"
    file.write_text("{")
    assert registry.resolve(["v/c=d"]) == Unresolvable(("v/c=d",))

    aside = tmp_path / "x.new"
    aside.write_text(json.dumps(spec("v/c", {"d": {"env": ["A=1"]}})))
    aside.replace(file)
    assert registry.resolve(["v/c=d"]).env == ["A=1"]

    file.unlink()
    assert registry.resolve(["v/c=d"]) == Unresolvable(("v/c=d",))
    assert registry.resolve([]) == ContainerEdits()


@pytest.mark.parametrize(
    ("raw", "suffix", "message"),
    [
        (b"[]", ".json", "Expected `object`"),
        (b'{"cdiVersion":"1","kind":"novendor","devices":[]}', ".json", "is not vendor/class"),
        (json.dumps(spec("v/c", {"d": {"env": ["NOVALUE"]}})).encode(), ".json", "is not NAME=VALUE"),
        (b"a: [", ".yaml", "expected"),
        (b"\xff\xfe\x00", ".yaml", "."),
    ],
)
def test_specifications_that_are_none(raw, suffix, message):
    with pytest.raises(ValueError, match=message):
        decode_spec(raw, suffix)


@given(st.binary(max_size=200), st.sampled_from([".json", ".yaml"]))
def test_any_bytes_are_a_specification_or_a_value_error(raw, suffix):
    with contextlib.suppress(ValueError):
        decode_spec(raw, suffix)


# ---- cards ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environment", "nodes", "mounts", "runtime", "visible"),
    [
        pytest.param({}, [], [], True, None, id="nothing asked, no driver"),
        pytest.param({"NVIDIA_VISIBLE_DEVICES": "GPU-1,GPU-2"}, [], [], True, "GPU-1,GPU-2", id="by variable"),
        pytest.param({"NVIDIA_VISIBLE_DEVICES": "GPU-1"}, [], [], False, None, id="no handler, no cards"),
        pytest.param({"NVIDIA_VISIBLE_DEVICES": "all"}, [], [], True, "all", id="all"),
        pytest.param({"NVIDIA_VISIBLE_DEVICES": "void"}, [], [], True, None, id="void"),
        pytest.param({"NVIDIA_VISIBLE_DEVICES": ""}, [], [], True, None, id="empty is void"),
        pytest.param({"NVIDIA_VISIBLE_DEVICES": "none"}, [], [], True, "", id="driver without cards"),
        pytest.param(
            {"NVIDIA_VISIBLE_DEVICES": "void"},
            ["/dev/nvidia2", "/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia2"],
            [],
            True,
            "2,0",
            id="by CDI",
        ),
        pytest.param({}, ["/dev/nvidia1"], [], False, "1", id="by CDI without handler"),
        pytest.param(
            {"NVIDIA_VISIBLE_DEVICES": "/var/run/nvidia-container-devices"},
            [],
            ["/x", "/var/run/nvidia-container-devices/GPU-1", "/var/run/nvidia-container-devices/imex/0"],
            True,
            "GPU-1",
            id="by mounts",
        ),
    ],
)
def test_visible_cards(environment, nodes, mounts, runtime, visible):
    assert visible_cards(environment, nodes, mounts, nvidia_runtime=runtime) == visible


def test_the_driver_comes_with_visible_cards_only():
    driver = DriverSettings(library_dir="/sim", environment={"HAMI_SIM_DRIVER": "d.json"})
    wanted = {"LD_LIBRARY_PATH": "/own", "PATH": "/bin"}

    seeing = runtime_environment(wanted, "p", ("/programs",), "GPU-1", driver)
    blind = runtime_environment(wanted, "p", ("/programs",), None, driver)

    assert seeing == {
        "PATH": "/programs:/bin",
        "HOSTNAME": "p",
        "HOME": "/root",
        "LD_LIBRARY_PATH": "/sim:/own",
        "HAMI_SIM_DRIVER": "d.json",
        "HAMI_SIM_VISIBLE_DEVICES": "GPU-1",
    }
    assert blind == {"PATH": "/programs:/bin", "HOSTNAME": "p", "HOME": "/root", "LD_LIBRARY_PATH": "/own"}


# ---- paths ---------------------------------------------------------------------------------------------------------

BINDS = [Bind("/h/lib.so", "/opt/vgpu/lib.so"), Bind("/h/dir", "/opt/vgpu"), Bind("/h/pre", "/etc/ld.so.preload")]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/opt/vgpu/x.cache", "/h/dir/x.cache"),
        ("/opt/vgpu", "/h/dir"),
        ("/opt/vgpu/lib.so", "/h/lib.so"),
        ("/opt/vgpu/lib.so.1", "/h/dir/lib.so.1"),
        ("/opt/vgpu2/x", "/opt/vgpu2/x"),
        ("/x/opt/vgpu/y", "/x/opt/vgpu/y"),
        ("/a:/opt/vgpu/b:/opt/vgpu", "/a:/h/dir/b:/h/dir"),
        ("--file=/opt/vgpu/x", "--file=/h/dir/x"),
        ("cat '/opt/vgpu/x' > /opt/vgpu/y; ls (/opt/vgpu)", "cat '/h/dir/x' > /h/dir/y; ls (/h/dir)"),
        ("", ""),
    ],
)
def test_container_paths_become_host_paths(text, expected):
    assert host_paths(text, BINDS) == expected


@given(st.text(alphabet="/abc :="), st.lists(st.tuples(st.text("/ab"), st.text("/xy"))))
def test_any_text_and_binds_are_taken(text, pairs):
    assert isinstance(host_paths(text, [Bind(source, target) for source, target in pairs]), str)


def test_a_launch_without_a_namespace():
    launch = Launch(["run", "/opt/vgpu/x"], {"CACHE": "/opt/vgpu/c", "LD_PRELOAD": "/own.so"}, "/opt/vgpu", BINDS)

    assert preload_source(BINDS) == "/h/pre"
    assert with_host_paths(launch, "/opt/vgpu/lib.so\n") == Launch(
        ["run", "/h/dir/x"], {"CACHE": "/h/dir/c", "LD_PRELOAD": "/h/lib.so:/own.so"}, "/h/dir", []
    )


def test_mount_points_inside_other_mounts():
    assert placeholders(BINDS) == [("/h/dir/lib.so", "/h/lib.so")]
    assert [bind.target for bind in in_mount_order(BINDS)] == ["/opt/vgpu", "/etc/ld.so.preload", "/opt/vgpu/lib.so"]
