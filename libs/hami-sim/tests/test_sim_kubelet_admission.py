"""Which devices a container gets, without sockets."""

import asyncio
import random
from pathlib import Path

import hami_sim.kubelet
import msgspec
import pytest
from hami_sim.kubelet.admission import Admission
from hami_sim.kubelet.admission_queue import AdmissionQueue
from hami_sim.kubelet.checkpoint_file import CheckpointFile
from hami_sim.kubelet.devices import Device, DeviceBook, Unavailable
from hami_sim.kubelet.objects import Pod
from hami_sim.kubelet.quantity import device_count
from hypothesis import given, settings
from hypothesis import strategies as st
from kubelet_api.checkpoint import CheckpointError
from kubelet_api.deviceplugin_v1beta1_pb2 import ContainerAllocateResponse

GPU = "example.com/gpu"


class Plugin:
    """Answers without a socket."""

    pre_start_required = True

    def __init__(self, *, prefers: bool = True, wishes: list[str] | None = None) -> None:
        self.prefers = prefers
        self.wishes = wishes
        self.calls: list[tuple] = []

    async def preferred(self, available: list[str], must_include: list[str], size: int) -> list[str]:
        self.calls.append(("preferred", frozenset(available), frozenset(must_include), size))
        return sorted(available)[:size] if self.wishes is None else self.wishes

    async def allocate(self, device_ids: list[str]) -> bytes:
        self.calls.append(("allocate", frozenset(device_ids)))
        return ContainerAllocateResponse(envs={"ORDER": str(len(self.calls))}).SerializeToString()

    async def pre_start(self, device_ids: list[str]) -> None:
        self.calls.append(("pre_start", frozenset(device_ids)))


def pod(uid: str, *containers: tuple, init: list[tuple] = ()) -> Pod:
    def one(name: str, gpus: int, policy: str | None = None) -> dict:
        return {"name": name, "resources": {"limits": {GPU: str(gpus)}}, "restartPolicy": policy}

    return msgspec.convert(
        {
            "metadata": {"name": uid, "namespace": "default", "uid": uid},
            "spec": {"containers": [one(*c) for c in containers], "initContainers": [one(*c) for c in init]},
        },
        Pod,
    )


class Node:
    def __init__(self, ids: str, plugin: Plugin, seed: int = 0) -> None:
        self.book = DeviceBook()
        self.book.advertise(GPU, [Device(id_, healthy=True) for id_ in ids])
        self.saves = 0
        self.admission = Admission(self.book, lambda _: plugin, self._save, random.Random(seed))  # noqa: S311

    def _save(self) -> None:
        self.saves += 1

    def held(self, uid: str) -> dict[str, frozenset[str]]:
        return {h.container: h.ids for h in self.book.holdings() if h.pod_uid == uid}


async def test_calls_come_init_containers_first_and_the_checkpoint_after_each():
    plugin = Plugin()
    node = Node("abcdefgh", plugin)

    assert await node.admission.admit(pod("p", ("x", 1), ("y", 2), init=[("first", 3), ("second", 1)])) is None

    kinds = [(call[0], call[-1] if call[0] == "preferred" else len(call[1])) for call in plugin.calls]
    assert kinds == [
        ("preferred", 3),
        ("allocate", 3),
        ("allocate", 1),
        ("allocate", 1),
        ("allocate", 2),
    ]
    assert node.saves == 4
    held = node.held("p")
    assert held["second"] < held["first"]
    assert held["x"] | held["y"] == held["first"]
    assert not held["x"] & held["y"]


async def test_a_container_that_wants_more_than_the_init_container_had_keeps_what_is_reused():
    plugin = Plugin()
    node = Node("abcdef", plugin)

    await node.admission.admit(pod("p", ("x", 4), init=[("init", 2)]))

    reused = node.held("p")["init"]
    assert plugin.calls[2] == ("preferred", frozenset("abcdef"), reused, 4)
    assert reused < node.held("p")["x"]


