# Types of the compiled engine. Memory is MiB, cores are percent of one card. What each does is documented at runtime
# (`help(hami_engine.Cluster)`). A value out of range raises ValueError, one beyond 64 bits OverflowError.

from collections.abc import Sequence
from typing import Literal, TypeAlias, final

__all__ = [
    "Ask",
    "Card",
    "CardConstraint",
    "CardUsage",
    "CardVerdict",
    "Ceiling",
    "Change",
    "Cluster",
    "ContainerAsk",
    "ContainerSlices",
    "Explanation",
    "Family",
    "MigClaim",
    "MigProfile",
    "NodeVerdict",
    "Placement",
    "PodAsk",
    "PodBooking",
    "QuotaVerdict",
    "ReasonInfo",
    "Rejection",
    "Slice",
    "WorkloadShape",
    "list_reasons",
    "policy_names",
    "reasons_text",
    "run_command",
]

ContainerKind: TypeAlias = Literal["init", "sidecar", "app"]

@final
class Family:
    # One family of accelerators: what distinguishes it by data. Asks and cards name it by its word.

    def __new__(
        cls,
        *,
        word: str,
        model_contains: str = "",  # only cards whose model contains it serve, whatever the case; empty: all
        whole_card_is_exclusive: bool = True,  # all cores of a whole card: only an unused one
        zero_cores_need_free_cores: bool = True,  # no cores: not where all of them are given away
        most_cores_percent: int = 100,  # more is read as this
        partitioned_mode: str = "",  # mode of cards that are partitioned in hardware; empty: none is
        has_pair_scores: bool = False,  # its nodes tell how well their cards are connected: `topology-aware` uses it
        selection: str = "first",  # "groups": cards of one group; "pairs": whole modules of two
        group_weight: float = 0.0,  # what a node's score gains by cards of one group
    ) -> Family: ...

@final
class Card:
    # One card as its node registered it. Cards of a node are given in the order of its inventory.

    def __new__(
        cls,
        *,
        id: str,  # noqa: A002 # the wire's word
        vendor: str,
        model: str,
        index: int,
        slots: int,
        memory_mib: int,
        cores_percent: int,
        numa: int = 0,
        mode: str = "",
        healthy: bool = True,
        cordoned: bool = False,
        mig_profiles: Sequence[MigProfile] = ...,  # what a card in MIG mode offers
        group: str | None = None,  # of the node's groups of cards; None: it names none, empty: it cannot be read
    ) -> Card: ...

@final
class MigProfile:
    # A kind of instance that a card in MIG mode offers. Placements: start and size in memory slices, of which there
    # are at most 64.

    def __new__(
        cls,
        *,
        name: str,
        memory_mib: int,
        cores_percent: int,
        slice_count: int,
        placements: Sequence[tuple[int, int]],
    ) -> MigProfile: ...
    name: str
    memory_mib: int
    cores_percent: int
    slice_count: int
    placements: list[tuple[int, int]]

@final
class MigClaim:
    # An instance that a pod claims beyond its slices; without profile and placement one that nobody can find.

    def __new__(cls, *, card_id: str, profile: str = "", placement: tuple[int, int] | None = None) -> MigClaim: ...

@final
class Ask:
    # What one container asks of one vendor, per card. `memory_percent` None: not given; `memory_mib` 0: not given.

    def __new__(
        cls,
        *,
        vendor: str,
        count: int,
        memory_mib: int = 0,
        memory_percent: int | None = None,
        cores_percent: int = 0,
        mode: str = "",  # only cards in this mode serve, and a node without them says so once
    ) -> Ask: ...

@final
class ContainerAsk:
    def __new__(cls, *, name: str, kind: ContainerKind, asks: Sequence[Ask] = ...) -> ContainerAsk: ...

