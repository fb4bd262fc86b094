"""What status says: promises from objects, use from samples, tables and schema."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import jsonschema
import msgspec
import pytest
from hami_model import events, kube, register
from hami_model.cards import Card
from hami_model.ids import CardId
from hami_model.vendors import vendor
from hami_sim.cluster import schemas
from hami_sim.cluster.artefacts import EXAMPLES
from hami_sim.cluster.cards_arrived import first_missing
from hami_sim.cluster.driver_description import card_ids
from hami_sim.cluster.ledger_view import cards_of_node, node_status, pod_status
from hami_sim.cluster.node_problems import not_offered, why_unhealthy
from hami_sim.cluster.profile import node_plans, uniform_profile
from hami_sim.cluster.samples import EXPECTED_LABEL, expected_count, missing_in
from hami_sim.cluster.status import ClusterStatus, ServiceStatus
from hami_sim.cluster.tables import next_steps, render
from hami_sim.cluster.usage_samples import FRESH, UsageSamples, samples_of

NVIDIA = vendor("NVIDIA")
NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)
MIB = 1 << 20
NONE = UsageSamples(slices={}, cards={})


def card(index: int, **fields) -> Card:
    shown = {"slots": 10, "memory_mib": 40960, "cores_percent": 100, "model": "NVIDIA A100", "healthy": True, **fields}
    return Card(id=CardId(f"GPU-{index}"), index=index, **shown)


def node(*cards: Card, ready: bool = True, handoff: str = "late-binding", text: str | None = None) -> kube.Node:
    registered = register.encode(NVIDIA, list(cards), handoff=handoff) if text is None else text
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    return msgspec.convert(
        {
            "metadata": {"name": "n1", "annotations": {NVIDIA.register_key: registered}},
            "status": {"allocatable": {"nvidia.com/gpu": "20"}, "conditions": conditions},
        },
        kube.Node,
    )


def pod(name: str = "p", *, held: str = "", phase: str = "Running", on: str = "n1", status=None, labels=None):
    annotations = {NVIDIA.allocated_key: held} if held else {}
    metadata = {"name": name, "namespace": "d", "uid": f"u-{name}", "annotations": annotations, "labels": labels or {}}
    return msgspec.convert(
        {
            "metadata": metadata,
            "spec": {"nodeName": on, "containers": [{"name": "main"}]},
            "status": {"phase": phase, **(status or {})},
        },
        kube.Pod,
    )


def used(mib: int, cores: int) -> UsageSamples:
    ref = events.PodRef(namespace="d", name="p", uid="u-p")
    one = events.CardUsage(
        card_id="GPU-0", memory_promised_bytes=3000 * MIB, memory_used_bytes=mib * MIB, cores_promised_percent=30,
        cores_used_percent=cores,
        enforced_by="preload",
    )  # fmt: skip
    pod_event = events.UsageSampled(
        source="/hami/monitor/n1", time=NOW, pod=ref, node="n1",
        containers=(events.ContainerUsage(container="main", cards=(one,)),),
    )  # fmt: skip
    whole = events.CardTelemetry(
        card_id="GPU-0", index=0, memory_total_bytes=40960 * MIB, memory_used_bytes=mib * MIB, cores_used_percent=cores
    )
    node_event = events.UsageNodeSampled(source="/hami/monitor/n1", time=NOW, node="n1", cards=(whole,))
    return samples_of([pod_event, node_event], NOW)


class TestCards:
    def test_promises_are_summed_over_live_pods_of_the_node(self):
        pods = [
            pod("a", held="GPU-0,NVIDIA,3000,30:;"),
            pod("b", held="GPU-0,NVIDIA,1000,10:;"),
            pod("over", held="GPU-0,NVIDIA,500,5:;", phase="Succeeded"),
            pod("elsewhere", held="GPU-0,NVIDIA,500,5:;", on="n2"),
        ]
        first, second = cards_of_node(node(card(0), card(1)), pods, NONE)
        assert (first.slots_used, first.memory_promised_mib, first.cores_promised_percent) == (2, 4000, 40)
        assert (second.slots_used, second.memory_promised_mib) == (0, 0)
        assert first.memory_used_mib is None

    def test_use_comes_from_the_sample(self):
        (found,) = cards_of_node(node(card(0)), [], used(2500, 29))
        assert (found.memory_used_mib, found.cores_used_percent) == (2500, 29)

    def test_an_unreadable_annotation_gives_no_cards_and_a_problem(self):
        broken = node(text="{")
        assert cards_of_node(broken, [], NONE) == []
        assert NVIDIA.register_key in node_status(broken, "").problem


class TestNodes:
    @pytest.mark.parametrize(("os_image", "mode"), [("hami-sim (prefix)", "prefix"), ("Debian", "")])
    def test_what_the_node_says(self, os_image, mode):
        found = node_status(node(card(0)), os_image)
        assert (found.name, found.ready, found.slots_allocatable) == ("n1", True, 20)
        assert (found.handoff, found.container_mode) == ("late-binding", mode)


class TestReasons:
    """What node-agents told, as Events of their nodes."""

    EVENTS = (
        {"reason": "CardNotOffered", "message": "card GPU-9 is not offered: x", "involvedObject": {"name": "n1"}},
        {"reason": "CardNotOffered", "message": "card GPU-0 is not offered: past", "involvedObject": {"name": "n1"}},
        {"reason": "CardNotOffered", "message": "card GPU-8 is not offered: y", "involvedObject": {"name": "n2"}},
        {"reason": "Rebooted", "message": "Node n1 has been rebooted", "involvedObject": {"name": "n1"}},
        *(
            {"reason": "CardUnhealthy", "message": f"card GPU-0 is unhealthy: {why}", "involvedObject": {"name": "n1"},
             "lastTimestamp": f"2026-11-29T12:{minute}:00Z"}
            for why, minute in (("now", 30), ("before", 10))
        ),
    )  # fmt: skip

    def test_cards_that_are_not_offered(self):
        cards = cards_of_node(node(card(0)), [], UsageSamples(slices={}, cards={}))
        offered = [msgspec.structs.replace(found, id="GPU-0") for found in cards]
        assert not_offered(self.EVENTS, "n1", offered) == ("card GPU-9 is not offered: x",)
        assert not_offered(self.EVENTS, "n2", offered) == ("card GPU-8 is not offered: y",)

    def test_the_newest_reason_counts(self):
        (found,) = cards_of_node(node(card(0, healthy=False)), [], UsageSamples(slices={}, cards={}))
        assert why_unhealthy(self.EVENTS, msgspec.structs.replace(found, id="GPU-0")) == "now"
        assert why_unhealthy(self.EVENTS, msgspec.structs.replace(found, id="GPU-7")) == ""

    def test_both_are_shown(self):
        status = whole_status()
        (found, *_) = status.cards
        broken = msgspec.structs.replace(found, healthy=False, problem="xid (XID 79)")
        told = msgspec.structs.replace(status.nodes[0], not_offered=("card GPU-9 is not offered: x",))
        shown = render(msgspec.structs.replace(status, cards=(broken,), nodes=(told,)))
        assert "unhealthy: xid (XID 79)" in shown
        assert "card GPU-9 is not offered: x" in shown


class TestPods:
    def test_each_container_with_what_it_holds_and_uses(self):
        (held,) = pod_status(pod(held="GPU-0,NVIDIA,3000,30:;"), used(2500, 29)).cards
        assert (held.container, held.card_id) == ("main", "GPU-0")
        assert (held.memory_promised_mib, held.memory_used_mib) == (3000, 2500)
        assert (held.cores_promised_percent, held.cores_used_percent) == (30, 29)
        assert held.enforced_by == "preload"

    @pytest.mark.parametrize(
        ("status", "reason"),
        [
            pytest.param(
                {"conditions": [{"type": "PodScheduled", "status": "False", "message": "0/2 nodes are available"}]},
                "0/2 nodes are available",
                id="it waits for a card",
            ),
            pytest.param(
                {"containerStatuses": [{"name": "main", "state": {"waiting": {"reason": "CrashLoopBackOff"}}}]},
                "main: CrashLoopBackOff",
                id="its container waits",
            ),
            pytest.param(
                {"containerStatuses": [{"name": "main", "state": {"terminated": {"exitCode": 4}}}]},
                "main: exit code 4",
                id="its container failed",
            ),
            pytest.param({"reason": "UnexpectedAdmissionError"}, "UnexpectedAdmissionError", id="kubelet refused it"),
        ],
    )
    def test_reasons(self, status, reason):
        waiting = "conditions" in status
        found = pod_status(pod(phase="Pending", status=status, on="" if waiting else "n1"), NONE)
        assert found.reason == reason

    def test_a_phase_that_kubernetes_does_not_have_yet_is_unknown(self):
        assert pod_status(pod(phase=""), NONE).phase == "Unknown"


def test_old_samples_say_nothing():
    fresh = used(1, 1)
    assert fresh.cards
    old = events.UsageNodeSampled(source="s", time=NOW - FRESH - timedelta(seconds=1), node="n", cards=())
    assert samples_of([old], NOW) == NONE


def whole_status(**fields) -> ClusterStatus:
    pods = [
        pod("a", held="GPU-0,NVIDIA,3000,30:;"),
        pod("waits", on="", phase="Pending", status={"conditions": [
            {"type": "PodScheduled", "status": "False", "message": "0/1 nodes are available: 1 CardInsufficientMemory."}
        ]}),
    ]  # fmt: skip
    shown = {
        "state_directory": "/s", "kubeconfig": "/s/kubeconfig", "api_server": "https://127.0.0.1:1", "nats": "nats://x",
        "running": False, "usage_known": True,
        "services": (ServiceStatus(name="webhook", state="dead", log="/s/logs/webhook.log", problem="no\nport"),),
        "nodes": (node_status(node(card(0)), "hami-sim (prefix)"),),
        "cards": tuple(cards_of_node(node(card(0)), pods, NONE)),
        "pods": tuple(pod_status(one, NONE) for one in pods),
        **fields,
    }  # fmt: skip
    return ClusterStatus(**shown)


class TestTables:
    def test_everything_is_shown(self):
        text = render(whole_status())
        for shown in ("webhook", "dead", "no port", "n1/0", "3000 / 40960", "d/a", "d/waits", "CardInsufficientMemory"):
            assert shown in text

    @pytest.mark.parametrize(
        ("state", "said"), [("dead", True), ("stopped", True), ("not-ready", False), ("ready", False)]
    )
    def test_what_starts_a_service_that_has_ended(self, state, said):
        services = (ServiceStatus(name="webhook", state=state, log="/s/logs/webhook.log"),)
        assert ("`hami-sim up --state /s`" in render(whole_status(services=services))) == said

    def test_unknown_use_is_said(self):
        assert "NATS does not answer" in render(whole_status(usage_known=False))

    def test_lines_have_no_trailing_blanks(self):
        assert all(line == line.rstrip() for line in render(whole_status()).splitlines())

    def test_next_steps_name_another_state_directory(self):
        assert "--state" not in next_steps(".hami-sim", "k", "kubectl", "nats://x", "bin", samples=True)
        assert "--state other" in next_steps("other", "k", "kubectl", "nats://x", "bin", samples=True)

    def test_next_steps_explain_a_pod_that_is_there(self):
        assert "explain --state s pending" in next_steps("s", "k", "kubectl", "nats://x", "bin", samples=True)
        assert "explain" not in next_steps("s", "k", "kubectl", "nats://x", "bin", samples=False)


class TestSchemas:
    def test_committed_ones_are_fresh(self):
        assert schemas.stale() == []

    def test_a_status_validates(self):
        schema = json.loads((schemas.SCHEMAS / "status.json").read_text())
        jsonschema.validate(json.loads(msgspec.json.encode(whole_status())), schema)
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({"nodes": []}, schema)

    def test_a_profile_validates(self):
        schema = json.loads((schemas.SCHEMAS / "profile.json").read_text())
        jsonschema.validate({"nodes": [{"count": 3, "cards": [{"count": 8}]}]}, schema)
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({"nodez": []}, schema)


class TestSamples:
    def test_every_example_says_what_to_expect(self):
        assert expected_count(EXAMPLES, controllers=True) == expected_count(EXAMPLES, controllers=False) + 2
        for file in Path(EXAMPLES).glob("*.yaml"):
            assert EXPECTED_LABEL in file.read_text()

    @pytest.mark.parametrize(
        ("pods", "said"),
        [
            pytest.param([], "0 of 1", id="not made yet"),
            pytest.param([pod(labels={EXPECTED_LABEL: "Succeeded"})], "is Running, not Succeeded", id="not there yet"),
            pytest.param([pod(labels={EXPECTED_LABEL: "Running"})], None, id="as it should be"),
            pytest.param([pod(labels={EXPECTED_LABEL: "Pending"}, phase="Pending")], "scheduler", id="not judged yet"),
        ],
    )
    def test_what_is_missing(self, pods, said):
        missing = missing_in(pods, 1)
        assert missing is None if said is None else said in missing


class TestCardsArrived:
    PLANS = node_plans(uniform_profile(1, 2))

    def node(self, *, ids: tuple[str, ...], allocatable: str = "20", healthy: bool = True) -> dict:
        cards = [card(index, healthy=healthy) for index in range(len(ids))]
        named = [msgspec.structs.replace(one, id=CardId(card_id)) for one, card_id in zip(cards, ids, strict=True)]
        return {
            "metadata": {"name": "sim-0", "annotations": {NVIDIA.register_key: register.encode(NVIDIA, named)}},
            "status": {"allocatable": {"nvidia.com/gpu": allocatable}},
        }

    def test_all_there(self):
        assert first_missing([self.node(ids=card_ids(self.PLANS[0]))], self.PLANS) is None

    def test_what_is_missing_is_named(self):
        ids = card_ids(self.PLANS[0])
        assert "sim-0 is not there" in first_missing([], self.PLANS)
        assert NVIDIA.register_key in first_missing([{"metadata": {"name": "sim-0"}}], self.PLANS)
        assert ids[1] in first_missing([self.node(ids=ids[:1])], self.PLANS)
        assert ids[0] in first_missing([self.node(ids=ids, healthy=False)], self.PLANS)
        assert "allocatable" in first_missing([self.node(ids=ids, allocatable="0")], self.PLANS)

    def test_nodes_without_cards_are_not_waited_for(self):
        assert first_missing([], node_plans(uniform_profile(3, 0))) is None
