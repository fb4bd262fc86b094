//! What is done with a state, with the answers that were given.

use serde::{Deserialize, Serialize};

use super::{Answer, BookingRecord, NodeRecord, QuotaRecord};
use crate::ask::{InvalidInput, PodAsk};
use crate::cluster::Cluster;
use crate::host::HostAmount;
use crate::search::Candidates;
use crate::workload::WorkloadShape;

/// One step on the state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// [`Cluster::set_node`].
    SetNode(NodeRecord),
    /// [`Cluster::remove_node`].
    RemoveNode {
        /// The node's name.
        name: String,
    },
    /// [`Cluster::set_card_health`].
    SetCardHealth {
        /// The node's name.
        node: String,
        /// The card's id.
        card_id: String,
        /// Whether the card works.
        healthy: bool,
    },
    /// [`Cluster::set_node_host`].
    SetNodeHost {
        /// The node's name.
        node: String,
        /// What is free. None: not known.
        free: Option<HostAmount>,
    },
    /// [`Cluster::set_workload`].
    SetWorkload {
        /// The expected pods. None: as those that are booked.
        shapes: Option<Vec<WorkloadShape>>,
    },
    /// [`Cluster::set_quota`].
    SetQuota(QuotaRecord),
    /// [`Cluster::charge`].
    Charge(BookingRecord),
    /// [`Cluster::confirm`].
    Confirm {
        /// The pod's UID.
        uid: String,
    },
    /// [`Cluster::release`].
    Release {
        /// The pod's UID.
        uid: String,
    },
    /// [`Cluster::reserve`].
    Reserve(Question),
    /// [`Cluster::what_if`].
    WhatIf(Question),
}

/// A pod to place.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Question {
    /// The pod.
    pub pod: PodAsk,
    /// Names of nodes. None: every registered node.
    pub candidates: Option<Vec<String>>,
    /// What was answered. None: nothing to compare with.
    pub answer: Option<Answer>,
}

impl Question {
    /// Runs `step` with the candidates.
    pub fn with_candidates<T>(&self, step: impl FnOnce(&PodAsk, Candidates<'_>) -> T) -> T {
        match &self.candidates {
            None => step(&self.pod, Candidates::All),
            Some(names) => {
                let names: Vec<&str> = names.iter().map(String::as_str).collect();
                step(&self.pod, Candidates::Named(&names))
            }
        }
    }
}

impl Operation {
    /// The pod that is asked about, where one is.
    pub fn question(&self) -> Option<&Question> {
        match self {
            Self::Reserve(question) | Self::WhatIf(question) => Some(question),
            _ => None,
        }
    }

    /// The same, to be changed.
    pub fn question_mut(&mut self) -> Option<&mut Question> {
        match self {
            Self::Reserve(question) | Self::WhatIf(question) => Some(question),
            _ => None,
        }
    }

    pub(super) fn settle(&mut self) -> Result<(), InvalidInput> {
        if let Self::SetWorkload { shapes: Some(shapes) } = self {
            return shapes.iter_mut().try_for_each(WorkloadShape::settle);
        }
        self.question_mut().map_or(Ok(()), |question| question.pod.settle())
    }
}

impl Cluster {
    /// Does one operation. The answer, where a pod is asked about.
    ///
    /// # Errors
    /// When a value cannot enter the engine; nothing is changed then.
    pub fn perform(&mut self, operation: &Operation) -> Result<Option<Answer>, InvalidInput> {
        match operation {
            Operation::SetNode(node) => self.register(node)?,
            Operation::RemoveNode { name } => drop(self.remove_node(name)),
            Operation::SetCardHealth { node, card_id, healthy } => {
                self.set_card_health(node, card_id, *healthy);
            }
            Operation::SetNodeHost { node, free } => {
                let free = free.map(|free| HostAmount::new(free.cpu_milli, free.memory_mib)).transpose()?;
                self.set_node_host(node, free);
            }
            Operation::SetWorkload { shapes } => self.set_workload(shapes.clone()),
            Operation::SetQuota(quota) => self.limit(quota),
            Operation::Charge(booking) => self.restore(booking)?,
            Operation::Confirm { uid } => drop(self.confirm(uid)),
            Operation::Release { uid } => drop(self.release(uid)),
            Operation::Reserve(question) => {
                let decision = question.with_candidates(|pod, candidates| self.reserve(pod, candidates));
                return Ok(Some(Answer::of(&decision)));
            }
            Operation::WhatIf(question) => {
                let decision = question.with_candidates(|pod, candidates| self.what_if(pod, candidates));
                return Ok(Some(Answer::of(&decision)));
            }
        }
        Ok(None)
    }
}