@final
class CardConstraint:
    # Which cards of a vendor a pod accepts. None: no constraint. Rules: models match by case-insensitive substring.

    def __new__(
        cls,
        *,
        use_models: Sequence[str] | None = None,
        avoid_models: Sequence[str] | None = None,
        use_ids: Sequence[str] | None = None,
        avoid_ids: Sequence[str] | None = None,
        modes: str | None = None,
    ) -> CardConstraint: ...

@final
class PodAsk:
    # A pod to place. Containers: init containers (one-shot and sidecars) in order, then app containers.

    def __new__(
        cls,
        *,
        uid: str,
        namespace: str,
        name: str,
        containers: Sequence[ContainerAsk],
        node_policy: str = "binpack",
        card_policy: str = "spread",
        numa_bind: bool = False,
        constraints: dict[str, CardConstraint] | None = None,  # by vendor
        weights: tuple[int, int, int] = ...,  # of slots, cores and memory in the score of a card; all 1
        host: tuple[int, int] = ...,  # CPU (1/1000 core) and MiB it takes of its node; only `fgd` looks at it
    ) -> PodAsk: ...

@final
class Slice:
    # One card's share given to one container.

    def __new__(
        cls,
        *,
        card_id: str,
        vendor: str,
        memory_mib: int,
        cores_percent: int,
        profile: str = "",  # with `placement`, start and size in memory slices: the instance of a card in MIG mode
        placement: tuple[int, int] | None = None,
    ) -> Slice: ...
    card_id: str
    vendor: str
    memory_mib: int
    cores_percent: int
    profile: str
    placement: tuple[int, int] | None

@final
class ContainerSlices:
    def __new__(cls, *, kind: ContainerKind, slices: Sequence[Slice] = ...) -> ContainerSlices: ...
    kind: ContainerKind
    slices: list[Slice]

@final
class WorkloadShape:
    # Pods of one shape that the policy `fgd` expects. `weight`: how often, in proportion to the other shapes.
    # `ask` None: pods without cards. `host`: CPU (1/1000 core) and MiB that one takes of its node.

    def __new__(
        cls,
        *,
        weight: int,
        ask: Ask | None = None,
        constraint: CardConstraint | None = None,
        host: tuple[int, int] = ...,
    ) -> WorkloadShape: ...

@final
class Placement:
    # The pod fits. `containers[i]` belongs to container i of the ask.

    node: str
    score: float
    containers: list[list[Slice]]
    best_scores: list[tuple[str, float]]  # at most ten, best first
    fitting_nodes: int
    candidate_nodes: int
    notes: dict[str, str]  # code -> sentence: what is to be said about the choice of the cards

    def node_scores(self) -> dict[str, float]: ...
    def failed_nodes(self) -> dict[str, str]: ...
    def tally(self) -> list[tuple[str, int]]: ...

@final
class Rejection:
    # The pod fits on no candidate. Texts are those kube-scheduler shows.

    def not_now(self) -> dict[str, str]: ...  # node -> reasons; may change when something ends
    def never(self) -> dict[str, str]: ...  # node -> reasons; would not fit on the empty node either
    def not_now_json(self) -> bytes: ...  # the same as JSON objects, built once per text
    def never_json(self) -> bytes: ...
    never_nodes: int
    def examples(self, limit: int) -> list[tuple[str, str]]: ...  # the first nodes by name with their reasons
    def nodes_by_reason(self, limit: int) -> list[tuple[str, int, list[str]]]: ...  # code, count, first names
    def tally(self) -> list[tuple[str, int]]: ...  # reason code -> number of nodes, sorted by code
    candidate_nodes: int

@final
class CardUsage:
    card_id: str
    vendor: str
    model: str
    index: int
    numa: int
    mode: str
    healthy: bool
    cordoned: bool
    blocked: bool
    slots: int
    memory_mib: int
    cores_percent: int
    used_slots: int
    used_memory_mib: int
    used_cores_percent: int
    mig_profiles: list[MigProfile]
    instances: list[tuple[str, tuple[int, int]]]  # in use: profile, start and size; in the order of their places

