//! The kept state.

use std::collections::BTreeMap;

use placement::snapshot::{BookingRecord, NodeRecord, Operation, Question, QuotaRecord};
use placement::{
    BookingState, BookingView, BoundClaim, BoundPod, Candidates, CardScores, CardSpec, CardView, Detail,
    Families, HostAmount,
};
use pyo3::prelude::*;
use pyo3::pybacked::{PyBackedBytes, PyBackedStr};
use pyo3::types::{PyBytes, PyDict};

use crate::answers::Answer;
use crate::enter::{invalid, Guarded};
use crate::explanation::Explanation;
use crate::family::Family;
use crate::mig::{write_place, MigClaim, MigProfile, Place};
use crate::snapshot;
use crate::values::{Card, ContainerSlices, PodAsk};
use crate::workload::WorkloadShape;

/// One card with what is booked on it.
#[pyclass(frozen, get_all, module = "hami_engine")]
pub(crate) struct CardUsage {
    card_id: String,
    vendor: String,
    model: String,
    index: u32,
    numa: i32,
    mode: String,
    healthy: bool,
    cordoned: bool,
    blocked: bool,
    slots: i32,
    memory_mib: i64,
    cores_percent: i32,
    used_slots: i64,
    used_memory_mib: i64,
    used_cores_percent: i64,
    mig_profiles: Vec<MigProfile>,
    instances: Vec<(String, Place)>,
}

impl From<CardView> for CardUsage {
    fn from(card: CardView) -> Self {
        let CardView { spec, blocked, used, instances } = card;
        Self {
            card_id: spec.id,
            vendor: spec.vendor,
            model: spec.model,
            index: spec.index,
            numa: spec.numa,
            mode: spec.mode,
            healthy: spec.healthy,
            cordoned: spec.cordoned,
            blocked,
            slots: spec.slots,
            memory_mib: spec.memory_mib,
            cores_percent: spec.cores_percent,
            used_slots: used.slots,
            used_memory_mib: used.memory_mib,
            used_cores_percent: used.cores_percent,
            mig_profiles: spec.mig_profiles.into_iter().map(MigProfile).collect(),
            instances: instances
                .into_iter()
                .map(|instance| (instance.profile, write_place(instance.placement)))
                .collect(),
        }
    }
}

/// One pod's booking.
#[pyclass(frozen, get_all, module = "hami_engine")]
pub(crate) struct PodBooking {
    uid: String,
    namespace: String,
    node: String,
    state: &'static str,
}

impl From<BookingView<'_>> for PodBooking {
    fn from(booking: BookingView<'_>) -> Self {
        Self {
            uid: booking.uid.into(),
            namespace: booking.namespace.into(),
            node: booking.node.into(),
            state: match booking.state {
                BookingState::Reserved => "reserved",
                BookingState::Bound => "bound",
            },
        }
    }
}

