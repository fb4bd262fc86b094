"""Which back end holds a slice, and what the limits page says."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import pytest
from hami_model import device_config, kube, vendors
from hami_model.cards import MigPlacement, Slice
from hami_model.ids import CardId
from hami_model.limits_page import CardLimits, Control, LimitsPage, Policy
from hami_model.mig_allocations import MigInstance
from hami_node_agent.core import backends, handed_out, outcome
from hami_node_agent.core.backends import BackendUnavailableError, EnforcementPolicy, NodeTerms, Promise
from hami_node_agent.core.grant import Grant, HostLayout, HostState, LimitPolicy
from hami_node_agent.core.handed_out import HandedContainer, HandedOut, HandedPod, HandedSlice
from hami_node_agent.core.outcome import Origin
from node_agent_world import allocation_annotations

MIB = 1 << 20
OPT_OUT = [kube.EnvVar(name="CUDA_DISABLE_CONTROL", value="true")]


def piece(card: str, memory: int = 1000, cores: int = 10, placement: MigPlacement | None = None) -> Slice:
    return Slice(card_id=CardId(card), vendor="", memory_mib=memory, cores_percent=cores, placement=placement)


def promised(
    *slices: Slice, env: list[kube.EnvVar] | None = None, policy: EnforcementPolicy | None = None
) -> HandedContainer:
    container = kube.Container(name="main", env=env)
    return backends.promise(slices, container, position=0, region_name="r.cache", policy=policy or EnforcementPolicy())


def granted(
    handed: HandedContainer, container: kube.Container | None = None, policy: EnforcementPolicy | None = None
) -> Grant:
    return backends.make_grant(
        Promise(
            pod_uid="u",
            container=container or kube.Container(name="main"),
            handed=handed,
            priority_resource="nvidia.com/priority",
        ),
        NodeTerms(
            layout=HostLayout(),
            host=HostState(library="/l"),
            limits=LimitPolicy(),
            policy=policy or EnforcementPolicy(),
        ),
    )


def page_of(found: Grant) -> LimitsPage:
    assert found.files is not None
    return found.files.page


def backends_of(handed: HandedContainer) -> list[str]:
    return [piece.enforced_by for piece in handed.slices]


# ---- which ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "wanted"),
    [
        pytest.param(EnforcementPolicy(), ["preload", "preload"], id="by default the library"),
        pytest.param(EnforcementPolicy(cards="none"), ["none", "none"], id="nothing where the operator says so"),
        pytest.param(EnforcementPolicy(by_card={"B": "none"}), ["preload", "none"], id="one card otherwise"),
        pytest.param(EnforcementPolicy(cards="none", by_card={"A": "preload"}), ["preload", "none"], id="one only"),
    ],
)
def test_each_card_has_the_back_end_that_was_chosen_for_it(policy: EnforcementPolicy, wanted: list[str]) -> None:
    assert backends_of(promised(piece("A"), piece("B"), policy=policy)) == wanted


@pytest.mark.parametrize("policy", [EnforcementPolicy(), EnforcementPolicy(cards="none")])
def test_an_instance_is_held_by_its_card_whatever_was_chosen(policy: EnforcementPolicy) -> None:
    handed = promised(piece("A", placement=MigPlacement(start=0, size=1)), policy=policy, env=OPT_OUT)
    made = msgspec.structs.replace(
        handed.slices[0], instance=MigInstance(uuid="MIG-1", gpu_instance=1, compute_instance=0)
    )
    assert backends_of(handed) == ["mig"]
    assert granted(msgspec.structs.replace(handed, slices=(made,))) == Grant(card_ids=("MIG-1",))


def test_a_node_without_enforcement_gives_the_card_and_nothing_else() -> None:
    assert granted(promised(piece("A"), policy=EnforcementPolicy(cards="none"))) == Grant(card_ids=("A",))


def test_a_card_that_nothing_holds_has_no_limit_beside_one_that_has() -> None:
    found = granted(promised(piece("A", 5, 20), piece("B", 6, 30), policy=EnforcementPolicy(by_card={"B": "none"})))

    assert found.card_ids == ("A", "B")
    assert found.environment["CUDA_DEVICE_MEMORY_LIMIT_0"] == "5m"
    assert found.environment["CUDA_DEVICE_MEMORY_LIMIT_1"] == "0m"
    assert page_of(found).cards == (
        CardLimits(uuid="A", memory_limit_bytes=5 * MIB, cores_percent=20),
        CardLimits(uuid="B", memory_limit_bytes=0, cores_percent=100),
    )


@pytest.mark.case("CPR-10")
@pytest.mark.parametrize(
    ("count", "policy", "env", "fits"),
    [
        (16, EnforcementPolicy(), None, True),
        (17, EnforcementPolicy(), None, False),
        (17, EnforcementPolicy(cards="none"), None, True),
        (17, EnforcementPolicy(cards="none", by_card={"3": "preload"}), None, False),
        (17, EnforcementPolicy(), OPT_OUT, False),  # the page is what says that nothing is held
    ],
)
def test_limits_are_held_on_as_many_cards_as_the_page_has_places(
    count: int, policy: EnforcementPolicy, env: list[kube.EnvVar] | None, *, fits: bool
) -> None:
    handed = promised(*(piece(str(number)) for number in range(count)), env=env, policy=policy)

    assert bool(backends.unholdable(handed)) is not fits


def test_who_opts_out_gets_the_library_s_files_and_is_held_by_nothing() -> None:
    handed = promised(piece("A"), env=OPT_OUT)

    assert (backends_of(handed), handed.opted_out) == (["none"], True)
    assert page_of(granted(handed)).control == Control.DISABLED
    assert page_of(granted(promised(piece("A")))).control == Control.HELD


@pytest.mark.case("CPR-10")
def test_an_operator_may_forbid_it() -> None:
    handed = promised(piece("A"), env=OPT_OUT, policy=EnforcementPolicy(may_opt_out=False))
    found = granted(handed, kube.Container(name="main", env=OPT_OUT))

    assert (backends_of(handed), handed.opted_out) == (["preload"], False)
    assert page_of(found).control == Control.HELD
    assert "/etc/ld.so.preload" in [mount.container_path for mount in found.mounts]


@pytest.mark.parametrize(
    ("version", "says"),
    [
        ("550.54.14", "550.54.14"),
        ("", "unknown"),
        ("615.10", "615.10, which can, but this node-agent cannot"),
    ],
)
@pytest.mark.parametrize(
    ("policy", "setting"),
    [
        (EnforcementPolicy(cards="driver"), "enforcement.cards"),
        (EnforcementPolicy(by_card={"A": "driver"}), "enforcement.by_card"),
    ],
)
def test_the_driver_as_back_end_is_refused_by_name(
    version: str, says: str, policy: EnforcementPolicy, setting: str
) -> None:
    with pytest.raises(BackendUnavailableError, match=rf"{setting} says driver: .*{says}.*set preload"):
        backends.refuse_unavailable(policy, version)


def test_other_back_ends_need_no_driver_of_a_certain_release() -> None:
    backends.refuse_unavailable(EnforcementPolicy(by_card={"A": "none"}), "1.0")


# ---- the book ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("placement", "env", "wanted"),
    [
        pytest.param(None, None, "preload", id="a slice"),
        pytest.param(None, OPT_OUT, "none", id="opted out"),
        pytest.param(MigPlacement(start=0, size=1), None, "mig", id="an instance"),
    ],
)
def test_an_entry_of_an_earlier_agent_goes_by_what_that_agent_did(
    placement: MigPlacement | None, env: list[kube.EnvVar] | None, wanted: str
) -> None:
    old = HandedContainer(
        slices=(HandedSlice(card_id="A", memory_mib=1, cores_percent=1, placement=placement),),
        region_name="r.cache",
        position=0,
    )
    assert backends_of(backends.settled(old, kube.Container(name="main", env=env))) == [wanted]


def test_the_book_counts_slices_by_back_end() -> None:
    containers = {
        "a": promised(piece("A"), piece("B")),
        "b": promised(piece("A"), env=OPT_OUT),
    }
    book = HandedOut({"u": HandedPod(namespace="n", name="p", allocation_id="a", containers=containers)})

    reread = handed_out.decode(handed_out.encode(book))

    assert {name: backends.count_slices(reread, name) for name in backends.BACKENDS} == {
        "preload": 2, "mig": 0, "driver": 0, "none": 1,
    }  # fmt: skip


def test_what_holds_a_pod_is_known_of_containers_that_have_not_started() -> None:
    settings = device_config.default_config().vendor(vendors.NVIDIA)
    assert settings is not None
    pod = kube.Pod(
        metadata=kube.Metadata(
            name="p", uid="u", annotations=allocation_annotations("A,NVIDIA,10,10:;;A,NVIDIA,20,0:B,NVIDIA,20,0:;")
        ),
        spec=kube.PodSpec(
            node_name="n1",
            containers=[kube.Container(name=name, env=OPT_OUT if name == "c" else None) for name in "abc"],
        ),
    )
    first = promised(piece("A"), policy=EnforcementPolicy(cards="none"))
    known = HandedPod(namespace="", name="p", allocation_id="", containers={"a": first})

    found = backends.held_by(pod, known, settings, EnforcementPolicy(may_opt_out=False))

    assert found == {(0, "A"): "none", (2, "A"): "preload", (2, "B"): "preload"}


def test_a_card_that_only_the_settings_know_is_told_of() -> None:
    policy = EnforcementPolicy(by_card={"A": "none", "Z": "preload"})
    assert backends.names_of_no_card(policy, ["A", "B"]) == [
        "enforcement.by_card says preload of Z, which is no card that this node offers: correct or remove it"
    ]


@pytest.mark.parametrize(
    ("held_by", "whole"),
    [
        ({(0, "A"): "preload", (0, "B"): "preload"}, "preload"),
        ({(0, "A"): "preload", (0, "B"): "none"}, ""),
        ({}, ""),
    ],
)
def test_the_event_says_it_card_by_card_and_of_the_whole_where_it_is_one(
    held_by: dict[tuple[int, str], backends.Backend], whole: str
) -> None:
    settings = device_config.default_config().vendor(vendors.NVIDIA)
    assert settings is not None
    pod = kube.Pod(
        metadata=kube.Metadata(
            name="p", namespace="ns", uid="u", annotations=allocation_annotations("A,NVIDIA,1,1:B,NVIDIA,1,1:;")
        ),
        spec=kube.PodSpec(node_name="n1", containers=[kube.Container(name="main")]),
    )
    origin = Origin(source="//n1", node="n1", prefix="hami")

    event = outcome.allocated(
        pod, settings, origin, datetime(2026, 1, 1, tzinfo=UTC), verification="verified", held_by=held_by
    )

    assert event.enforced_by == whole
    (container,) = event.containers
    assert {card.card_id: card.enforced_by for card in container.cards} == {
        card: held_by.get((0, card), "") for card in ("A", "B")
    }


def test_libraries_in_use_are_those_of_the_book_and_unknown_where_an_earlier_agent_wrote_it() -> None:
    def book(*containers: HandedContainer) -> HandedOut:
        named = {str(number): handed for number, handed in enumerate(containers)}
        return HandedOut({"u": HandedPod(namespace="n", name="p", allocation_id="a", containers=named)})

    new = msgspec.structs.replace(promised(piece("A")), library="/l.1")
    unheld = promised(piece("A"), policy=EnforcementPolicy(cards="none"))
    instance = HandedSlice(card_id="A", memory_mib=1, cores_percent=1, placement=MigPlacement(start=0, size=1))
    earlier = HandedSlice(card_id="A", memory_mib=1, cores_percent=1)

    assert backends.libraries_in_use(book(new, unheld)) == frozenset({"/l.1"})
    assert backends.libraries_in_use(book()) == frozenset()
    old = [HandedContainer(slices=(found,), region_name="", position=0) for found in (instance, earlier)]
    assert backends.libraries_in_use(book(new, old[0])) == frozenset({"/l.1"})
    assert backends.libraries_in_use(book(new, old[1])) is None


@pytest.mark.parametrize(
    ("own", "pods", "wanted"),
    [
        pytest.param((1000, None), (2000, 5), (1000, 5), id="the container's word before the pod's"),
        pytest.param((None, 7), (2000, 5), (2000, 7), id="each word by itself"),
        pytest.param((1000, None), None, (1000, 0), id="root's group"),
        pytest.param((0, 0), None, None, id="root can become anyone"),
        pytest.param((None, 5), None, None, id="the image says who"),
        pytest.param((-5, None), None, None, id="nobody's number"),
    ],
)
def test_whose_the_container_s_folder_is(
    own: tuple[int | None, int | None], pods: tuple[int | None, int | None] | None, wanted: tuple[int, int] | None
) -> None:
    contexts = [
        kube.SecurityContext(run_as_user=ids[0], run_as_group=ids[1]) if ids is not None else None
        for ids in (own, pods)
    ]
    container = kube.Container(name="main", security_context=contexts[0])
    found = backends.make_grant(
        Promise(pod_uid="u", container=container, pod_security=contexts[1], handed=promised(piece("A"))),
        NodeTerms(layout=HostLayout(), host=HostState(library="/l"), limits=LimitPolicy(), policy=EnforcementPolicy()),
    )
    assert found.files is not None
    assert found.files.owner == wanted


# ---- the page ------------------------------------------------------------------------------------------------------


def test_the_page_says_what_was_promised_in_the_order_of_the_limits() -> None:
    found = granted(promised(piece("A", 3000, 0), piece("B", 70000, 250)), policy=EnforcementPolicy(context_bytes=7))

    assert page_of(found) == LimitsPage(
        region_file="/usr/local/vgpu/r.cache",
        cards=(
            CardLimits(uuid="A", memory_limit_bytes=3000 * MIB, cores_percent=100, context_bytes=7),
            CardLimits(uuid="B", memory_limit_bytes=70000 * MIB, cores_percent=100, context_bytes=7),
        ),
        policy=Policy.FORCE,
        priority=1,
        control=Control.HELD,
    )


@pytest.mark.parametrize(
    ("core_policy", "disabled", "contended_only", "wanted"),
    [
        ("default", False, False, Policy.FORCE),
        ("default", False, True, Policy.DEFAULT),
        ("force", False, True, Policy.FORCE),
        ("disable", False, False, Policy.DISABLE),
        ("force", True, False, Policy.DISABLE),
    ],
)
def test_when_compute_holds(core_policy: str, *, disabled: bool, contended_only: bool, wanted: Policy) -> None:
    found = backends.compute_policy(core_policy, disabled=disabled, contended_only=contended_only)
    assert found == wanted


@pytest.mark.parametrize(
    ("node", "asked", "wanted"),
    [
        (Policy.DEFAULT, "force", Policy.FORCE),
        (Policy.DEFAULT, "FORCE", Policy.FORCE),
        (Policy.DEFAULT, "disable", Policy.DEFAULT),
        (Policy.FORCE, "disable", Policy.FORCE),
        (Policy.DISABLE, "force", Policy.DISABLE),
        (Policy.FORCE, None, Policy.FORCE),
    ],
)
def test_a_specification_cannot_lift_its_limit_of_compute(node: Policy, asked: str | None, wanted: Policy) -> None:
    container = kube.Container(name="main", env=[kube.EnvVar(name="GPU_CORE_UTILIZATION_POLICY", value=asked)])
    found = granted(promised(piece("A")), container, EnforcementPolicy(compute=node))
    assert page_of(found).policy == wanted


@pytest.mark.parametrize(
    ("values", "limit", "wanted"),
    [
        pytest.param(["0"], None, 0, id="as the webhook wrote it"),
        pytest.param(["0", "3"], None, 3, id="of several the last"),
        pytest.param([], "2", 2, id="the resource, where no webhook wrote it"),
        pytest.param(["high"], None, 1, id="no number"),
        pytest.param(["99999999999"], "4", 4, id="a number that no library could hold"),
        pytest.param([None], None, 1, id="from elsewhere"),
        pytest.param([], None, 1, id="nothing said"),
    ],
)
def test_the_priority(values: list[str | None], limit: str | None, wanted: int) -> None:
    container = kube.Container(
        name="main",
        env=[kube.EnvVar(name="CUDA_TASK_PRIORITY", value=value) for value in values],
        resources=kube.Resources(limits={"nvidia.com/priority": limit} if limit else None),
    )
    assert page_of(granted(promised(piece("A")), container)).priority == wanted
