//! The last steps of a state, with the state before them: what was decided can be looked at afterwards.

use std::collections::VecDeque;
use std::sync::Arc;

use super::{Operation, Snapshot};
use crate::cluster::Cluster;

/// One step. Candidates lie apart: many steps in a row are asked about the same nodes.
struct Step {
    operation: Operation,
    candidates: Option<Arc<[String]>>,
}

/// A copy of a cluster that lags behind it by its last steps, at most so many. The copy shares with the cluster what
/// neither has changed.
pub struct Recording {
    before: Cluster,
    steps: VecDeque<Step>,
    most: usize,
}

impl Recording {
    /// Begins with the present state and no steps.
    pub fn begin(cluster: &Cluster, most: usize) -> Self {
        Self { before: cluster.clone(), steps: VecDeque::new(), most }
    }

    /// Adds a step that the cluster has done just now. The oldest one becomes part of the state before.
    pub fn add(&mut self, mut operation: Operation, cluster: &Cluster) {
        let candidates = operation.question_mut().and_then(|question| question.candidates.take());
        let candidates = candidates.and_then(|mut names| {
            // In whatever order they come, they mean the same.
            names.sort_unstable();
            if names == cluster.nodes() {
                return None;
            }
            let last = self.steps.iter().rev().find_map(|step| step.candidates.as_ref());
            Some(match last {
                Some(last) if **last == *names => last.clone(),
                _ => names.into(),
            })
        });
        self.steps.push_back(Step { operation, candidates });
        while self.steps.len() > self.most {
            let oldest = self.steps.pop_front().map(Step::whole);
            let done = oldest.map(|operation| self.before.perform(&operation));
            debug_assert!(matches!(done, Some(Ok(_))), "the cluster has done it before");
        }
    }

    /// The state before, and the steps with the answers that were given.
    pub fn snapshot(&self) -> Snapshot {
        let mut snapshot = self.before.snapshot();
        for Step { operation, candidates } in &self.steps {
            let step = Step { operation: operation.clone(), candidates: candidates.clone() };
            snapshot.push(step.whole());
        }
        snapshot
    }
}

impl Step {
    fn whole(self) -> Operation {
        let Self { mut operation, candidates } = self;
        if let Some(question) = operation.question_mut() {
            question.candidates = candidates.map(|names| names.to_vec());
        }
        operation
    }
}