/// Runs `step` with the names as candidates, or with all nodes.
fn with_candidates<T>(names: Option<&[PyBackedStr]>, step: impl FnOnce(Candidates<'_>) -> T) -> T {
    match names {
        None => step(Candidates::All),
        Some(names) => {
            let names: Vec<&str> = names.iter().map(|name| &**name).collect();
            step(Candidates::Named(&names))
        }
    }
}

/// The kept state.
#[pyclass(frozen, module = "hami_engine")]
pub(crate) struct Cluster(Guarded);

impl Cluster {
    pub(crate) fn guarded(&self) -> &Guarded {
        &self.0
    }
}

#[pymethods]
impl Cluster {
    /// `ValueError` when two families have the same word.
    #[new]
    #[pyo3(signature = (*, families))]
    fn new(families: Vec<PyRef<'_, Family>>) -> PyResult<Self> {
        let families = Families::new(families.iter().map(|family| family.0.clone()).collect());
        families.map(|families| Self(Guarded::new(placement::Cluster::new(families)))).map_err(invalid)
    }

    /// Registers the cards of a node, in the order of its inventory, and the scores between them, by card and peer,
    /// in place of those it had. Bookings stay.
    ///
    /// Without `pair_scores` the node has none. Scores of cards that are not in the inventory are left out.
    /// `ValueError` when a card id comes twice; nothing is changed then.
    #[pyo3(signature = (node, cards, *, pair_scores=BTreeMap::new()))]
    fn set_node(
        &self,
        py: Python<'_>,
        node: &str,
        cards: Vec<PyRef<'_, Card>>,
        pair_scores: BTreeMap<String, BTreeMap<String, i64>>,
    ) -> PyResult<()> {
        let specs: Vec<CardSpec> = cards.iter().map(|card| card.0.clone()).collect();
        let scores: Vec<CardScores> =
            pair_scores.into_iter().map(|(card, peers)| (card, peers.into_iter().collect())).collect();
        let outcome = self.0.change(
            py,
            |cluster| cluster.set_node_with_pair_scores(node, &specs, &scores),
            |outcome| outcome.is_ok().then(|| Operation::SetNode(NodeRecord::of(node, &specs, &scores))),
        )?;
        outcome.map_err(invalid)
    }

    /// Takes a node out of placement; bookings on it stay. False when it was not registered.
    fn remove_node(&self, py: Python<'_>, node: &str) -> PyResult<bool> {
        self.0.change(
            py,
            |cluster| cluster.remove_node(node),
            |_| Some(Operation::RemoveNode { name: node.into() }),
        )
    }

    /// False when the node has not registered such a card. The next `set_node` decides again.
    fn set_card_health(&self, py: Python<'_>, node: &str, card_id: &str, healthy: bool) -> PyResult<bool> {
        self.0.change(
            py,
            |cluster| cluster.set_card_health(node, card_id, healthy),
            |_| Some(Operation::SetCardHealth { node: node.into(), card_id: card_id.into(), healthy }),
        )
    }

    /// What of a node's host is free: thousandths of a core and MiB. None: not known. False when there is no such node.
    ///
    /// Only the policy `fgd` looks at it, and no pod is refused for it. The engine keeps no account of it: say it again
    /// whenever it changes.
    #[pyo3(signature = (node, free))]
    fn set_node_host(&self, py: Python<'_>, node: &str, free: Option<(i64, i64)>) -> PyResult<bool> {
        let free = free.map(|(cpu, memory)| HostAmount::new(cpu, memory)).transpose().map_err(invalid)?;
        self.0.change(
            py,
            |cluster| cluster.set_node_host(node, free),
            |_| Some(Operation::SetNodeHost { node: node.into(), free }),
        )
    }

    /// The pods that the policy `fgd` expects. None: pods like those that are booked.
    #[pyo3(signature = (shapes))]
    fn set_workload(&self, py: Python<'_>, shapes: Option<Vec<PyRef<'_, WorkloadShape>>>) -> PyResult<()> {
        let shapes: Option<Vec<_>> =
            shapes.map(|shapes| shapes.iter().map(|shape| shape.0.clone()).collect());
        self.0.change(
            py,
            |cluster| cluster.set_workload(shapes.clone()),
            |()| Some(Operation::SetWorkload { shapes: shapes.clone() }),
        )
    }

    /// How many free cards of a node an expected pod finds useless, in the mean. None for an unknown node.
    fn fragmentation(&self, py: Python<'_>, node: &str) -> PyResult<Option<f64>> {
        self.0.short(py, |cluster| cluster.fragmentation(node))
    }

    /// Sets both states of a card. False when the node has not registered it. The next `set_node` decides again.
    #[pyo3(signature = (node, card_id, *, healthy, cordoned))]
    fn set_card_state(
        &self,
        py: Python<'_>,
        node: &str,
        card_id: &str,
        healthy: bool,
        cordoned: bool,
    ) -> PyResult<bool> {
        self.0.short(py, |cluster| cluster.set_card_faults(node, card_id, !healthy, cordoned))
    }

    /// Names of the registered nodes, sorted.
    fn nodes(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        self.0.short(py, |cluster| cluster.nodes().into_iter().map(String::from).collect())
    }

    /// Cards in the order of the inventory; none for a node that is not registered.
    fn node_cards(&self, py: Python<'_>, node: &str) -> PyResult<Vec<CardUsage>> {
        self.0.short(py, |cluster| cluster.node_cards(node).into_iter().map(CardUsage::from).collect())
    }

    /// Limits on what all pods of a namespace hold of one vendor. None: no limit; 0 blocks.
    #[pyo3(signature = (namespace, vendor, *, memory_mib=None, cores_percent=None))]
    fn set_quota(
        &self,
        py: Python<'_>,
        namespace: &str,
        vendor: &str,
        memory_mib: Option<i64>,
        cores_percent: Option<i64>,
    ) -> PyResult<()> {
        let record =
            || QuotaRecord { namespace: namespace.into(), vendor: vendor.into(), memory_mib, cores_percent };
        self.0.change(
            py,
            |cluster| cluster.set_quota(namespace, vendor, memory_mib, cores_percent),
            |()| Some(Operation::SetQuota(record())),
        )
    }

    /// MiB and percent that the quota of a namespace allows of one vendor. None: no limit.
    fn quota_limits(
        &self,
        py: Python<'_>,
        namespace: &str,
        vendor: &str,
    ) -> PyResult<(Option<i64>, Option<i64>)> {
        self.0.short(py, |cluster| cluster.quota_limits(namespace, vendor))
    }

    /// MiB and percent that the pods of a namespace hold of one vendor, reservations too.
    fn quota_used(&self, py: Python<'_>, namespace: &str, vendor: &str) -> PyResult<(i64, i64)> {
        self.0.short(py, |cluster| cluster.quota_used(namespace, vendor))
    }

    /// Books a bound pod in place of whatever was booked for its UID. Containers: as in `PodAsk`.
    ///
    /// Cards the node does not know count once it registers them. `blocked_cards` take no new pods while this
    /// booking stands. `claims`: MIG instances beyond its slices; they are held and cost nothing.
    #[pyo3(signature = (*, uid, namespace, node, containers, init_done=false, blocked_cards=Vec::new(), claims=Vec::new()))]
    #[allow(clippy::too_many_arguments, reason = "keywords of a call")]
    fn charge(
        &self,
        py: Python<'_>,
        uid: &str,
        namespace: &str,
        node: &str,
        containers: Vec<PyRef<'_, ContainerSlices>>,
        init_done: bool,
        blocked_cards: Vec<String>,
        claims: Vec<PyRef<'_, MigClaim>>,
    ) -> PyResult<()> {
        let containers =
            containers.iter().map(|container| container.shares()).collect::<PyResult<Vec<_>>>()?;
        let claims: Vec<BoundClaim> = claims.iter().map(|claim| claim.0.clone()).collect();
        let pod = BoundPod {
            uid,
            namespace,
            node,
            containers: &containers,
            init_done,
            blocked_cards: &blocked_cards,
            claims: &claims,
        };
        self.0.change(
            py,
            |cluster| cluster.charge(&pod),
            |()| Some(Operation::Charge(BookingRecord::of(&pod))),
        )
    }

    /// Places a pod and books it as reserved in place of whatever was booked for its UID.
    ///
    /// `candidates`: names of nodes, in any order; None: every registered node. A pod that fits nowhere loses its
    /// earlier booking too.
    #[pyo3(signature = (pod, candidates=None))]
    fn reserve(
        &self,
        py: Python<'_>,
        pod: PyRef<'_, PodAsk>,
        candidates: Option<Vec<PyBackedStr>>,
    ) -> PyResult<Answer> {
        let ask = &pod.0;
        let names = candidates.as_deref();
        let decision = self.0.change(
            py,
            |cluster| with_candidates(names, |candidates| cluster.reserve(ask, candidates)),
            |decision| {
                let candidates = names.map(|names| names.iter().map(ToString::to_string).collect());
                let answer = Some(placement::snapshot::Answer::of(decision));
                Some(Operation::Reserve(Question { pod: ask.clone(), candidates, answer }))
            },
        )?;
        Ok(Answer::new(decision, ask))
    }

    /// Makes a reservation bound. False when nothing is booked for the UID.
    fn confirm(&self, py: Python<'_>, uid: &str) -> PyResult<bool> {
        self.0.change(py, |cluster| cluster.confirm(uid), |_| Some(Operation::Confirm { uid: uid.into() }))
    }

    /// Gives back what is booked for a UID. False when nothing is.
    fn release(&self, py: Python<'_>, uid: &str) -> PyResult<bool> {
        self.0.change(py, |cluster| cluster.release(uid), |_| Some(Operation::Release { uid: uid.into() }))
    }

    /// What is booked for a UID: where, and how firmly.
    fn booking(&self, py: Python<'_>, uid: &str) -> PyResult<Option<PodBooking>> {
        self.0.short(py, |cluster| cluster.booking(uid).map(PodBooking::from))
    }

    /// What a UID holds: card id to MiB, percent of cores, slots.
    fn booked<'py>(&self, py: Python<'py>, uid: &str) -> PyResult<Bound<'py, PyDict>> {
        let held: Vec<(String, (i64, i64, i64))> = self.0.short(py, |cluster| {
            let amount = |held: placement::Amount| (held.memory_mib, held.cores_percent, held.slots);
            cluster.booked(uid).into_iter().map(|(id, held)| (id.into(), amount(held))).collect()
        })?;
        let dict = PyDict::new(py);
        for (card_id, amount) in held {
            dict.set_item(card_id, amount)?;
        }
        Ok(dict)
    }

    /// Bookings on a node, sorted by UID.
    fn pods(&self, py: Python<'_>, node: &str) -> PyResult<Vec<PodBooking>> {
        self.0.short(py, |cluster| cluster.pods(node).into_iter().map(PodBooking::from).collect())
    }

    /// Answers as `reserve` would and changes nothing. The pod's own booking does not count against it.
    #[pyo3(signature = (pod, candidates=None))]
    fn what_if(
        &self,
        py: Python<'_>,
        pod: PyRef<'_, PodAsk>,
        candidates: Option<Vec<PyBackedStr>>,
    ) -> PyResult<Answer> {
        let ask = &pod.0;
        let decision = self.0.long(py, |cluster| {
            with_candidates(candidates.as_deref(), |candidates| cluster.what_if(ask, candidates))
        })?;
        Ok(Answer::new(decision, ask))
    }

    /// What the candidates say to a pod, card by card, and the smallest change that would make it fit. Works on a
    /// copy, so that nobody waits for it.
    ///
    /// `limit`: at most so many nodes are told card by card. `searched`: on at most so many nodes, those that miss
    /// least, the smallest change is looked for.
    #[pyo3(signature = (pod, candidates=None, *, limit=None, searched=16))]
    fn explain(
        &self,
        py: Python<'_>,
        pod: PyRef<'_, PodAsk>,
        candidates: Option<Vec<PyBackedStr>>,
        limit: Option<usize>,
        searched: usize,
    ) -> PyResult<Explanation> {
        let ask = &pod.0;
        let detail = Detail { nodes: limit.unwrap_or(usize::MAX), searched };
        let mut copy = self.0.long(py, |cluster| cluster.clone())?;
        let told = py.detach(|| {
            with_candidates(candidates.as_deref(), |candidates| copy.explain(ask, candidates, detail))
        });
        Ok(Explanation::from(told))
    }

    /// The same state once more; neither sees what happens to the other. What neither changes is shared, so a copy
    /// costs far less than the state.
    fn copy(&self, py: Python<'_>) -> PyResult<Self> {
        self.0.long(py, |cluster| cluster.clone()).map(|cluster| Self(Guarded::new(cluster)))
    }

    /// Every difference between a kept sum and its recomputation from the bookings; empty when all is well.
    fn check_invariants(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        self.0.long(py, |cluster| cluster.check_invariants())
    }

    /// The state as one JSON file, the same bytes for the same state. `hami-engine` replays it.
    ///
    /// `questions`: pods with the names of their candidates (None: all nodes), each answered as `what_if` answers now;
    /// the file carries the answers. `anonymise`: names and UIDs become numbers that sort as they did.
    #[pyo3(signature = (*, questions=Vec::new(), anonymise=false))]
    fn snapshot(
        &self,
        py: Python<'_>,
        questions: Vec<(PyRef<'_, PodAsk>, Option<Vec<String>>)>,
        anonymise: bool,
    ) -> PyResult<Py<PyBytes>> {
        let questions = questions.into_iter().map(|(pod, names)| (pod.0.clone(), names)).collect();
        // On a copy: writing takes long, and decisions go on meanwhile.
        let cluster = self.0.long(py, |cluster| cluster.clone())?;
        let bytes = py.detach(|| snapshot::write(cluster, questions, anonymise));
        Ok(PyBytes::new(py, &bytes).unbind())
    }

    /// Keeps the last `most` changes and decisions, with the state before them; 0 ends it. Costs a second booking of
    /// each change.
    fn record(&self, py: Python<'_>, most: usize) -> PyResult<()> {
        self.0.record(py, most)
    }

    /// A snapshot of what is recorded: the state before the last steps, and the steps with their answers. None where
    /// nothing is recorded.
    #[pyo3(signature = (*, anonymise=false))]
    fn recorded(&self, py: Python<'_>, anonymise: bool) -> PyResult<Option<Py<PyBytes>>> {
        let Some(recorded) = self.0.recorded(py)? else { return Ok(None) };
        let bytes = py.detach(|| if anonymise { recorded.anonymised() } else { recorded }.write());
        Ok(Some(PyBytes::new(py, &bytes).unbind()))
    }

    /// The state of a snapshot. `ValueError` names the place where it is malformed.
    #[staticmethod]
    fn from_snapshot(py: Python<'_>, snapshot: PyBackedBytes) -> PyResult<Self> {
        py.detach(|| snapshot::read(&snapshot)).map(|cluster| Self(Guarded::new(cluster)))
    }
}