@final
class QuotaVerdict:
    # What the pod would hold of its namespace's quota of one vendor, up to and with one card. Limits None: none.

    needed_memory_mib: int
    needed_cores_percent: int
    used_memory_mib: int  # by other pods
    used_cores_percent: int
    memory_limit_mib: int | None
    cores_limit_percent: int | None

@final
class CardVerdict:
    # Why one card of one node was taken or not, for the first container that does not fit. Free is what the card has
    # less what is used, this pod's earlier containers included.

    card_id: str
    looked_at: bool  # the decision came to this card; it ends at the first cards that are enough
    code: str | None  # the first check that failed; None: the card fits
    codes: list[str]  # every check that failed
    asked: int | None  # these three in the unit of `code`: MiB, percent or slots, of the card or of the quota
    used: int | None
    total: int | None
    needed_memory_mib: int
    needed_cores_percent: int
    used_memory_mib: int
    used_cores_percent: int
    used_slots: int
    memory_mib: int
    cores_percent: int
    slots: int
    quota: QuotaVerdict | None

@final
class Change:
    # A change that makes the pod fit on one node: it was tried, and with one unit less of any part of it the pod does
    # not fit. Fields that are not about its kind are empty. Order of changes: by cost, then restore-cards, raise-quota,
    # lower-ask, end-pods, then by name of the node.

    kind: Literal["restore-cards", "raise-quota", "lower-ask", "end-pods"]
    node: str
    cards: list[str]  # those the pod would then get
    cost: int  # millionths: the share by which numbers change; half for each pod that ends and card that is mended
    faulty_cards: list[tuple[str, list[Literal["unhealthy", "cordoned"]]]]
    namespace: str
    vendor: str
    container: str
    numbers: dict[str, tuple[int, int]]  # memory_mib, memory_percent, cores_percent, count -> what it is, would be
    pods: list[str]  # UIDs

    def one_less(self) -> list[Change]: ...
    def apply(self, cluster: Cluster, pod: PodAsk) -> PodAsk: ...  # in a copy of the state; returns the pod to place
    def sentence(self, pod_names: dict[str, str] | None = None) -> str: ...

@final
class NodeVerdict:
    node: str
    fits: bool
    never: bool  # would not fit on the empty, healthy, uncordoned node either
    score: float | None
    container: str | None  # the first that does not fit
    reason: str
    cards: list[CardVerdict]
    notes: dict[str, str]  # code -> sentence: where the pod fits, about the choice of its cards
    searched: bool  # whether the smallest change was looked for
    changes: list[Change]  # of each kind that suffices the smallest; the smallest of all first

@final
class Ceiling:
    # A number of an ask beyond what the largest card, or for `count` the largest node, of the candidates has.

    container: str
    vendor: str
    field: Literal["memory_mib", "cores_percent", "count"]
    asked: int
    largest: int
    sentence: str

@final
class Explanation:
    nodes: list[NodeVerdict]  # where the pod fits by name, then those that miss least
    candidate_nodes: int
    fitting_nodes: int
    never_nodes: int  # counted where the pod fits on no candidate
    texts: dict[str, int]  # text of a node -> number of nodes
    searched_nodes: int  # nodes on which the smallest change was looked for
    change: Change | None  # the smallest of these nodes
    ceilings: list[Ceiling]

    def sentence(self, pod_names: dict[str, str] | None = None) -> str: ...

@final
class ReasonInfo:
    code: str
    label: str
    sentence: str
    never: str  # when cards that meet it never serve the pod; empty: it may always pass
    remedy: str

@final
class PodBooking:
    uid: str
    namespace: str
    node: str
    state: Literal["reserved", "bound"]

