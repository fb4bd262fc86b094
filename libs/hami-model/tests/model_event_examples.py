"""One example of each event, all fields set: what the golden bytes, the schemas and the property tests start from."""

from __future__ import annotations

from datetime import UTC, datetime

from hami_model import events
from hami_model.cards import Card, MigPlacement, MigProfile
from hami_model.events import Event
from hami_model.lifecycle import ExpiryCause

POD = events.PodRef(namespace="team-a", name="train-0", uid="0f6bd1e2-3c1c-4d0e-9a55-6d5f6a1f7a10")
OTHER = events.PodRef(namespace="team-b", name="serve-1", uid="7a1c2f90-1111-4c0e-8a55-6d5f6a1f7a11")
NODE = "node-1.example.org"
CARD = "GPU-5e9bbe4a-0000-4000-8000-000000000001"
ALLOCATION = "019ad0c3-7c00-7abc-8def-0123456789ab"
TIME = datetime(2026, 11, 29, 20, 15, 30, 250000, tzinfo=UTC)
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
SCHEDULER = events.source("scheduler", "hami-scheduler-0")
AGENT = events.source("node-agent", NODE)
MONITOR = events.source("monitor", NODE)
WEBHOOK = events.source("webhook", "hami-webhook-0")

CONTAINERS = (
    events.ContainerShare(
        container="load",
        kind="init",
        cards=(events.CardShare(card_id=CARD, vendor="NVIDIA", memory_mib=1000, cores_percent=0),),
    ),
    events.ContainerShare(
        container="main",
        kind="app",
        cards=(events.CardShare(card_id=CARD, vendor="NVIDIA", memory_mib=3000, cores_percent=30),),
    ),
)
_ALLOCATION = {
    "time": TIME,
    "traceparent": TRACE,
    "allocation_id": ALLOCATION,
    "pod": POD,
    "node": NODE,
    "containers": CONTAINERS,
}

EXAMPLES: tuple[Event, ...] = (
    events.InventoryReported(
        source=AGENT,
        time=TIME,
        node=NODE,
        vendor="NVIDIA",
        resource_version="4711",
        handoff="late-binding",
        cards=(
            Card(
                id=CARD,
                index=1,
                slots=10,
                memory_mib=81920,
                cores_percent=100,
                model="NVIDIA-A100-SXM4-80GB",
                numa=1,
                mode="mig",
                healthy=True,
                mig_profiles=(
                    MigProfile(
                        name="1g.10gb",
                        memory_mib=9728,
                        cores_percent=14,
                        slice_count=1,
                        placements=(MigPlacement(start=0, size=1),),
                    ),
                ),
            ),
        ),
    ),
    events.CardHealthChanged(
        source=AGENT,
        time=TIME,
        node=NODE,
        vendor="NVIDIA",
        card_id=CARD,
        healthy=False,
        cause="xid",
        xid=79,
        resource_version="4712",
        used_by=(POD,),
    ),
    events.AdmissionAdmitted(
        source=WEBHOOK,
        time=TIME,
        request_uid="c0ffee00-0000-4000-8000-000000000001",
        namespace="team-a",
        generate_name="train-",
        owner="ReplicaSet/train",
        changes=(events.PatchChange(op="add", path="/spec/schedulerName"),),
        warnings=("container main asks for the memory of a whole card",),
    ),
    events.AdmissionRejected(
        source=WEBHOOK,
        time=TIME,
        request_uid="c0ffee00-0000-4000-8000-000000000002",
        namespace="team-a",
        name="train-0",
        reason="container main: nvidia.com/gpumem: 4Gi: memory is counted in MiB; write 4096",
    ),
    events.PlacementPlaced(
        source=SCHEDULER,
        time=TIME,
        traceparent=TRACE,
        pod=POD,
        allocation_id=ALLOCATION,
        node=NODE,
        containers=CONTAINERS,
        scores=(events.NodeScore(node=NODE, score=6.25), events.NodeScore(node="node-2", score=1.5)),
        nodes_considered=3,
        nodes_fitting=2,
        reasons={"card_insufficient_memory": 1},
    ),
    events.PlacementUnschedulable(
        source=SCHEDULER,
        time=TIME,
        traceparent=TRACE,
        pod=POD,
        nodes_considered=3,
        nodes_never_fitting=1,
        reasons={"card_insufficient_memory": 2, "card_type_mismatch": 1},
        reason="2 nodes lack memory, 1 node has no card of the type",
        examples=(events.NodeReasons(node=NODE, reasons=("card_insufficient_memory",)),),
    ),
    events.AllocationReserved(source=SCHEDULER, **_ALLOCATION),
    events.AllocationAllocating(source=SCHEDULER, **_ALLOCATION),
    events.AllocationAllocated(source=AGENT, **_ALLOCATION, enforced_by="preload", verification="verified"),
    events.AllocationFailed(
        source=AGENT,
        **_ALLOCATION,
        reason="card 1 has 2000 MiB free, 4000 MiB are promised; delete a pod of the card",
        used_by=(OTHER,),
    ),
    events.AllocationReleased(source=SCHEDULER, **_ALLOCATION, reason="Succeeded"),
    events.AllocationExpired(
        source=SCHEDULER, **_ALLOCATION, cause=ExpiryCause.BIND_FAILED, reason="409 Conflict: the pod is being deleted"
    ),
    events.UsageSampled(
        source=MONITOR,
        time=TIME,
        pod=POD,
        node=NODE,
        containers=(
            events.ContainerUsage(
                container="main",
                cards=(
                    events.CardUsage(
                        card_id=CARD,
                        memory_promised_bytes=3000 << 20,
                        memory_used_bytes=1234 << 20,
                        cores_promised_percent=30,
                        cores_used_percent=29,
                        enforced_by="preload",
                    ),
                ),
            ),
        ),
    ),
    events.UsageNodeSampled(
        source=MONITOR,
        time=TIME,
        node=NODE,
        cards=(
            events.CardTelemetry(
                card_id=CARD,
                index=1,
                model="NVIDIA-A100-SXM4-80GB",
                memory_total_bytes=81920 << 20,
                memory_promised_bytes=3000 << 20,
                memory_used_bytes=1300 << 20,
                cores_promised_percent=30,
                cores_used_percent=29,
                temperature_celsius=55,
                power_milliwatts=180_500,
                processes=(events.CardProcess(pid=4242, memory_used_bytes=1234 << 20, used_by=POD),),
                used_by=(POD,),
            ),
        ),
    ),
    events.SliceNotEnforced(
        source=MONITOR,
        time=TIME,
        traceparent=TRACE,
        pod=POD,
        node=NODE,
        container="main",
        pid=4243,
        began_at_ticks=987654,
        process="static-train",
        reason="no-slot",
        cards=(events.CardMemory(card_id=CARD, memory_used_bytes=5000 << 20),),
    ),
    events.OutOfBandUser(
        source=MONITOR,
        time=TIME,
        traceparent=TRACE,
        node=NODE,
        pid=4244,
        began_at_ticks=987655,
        process="miner",
        user="other-pod",
        pod=POD,
        cards=(events.CardMemory(card_id=CARD, memory_used_bytes=700 << 20),),
    ),
)
