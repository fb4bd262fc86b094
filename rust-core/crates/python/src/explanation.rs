//! Reasons and explanations.

use std::collections::BTreeMap;

use placement::REASONS;
use pyo3::prelude::*;

use crate::answers::sentences;
use crate::change::{field_word, name_of, Change, Names};

/// Why one card of one node was taken or not.
#[pyclass(frozen, get_all, module = "hami_engine")]
#[derive(Clone)]
pub(crate) struct CardVerdict {
    card_id: String,
    looked_at: bool,
    code: Option<&'static str>,
    codes: Vec<&'static str>,
    asked: Option<i64>,
    used: Option<i64>,
    total: Option<i64>,
    needed_memory_mib: i64,
    needed_cores_percent: i64,
    used_memory_mib: i64,
    used_cores_percent: i64,
    used_slots: i64,
    memory_mib: i64,
    cores_percent: i64,
    slots: i64,
    quota: Option<QuotaVerdict>,
}

impl From<placement::CardVerdict> for CardVerdict {
    fn from(verdict: placement::CardVerdict) -> Self {
        Self {
            card_id: verdict.card_id,
            looked_at: verdict.looked_at,
            code: verdict.reason.map(placement::Reason::code),
            codes: verdict.reasons.into_iter().map(placement::Reason::code).collect(),
            asked: verdict.asked,
            used: verdict.used,
            total: verdict.total,
            needed_memory_mib: verdict.needed.memory_mib,
            needed_cores_percent: verdict.needed.cores_percent,
            used_memory_mib: verdict.in_use.memory_mib,
            used_cores_percent: verdict.in_use.cores_percent,
            used_slots: verdict.in_use.slots,
            memory_mib: verdict.capacity.memory_mib,
            cores_percent: verdict.capacity.cores_percent,
            slots: verdict.capacity.slots,
            quota: verdict.quota.map(QuotaVerdict::from),
        }
    }
}

/// What the pod would hold of its namespace's quota of one vendor, up to and with one card.
#[pyclass(frozen, get_all, module = "hami_engine")]
#[derive(Clone)]
pub(crate) struct QuotaVerdict {
    needed_memory_mib: i64,
    needed_cores_percent: i64,
    used_memory_mib: i64,
    used_cores_percent: i64,
    memory_limit_mib: Option<i64>,
    cores_limit_percent: Option<i64>,
}

impl From<placement::QuotaVerdict> for QuotaVerdict {
    fn from(verdict: placement::QuotaVerdict) -> Self {
        Self {
            needed_memory_mib: verdict.needed.0,
            needed_cores_percent: verdict.needed.1,
            used_memory_mib: verdict.used.0,
            used_cores_percent: verdict.used.1,
            memory_limit_mib: verdict.limits.0,
            cores_limit_percent: verdict.limits.1,
        }
    }
}

/// What one node says to a pod.
#[pyclass(frozen, get_all, module = "hami_engine")]
#[derive(Clone)]
pub(crate) struct NodeVerdict {
    node: String,
    fits: bool,
    never: bool,
    score: Option<f32>,
    container: Option<String>,
    reason: String,
    cards: Vec<CardVerdict>,
    notes: BTreeMap<&'static str, &'static str>,
    searched: bool,
    changes: Vec<Change>,
}

impl From<placement::NodeVerdict> for NodeVerdict {
    fn from(verdict: placement::NodeVerdict) -> Self {
        Self {
            node: verdict.node,
            fits: verdict.fits,
            never: verdict.never,
            score: verdict.score,
            container: verdict.container,
            reason: verdict.reason,
            cards: verdict.cards.into_iter().map(CardVerdict::from).collect(),
            notes: sentences(verdict.notes),
            searched: verdict.searched,
            changes: verdict.changes.into_iter().map(Change).collect(),
        }
    }
}

/// A number of an ask beyond the largest there is.
#[pyclass(frozen, get_all, module = "hami_engine")]
#[derive(Clone)]
pub(crate) struct Ceiling {
    container: String,
    vendor: String,
    field: &'static str,
    asked: i64,
    largest: i64,
    sentence: String,
}

impl From<&placement::Ceiling> for Ceiling {
    fn from(ceiling: &placement::Ceiling) -> Self {
        Self {
            container: ceiling.container.clone(),
            vendor: ceiling.vendor.clone(),
            field: field_word(ceiling.field),
            asked: ceiling.asked,
            largest: ceiling.largest,
            sentence: ceiling.sentence(),
        }
    }
}

/// What all candidates say to a pod.
#[pyclass(frozen, module = "hami_engine")]
pub(crate) struct Explanation(placement::Explanation);

impl From<placement::Explanation> for Explanation {
    fn from(explanation: placement::Explanation) -> Self {
        Self(explanation)
    }
}

#[pymethods]
impl Explanation {
    /// Nodes where the pod fits by name, then the others: those that miss least first.
    #[getter]
    fn nodes(&self) -> Vec<NodeVerdict> {
        self.0.nodes.iter().cloned().map(NodeVerdict::from).collect()
    }

    /// How many candidates there were, each name once.
    #[getter]
    fn candidate_nodes(&self) -> usize {
        self.0.candidates
    }

    /// On how many the pod fits.
    #[getter]
    fn fitting_nodes(&self) -> usize {
        self.0.fitting
    }

    /// How many never fit; counted where the pod fits on no candidate.
    #[getter]
    fn never_nodes(&self) -> usize {
        self.0.never
    }

    /// Text of a node, and how many nodes say it.
    #[getter]
    fn texts(&self) -> BTreeMap<String, usize> {
        self.0.texts.clone()
    }

    /// On how many nodes, those that miss least, the smallest change was looked for.
    #[getter]
    fn searched_nodes(&self) -> usize {
        self.0.searched
    }

    /// The smallest change of these nodes; None where the pod fits or no change of one kind suffices.
    #[getter]
    fn change(&self) -> Option<Change> {
        self.0.change.clone().map(Change)
    }

    /// What is asked beyond what the largest card, or node, has.
    #[getter]
    fn ceilings(&self) -> Vec<Ceiling> {
        self.0.ceilings.iter().map(Ceiling::from).collect()
    }

    /// Why the pod waits and what would help, in one line. `pod_names`: by UID.
    #[pyo3(signature = (pod_names=None))]
    fn sentence(&self, pod_names: Option<Names>) -> String {
        self.0.sentence(&name_of(pod_names.as_ref()))
    }
}

/// One row of the table of reasons.
#[pyclass(frozen, get_all, module = "hami_engine")]
pub(crate) struct ReasonInfo {
    code: &'static str,
    label: &'static str,
    sentence: &'static str,
    never: &'static str,
    remedy: &'static str,
}

/// Every reason, sorted by code.
#[pyfunction]
pub(crate) fn list_reasons() -> Vec<ReasonInfo> {
    let info = |row: &placement::ReasonRow| ReasonInfo {
        code: row.code,
        label: row.label,
        sentence: row.sentence,
        never: row.never,
        remedy: row.remedy,
    };
    REASONS.iter().map(info).collect()
}

/// The text of reasons: how many of so many cards met each.
#[pyfunction]
pub(crate) fn reasons_text(counts: BTreeMap<String, u16>, cards: u16) -> String {
    placement::reasons_text(counts.iter().map(|(code, count)| (code.as_str(), *count)), cards)
}

/// Whether a card policy, a word or a comma chain of words, names this word.
#[pyfunction]
pub(crate) fn policy_names(policy: &str, word: &str) -> bool {
    placement::CardPolicy::names(policy, word)
}