def list_reasons() -> list[ReasonInfo]: ...
def reasons_text(counts: dict[str, int], cards: int) -> str: ...  # "2/3 CardNotHealth, ..."; code -> cards that met it
def policy_names(policy: str, word: str) -> bool: ...  # a word or a comma chain of words
def run_command(arguments: Sequence[str]) -> int: ...  # hami-engine; its exit status

@final
class Cluster:
    # The kept state. Every method is one atomic step; all are safe from any thread.

    def __new__(cls, *, families: Sequence[Family]) -> Cluster: ...
    def set_node(
        self, node: str, cards: Sequence[Card], *, pair_scores: dict[str, dict[str, int]] = ...
    ) -> None: ...  # pair_scores: by card and peer, how well the cards are connected; absent: the node tells none
    def remove_node(self, node: str) -> bool: ...
    def set_card_health(self, node: str, card_id: str, healthy: bool) -> bool: ...
    def set_node_host(self, node: str, free: tuple[int, int] | None) -> bool: ...  # CPU (1/1000 core), MiB
    def set_workload(self, shapes: Sequence[WorkloadShape] | None) -> None: ...  # None: as the booked pods
    def fragmentation(self, node: str) -> float | None: ...  # cards that an expected pod finds useless, in the mean
    def set_card_state(self, node: str, card_id: str, *, healthy: bool, cordoned: bool) -> bool: ...
    def nodes(self) -> list[str]: ...
    def node_cards(self, node: str) -> list[CardUsage]: ...
    def set_quota(
        self, namespace: str, vendor: str, *, memory_mib: int | None = None, cores_percent: int | None = None
    ) -> None: ...
    def quota_limits(self, namespace: str, vendor: str) -> tuple[int | None, int | None]: ...
    def quota_used(self, namespace: str, vendor: str) -> tuple[int, int]: ...
    def charge(
        self,
        *,
        uid: str,
        namespace: str,
        node: str,
        containers: Sequence[ContainerSlices],
        init_done: bool = False,
        blocked_cards: Sequence[str] = ...,
        claims: Sequence[MigClaim] = ...,
    ) -> None: ...  # books a bound pod, in place of whatever was booked for its uid (a reservation too)
    def reserve(self, pod: PodAsk, candidates: Sequence[str] | None = None) -> Placement | Rejection: ...
    # reserve: places the pod and books it as reserved, in place of whatever was booked for its uid. A pod that fits
    # nowhere loses its earlier booking too.
    def confirm(self, uid: str) -> bool: ...  # reserved -> bound
    def release(self, uid: str) -> bool: ...
    def booking(self, uid: str) -> PodBooking | None: ...
    def booked(self, uid: str) -> dict[str, tuple[int, int, int]]: ...  # card id -> memory MiB, cores percent, slots
    def pods(self, node: str) -> list[PodBooking]: ...
    def what_if(self, pod: PodAsk, candidates: Sequence[str] | None = None) -> Placement | Rejection: ...
    def snapshot(
        self, *, questions: Sequence[tuple[PodAsk, Sequence[str] | None]] = ..., anonymise: bool = False
    ) -> bytes: ...  # JSON, replayed by `hami-engine`; each question (pod, candidates) with its answer as of now
    def record(self, most: int) -> None: ...  # keeps the last changes and decisions; 0 ends it
    def recorded(self, *, anonymise: bool = False) -> bytes | None: ...  # a snapshot: the state before them, and them
    @staticmethod
    def from_snapshot(snapshot: bytes) -> Cluster: ...  # ValueError: names the place that is malformed
    def explain(
        self, pod: PodAsk, candidates: Sequence[str] | None = None, *, limit: int | None = None, searched: int = 16
    ) -> Explanation: ...
    # explain: `limit` nodes are told card by card; on the `searched` nodes that miss least the smallest change is
    # looked for. Works on a copy: nobody waits for it.
    def copy(self) -> Cluster: ...  # shares what neither changes: the way to try things out
    def check_invariants(self) -> list[str]: ...  # empty when the kept sums equal a recomputation
