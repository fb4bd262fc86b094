//! Changes that would make a pod fit.

use std::collections::BTreeMap;

use placement::{AskField, NodeChange, Shift};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::cluster::Cluster;
use crate::values::PodAsk;

/// Names by UID.
pub(crate) type Names = BTreeMap<String, String>;

/// The name that users know a UID by.
pub(crate) fn name_of(names: Option<&Names>) -> impl Fn(&str) -> String + '_ {
    move |uid| names.and_then(|names| names.get(uid)).cloned().unwrap_or_else(|| uid.into())
}

pub(crate) fn field_word(field: AskField) -> &'static str {
    match field {
        AskField::MemoryMib => "memory_mib",
        AskField::MemoryPercent => "memory_percent",
        AskField::CoresPercent => "cores_percent",
        AskField::Count => "count",
    }
}

fn pair(shift: &Shift) -> (i64, i64) {
    (shift.from, shift.to)
}

/// A change that would make a pod fit on one node. Fields that are not about its kind are empty.
#[pyclass(frozen, module = "hami_engine")]
#[derive(Clone)]
pub(crate) struct Change(pub(crate) NodeChange);

#[pymethods]
impl Change {
    /// `restore-cards`, `raise-quota`, `lower-ask` or `end-pods`.
    #[getter]
    fn kind(&self) -> &'static str {
        match self.0.change {
            placement::Change::RestoreCards { .. } => "restore-cards",
            placement::Change::RaiseQuota { .. } => "raise-quota",
            placement::Change::LowerAsk { .. } => "lower-ask",
            placement::Change::EndPods { .. } => "end-pods",
        }
    }

    /// The node on which the pod would then fit.
    #[getter]
    fn node(&self) -> &str {
        &self.0.node
    }

    /// Ids of the cards it would get, each once.
    #[getter]
    fn cards(&self) -> Vec<String> {
        self.0.cards.clone()
    }

    /// How large the change is, in millionths: the smaller, the better.
    #[getter]
    fn cost(&self) -> i64 {
        self.0.change.cost()
    }

    /// restore-cards: card id and what is wrong with it (`unhealthy`, `cordoned`).
    #[getter]
    fn faulty_cards(&self) -> Vec<(String, Vec<&'static str>)> {
        let placement::Change::RestoreCards { cards } = &self.0.change else { return Vec::new() };
        let faults = |card: &placement::FaultyCard| {
            [(card.unhealthy, "unhealthy"), (card.cordoned, "cordoned")]
                .into_iter()
                .filter_map(|(on, word)| on.then_some(word))
                .collect()
        };
        cards.iter().map(|card| (card.card_id.clone(), faults(card))).collect()
    }

    /// raise-quota: the namespace.
    #[getter]
    fn namespace(&self) -> &str {
        match &self.0.change {
            placement::Change::RaiseQuota { namespace, .. } => namespace,
            _ => "",
        }
    }

    /// raise-quota and lower-ask: the vendor word.
    #[getter]
    fn vendor(&self) -> &str {
        match &self.0.change {
            placement::Change::RaiseQuota { vendor, .. } | placement::Change::LowerAsk { vendor, .. } => {
                vendor
            }
            _ => "",
        }
    }

    /// lower-ask: name of the container.
    #[getter]
    fn container(&self) -> &str {
        match &self.0.change {
            placement::Change::LowerAsk { container, .. } => container,
            _ => "",
        }
    }

    /// raise-quota and lower-ask: by number (`memory_mib`, `cores_percent`, `memory_percent`, `count`), what it is and
    /// what it would have to be.
    #[getter]
    fn numbers<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let numbers = PyDict::new(py);
        match &self.0.change {
            placement::Change::RaiseQuota { memory_mib, cores_percent, .. } => {
                for (word, shift) in [("memory_mib", memory_mib), ("cores_percent", cores_percent)] {
                    if let Some(shift) = shift {
                        numbers.set_item(word, pair(shift))?;
                    }
                }
            }
            placement::Change::LowerAsk { lowered, .. } => {
                for (field, shift) in lowered {
                    numbers.set_item(field_word(*field), pair(shift))?;
                }
            }
            _ => {}
        }
        Ok(numbers)
    }

    /// end-pods: UIDs, from the one that holds least.
    #[getter]
    fn pods(&self) -> Vec<String> {
        match &self.0.change {
            placement::Change::EndPods { uids } => uids.clone(),
            _ => Vec::new(),
        }
    }

    /// Every change that is one unit less than this one.
    fn one_less(&self) -> Vec<Self> {
        let less = self.0.change.one_less().into_iter();
        less.map(|change| Self(NodeChange { change, ..self.0.clone() })).collect()
    }

    /// Makes the change in a copy of the state and returns the pod that then asks.
    fn apply(&self, py: Python<'_>, cluster: &Cluster, pod: &PodAsk) -> PyResult<PodAsk> {
        let asked = cluster.guarded().short(py, |state| self.0.change.apply(state, &self.0.node, &pod.0))?;
        Ok(PodAsk(asked))
    }

    /// "would fit on node-a (card gpu-3) when pod x ends". `pod_names`: by UID.
    #[pyo3(signature = (pod_names=None))]
    fn sentence(&self, pod_names: Option<Names>) -> String {
        self.0.sentence(&name_of(pod_names.as_ref()))
    }
}
