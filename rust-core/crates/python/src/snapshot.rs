//! Snapshots of the state.

use placement::snapshot::{self, Answer, Operation, Question, SnapshotError};
use placement::Candidates;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// Pods with the names of their candidates; None: all nodes.
pub(crate) type Questions = Vec<(placement::PodAsk, Option<Vec<String>>)>;

/// The file of a state, with what it answers to these questions.
pub(crate) fn write(mut cluster: placement::Cluster, questions: Questions, anonymise: bool) -> Vec<u8> {
    let mut snapshot = cluster.snapshot();
    for (pod, candidates) in questions {
        let mut question = Question { pod, candidates, answer: None };
        let decision =
            question.with_candidates(|pod, candidates: Candidates<'_>| cluster.what_if(pod, candidates));
        question.answer = Some(Answer::of(&decision));
        snapshot.push(Operation::WhatIf(question));
    }
    if anonymise { snapshot.anonymised() } else { snapshot }.write()
}

/// The state of a file, before its operations.
pub(crate) fn read(bytes: &[u8]) -> PyResult<placement::Cluster> {
    let refused = |error: SnapshotError| PyValueError::new_err(error.to_string());
    let snapshot = snapshot::read(bytes).map_err(refused)?;
    placement::Cluster::from_snapshot(&snapshot).map_err(refused)
}