async def test_a_sidecar_keeps_its_devices():
    node = Node("abcd", Plugin())

    await node.admission.admit(pod("p", ("x", 2), init=[("once", 2), ("side", 1, "Always")]))

    held = node.held("p")
    assert held["side"] < held["once"]
    assert not held["side"] & held["x"]
    assert held["once"] - held["side"] < held["x"]


@pytest.mark.parametrize(
    ("wishes", "got"),
    [
        pytest.param(["c", "d"], frozenset("cd"), id="the wish is granted"),
        pytest.param(["z", "d", "d"], None, id="unknown and repeated ids are filled up"),
        pytest.param([], None, id="no wish"),
        pytest.param(["a", "b", "c", "d"], frozenset("ab"), id="only as many as asked"),
    ],
)
async def test_wishes_are_only_wishes(wishes, got):
    node = Node("abcd", Plugin(wishes=wishes))

    assert await node.admission.admit(pod("p", ("x", 2))) is None

    held = node.held("p")["x"]
    assert len(held) == 2
    assert held <= frozenset("abcd")
    assert got is None or held == got
    assert "z" in wishes or "d" not in wishes[:2] or "d" in held


async def test_without_the_option_the_plugin_is_not_asked():
    plugin = Plugin(prefers=False)
    await Node("abcd", plugin).admission.admit(pod("p", ("x", 2)))

    assert [call[0] for call in plugin.calls] == ["allocate"]


async def test_a_pod_that_has_its_devices_is_not_given_others():
    plugin = Plugin()
    node = Node("abcd", plugin)
    wanted = pod("p", ("x", 2))
    await node.admission.admit(wanted)

    assert await node.admission.admit(wanted) is None
    assert len([call for call in plugin.calls if call[0] == "allocate"]) == 1


async def test_a_changed_count_is_refused():
    node = Node("abcd", Plugin())
    await node.admission.admit(pod("p", ("x", 2)))

    refusal = await node.admission.admit(pod("p", ("x", 3)))

    assert refusal is not None
    assert "changed request for resource 'example.com/gpu' from 2 to 3" in refusal.message


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param(lambda book: book.plugin_gone(GPU), "cannot allocate unregistered device", id="plugin gone"),
        pytest.param(
            lambda book: book.advertise(GPU, [Device("a", healthy=False)]),
            "cannot allocate unhealthy devices",
            id="nothing healthy",
        ),
        pytest.param(
            lambda book: book.advertise(GPU, [Device("a", healthy=False), Device("b", healthy=True)]),
            "previously allocated devices are no longer healthy",
            id="its own card is ill",
        ),
    ],
)
async def test_a_pod_admitted_again_after_a_restart_needs_its_devices_healthy(change, message):
    node = Node("a", Plugin())
    await node.admission.admit(pod("p", ("x", 1)))
    change(node.book)

    refusal = await node.admission.admit(pod("p", ("x", 1)))

    assert refusal is not None
    assert message in refusal.message


async def test_a_count_that_is_no_quantity_refuses_the_pod():
    wanted = pod("p", ("x", 1))
    wanted.spec.containers[0].resources.limits[GPU] = "many"

    refusal = await Node("a", Plugin()).admission.admit(wanted)

    assert refusal is not None
    assert "many" in refusal.message


