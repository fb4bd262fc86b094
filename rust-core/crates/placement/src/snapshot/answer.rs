//! Answers in a form that can be kept and compared.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::decision::{Decision, PlacedShare};

/// What was decided about a pod.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Answer {
    /// It fits.
    Placed {
        /// The chosen node.
        node: String,
        /// Its score before the pod.
        score: f32,
        /// Containers in their order.
        shares: Vec<PlacedShare>,
        /// How many candidates fit.
        fitting_nodes: usize,
        /// How many candidates there were.
        candidate_nodes: usize,
    },
    /// It fits on no candidate.
    Rejected {
        /// Reason code to the number of nodes that met it.
        reasons: BTreeMap<String, usize>,
        /// How many nodes would never take it.
        never_nodes: usize,
        /// How many candidates there were.
        candidate_nodes: usize,
    },
}

impl Answer {
    /// What a decision says.
    pub fn of(decision: &Decision) -> Self {
        let candidate_nodes = decision.candidate_nodes();
        match decision.chosen() {
            Some((node, score)) => Self::Placed {
                node: node.into(),
                score,
                shares: decision.shares().to_vec(),
                fitting_nodes: decision.fitting_nodes(),
                candidate_nodes,
            },
            None => Self::Rejected {
                reasons: decision.tally().into_iter().map(|(code, nodes)| (code.into(), nodes)).collect(),
                never_nodes: decision.failed_nodes(Some(true)).len(),
                candidate_nodes,
            },
        }
    }

    /// Whether both say the same; scores as far as their decimal form carries them.
    pub fn agrees_with(&self, other: &Self) -> bool {
        match (self, other) {
            (
                Self::Placed { node, score, shares, fitting_nodes, candidate_nodes },
                Self::Placed {
                    node: other_node,
                    score: other_score,
                    shares: other_shares,
                    fitting_nodes: other_fitting,
                    candidate_nodes: other_candidates,
                },
            ) => {
                (node, shares, fitting_nodes, candidate_nodes)
                    == (other_node, other_shares, other_fitting, other_candidates)
                    && (score - other_score).abs() <= f32::EPSILON * score.abs().max(1.0)
            }
            _ => self == other,
        }
    }
}
