//! What the engine decides.

use std::collections::BTreeMap;
use std::sync::Arc;

use placement::{Decision, FailedNodes, Notes};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyString};

use crate::values::Slice;

/// The pod fits.
#[pyclass(frozen, module = "hami_engine")]
pub(crate) struct Placement {
    decision: Arc<Decision>,
    container_count: usize,
}

/// The pod fits on no candidate.
#[pyclass(frozen, module = "hami_engine")]
pub(crate) struct Rejection {
    decision: Arc<Decision>,
}

/// Either of them.
#[derive(IntoPyObject)]
pub(crate) enum Answer {
    Placed(Placement),
    Rejected(Rejection),
}

impl Answer {
    pub(crate) fn new(decision: Arc<Decision>, pod: &placement::PodAsk) -> Self {
        if decision.chosen().is_some() {
            Self::Placed(Placement { decision, container_count: pod.container_count() })
        } else {
            Self::Rejected(Rejection { decision })
        }
    }
}

fn to_dict<'py, V: IntoPyObject<'py>>(
    py: Python<'py>,
    pairs: Vec<(&str, V)>,
) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    for (name, value) in pairs {
        dict.set_item(name, value)?;
    }
    Ok(dict)
}

/// By node its text; nodes of one text share the string.
fn texts_by_node<'py>(py: Python<'py>, failed: &FailedNodes<'_>) -> PyResult<Bound<'py, PyDict>> {
    let texts: Vec<_> = failed.texts.iter().map(|text| PyString::new(py, text)).collect();
    let dict = PyDict::new(py);
    for (node, text) in &failed.nodes {
        dict.set_item(node, &texts[*text])?;
    }
    Ok(dict)
}

/// Sentences by code.
pub(crate) fn sentences(notes: Notes) -> BTreeMap<&'static str, &'static str> {
    notes.iter().map(|note| (note.code(), note.sentence())).collect()
}

#[pymethods]
impl Placement {
    /// The chosen node.
    #[getter]
    fn node(&self) -> &str {
        self.decision.chosen().map_or("", |(node, _)| node)
    }

    /// Its score before this pod.
    #[getter]
    fn score(&self) -> f32 {
        self.decision.chosen().map_or(0.0, |(_, score)| score)
    }

    /// `containers[i]` are the slices of container i of the ask, in the order they were chosen.
    #[getter]
    fn containers(&self) -> Vec<Vec<Slice>> {
        let mut containers = vec![Vec::new(); self.container_count];
        for share in self.decision.shares() {
            containers[usize::from(share.container)].push(Slice::from(share));
        }
        containers
    }

    /// At most ten nodes with their scores, best first.
    #[getter]
    fn best_scores(&self) -> Vec<(&str, f32)> {
        self.decision.best().collect()
    }

    /// What is to be said about the choice of the cards: a sentence by code. Most often nothing.
    #[getter]
    fn notes(&self) -> BTreeMap<&'static str, &'static str> {
        sentences(self.decision.notes())
    }

    /// How many candidates fit.
    #[getter]
    fn fitting_nodes(&self) -> usize {
        self.decision.fitting_nodes()
    }

    /// How many candidates there were, each name once.
    #[getter]
    fn candidate_nodes(&self) -> usize {
        self.decision.candidate_nodes()
    }

    /// Score of every node that fits, by name.
    fn node_scores<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        to_dict(py, self.decision.node_scores())
    }

    /// Text for every node that does not fit, by name.
    fn failed_nodes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        texts_by_node(py, &self.decision.failed(None))
    }

    /// Reason code and on how many nodes it was met, sorted by code.
    fn tally(&self) -> Vec<(&'static str, usize)> {
        self.decision.tally()
    }
}

#[pymethods]
impl Rejection {
    /// Text by node for those that may yet fit: something may end, heal, be uncordoned or register.
    fn not_now<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        texts_by_node(py, &self.decision.failed(Some(false)))
    }

    /// `not_now()` as a JSON object.
    fn not_now_json<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, self.decision.failed(Some(false)).to_json().as_bytes())
    }

    /// Text by node for those that would not fit were they empty, healthy and uncordoned.
    fn never<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        texts_by_node(py, &self.decision.failed(Some(true)))
    }

    /// `never()` as a JSON object.
    fn never_json<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, self.decision.failed(Some(true)).to_json().as_bytes())
    }

    /// How many nodes never fit.
    #[getter]
    fn never_nodes(&self) -> usize {
        self.decision.never_count()
    }

    /// The first `limit` nodes by name, each with its text.
    fn examples(&self, limit: usize) -> Vec<(String, String)> {
        let failed = self.decision.failed(None);
        failed.iter().take(limit).map(|(node, text)| (node.into(), text.into())).collect()
    }

    /// Reason code, on how many nodes it was met, and the first `limit` of these by name; sorted by code.
    fn nodes_by_reason(&self, limit: usize) -> Vec<(&'static str, usize, Vec<&str>)> {
        let told = self.decision.nodes_by_reason(limit).into_iter();
        told.map(|(reason, count, names)| (reason.code(), count, names)).collect()
    }

    /// Reason code and on how many nodes it was met, sorted by code.
    fn tally(&self) -> Vec<(&'static str, usize)> {
        self.decision.tally()
    }

    /// How many candidates there were, each name once.
    #[getter]
    fn candidate_nodes(&self) -> usize {
        self.decision.candidate_nodes()
    }
}