@pytest.mark.parametrize(("text", "count"), [("1", 1), (2, 2), ("1k", 1000), ("1500m", 2), ("0", 0), ("1e1", 10)])
def test_counts_are_whole(text, count):
    assert device_count(text) == count


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(
            st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=2),
            st.lists(st.integers(0, 3), min_size=1, max_size=3),
        ),
        max_size=6,
    ),
    st.integers(),
)
def test_no_device_is_in_two_hands_at_once(pods, seed):
    """Whatever the pods: only an init container that ends shares its ids, and only within its pod."""
    node = Node("abcdefgh", Plugin(), seed)

    async def admit_all() -> None:
        for number, (init, apps) in enumerate(pods):
            wanted = pod(
                f"p{number}",
                *((f"c{i}", size) for i, size in enumerate(apps)),
                init=[(f"i{i}", size, "Always" if side else None) for i, (size, side) in enumerate(init)],
            )
            if await node.admission.admit(wanted):
                node.book.retain_pods({h.pod_uid for h in node.book.holdings()} - {wanted.uid})

    asyncio.run(admit_all())

    by_pod: dict[str, set[str]] = {}
    for holding in node.book.holdings():
        number, name = int(holding.pod_uid[1:]), holding.container
        by_pod.setdefault(holding.pod_uid, set()).update(holding.ids)
        once = name[0] == "i" and not pods[number][0][int(name[1:])][1]
        others = [h for h in node.book.held(holding.pod_uid, name) if h is not holding]
        assert others == []
        if once:
            continue
        for other in node.book.holdings():
            same_pod = other.pod_uid == holding.pod_uid
            other_once = other.container[0] == "i" and not pods[int(other.pod_uid[1:])][0][int(other.container[1:])][1]
            if other is not holding and not (same_pod and other_once):
                assert not other.ids & holding.ids
    used = list(by_pod.values())
    assert sum(map(len, used)) == len(set().union(*used))


async def test_the_checkpoint_is_read_again(tmp_path):
    node = Node("abcd", Plugin())
    node.book.advertise(GPU, [Device(i, healthy=True, numa_nodes=(1,)) for i in "abcd"])
    await node.admission.admit(pod("p", ("x", 2), init=[("init", 3)]))
    file = CheckpointFile(tmp_path)
    file.save(node.book)
    restored = DeviceBook()

    file.load(restored)

    def comparable(book: DeviceBook) -> list[tuple]:
        return [(h.pod_uid, h.container, h.ids, sorted(h.ids_by_numa)) for h in book.holdings()]

    assert comparable(restored) == comparable(node.book)
    assert (restored.capacity(GPU), restored.allocatable(GPU)) == (0, 0)
    answer = restored.choose(("q", "x"), GPU, 1, frozenset(), random.Random(0))  # noqa: S311
    assert answer == Unavailable(f"cannot allocate unregistered device {GPU}")


@pytest.mark.parametrize("content", ["", "{}", '{"Data":{"PodDeviceEntries":[{"PodUID":7}]}}'])
def test_a_damaged_checkpoint_stops_the_start(tmp_path, content):
    file = CheckpointFile(tmp_path)
    file.path.write_text(content)

    with pytest.raises(CheckpointError):
        file.load(DeviceBook())


def test_no_checkpoint_means_nothing_was_held(tmp_path):
    book = DeviceBook()
    CheckpointFile(tmp_path).load(book)

    assert book.holdings() == []


async def test_the_queue_takes_the_oldest_first():
    order: list[str] = []
    go = asyncio.Event()

    async def admit(wanted: Pod) -> None:
        await go.wait()
        order.append(wanted.uid)

    queue = AdmissionQueue(admit)
    worker = asyncio.create_task(queue.run())
    waiting = []
    for uid, created in (("first-taken", "9"), ("c", "3"), ("a", "1"), ("b", "1")):
        one = pod(uid, ("x", 1))
        one.metadata.creation_timestamp = created
        waiting.append(asyncio.create_task(queue.admit(one)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    go.set()
    await asyncio.gather(*waiting)
    worker.cancel()

    assert order == ["first-taken", "a", "b", "c"]


def test_the_stand_in_does_not_know_whose_plugin_it_serves():
    """It must treat our node-agent as it would treat any other plugin."""
    folder = Path(hami_sim.kubelet.__file__).parent
    known = [path.name for path in folder.glob("*.py") if "hami.io" in path.read_text()]

    assert known == []
