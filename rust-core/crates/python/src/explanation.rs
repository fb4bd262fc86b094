//! Reasons and explanations.

use std::collections::BTreeMap;

use placement::REASONS;
use pyo3::prelude::*;

use crate::answers::sentences;

/// Why one card of one node was taken or not.
#[pyclass(frozen, get_all, module = "hami_engine")]
#[derive(Clone)]
pub(crate) struct CardVerdict {
    card_id: String,
    code: Option<&'static str>,
    asked: Option<i64>,
    used: Option<i64>,
    total: Option<i64>,
}

impl From<placement::CardVerdict> for CardVerdict {
    fn from(verdict: placement::CardVerdict) -> Self {
        Self {
            card_id: verdict.card_id,
            code: verdict.reason.map(placement::Reason::code),
            asked: verdict.asked,
            used: verdict.used,
            total: verdict.total,
        }
    }
}

/// What one node says to a pod.
#[pyclass(frozen, get_all, module = "hami_engine")]
pub(crate) struct NodeVerdict {
    node: String,
    fits: bool,
    never: bool,
    score: Option<f32>,
    container: Option<String>,
    reason: String,
    cards: Vec<CardVerdict>,
    notes: BTreeMap<&'static str, &'static str>,
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
        }
    }
}

/// One row of the table of reasons.
#[pyclass(frozen, get_all, module = "hami_engine")]
pub(crate) struct ReasonInfo {
    code: &'static str,
    label: &'static str,
    sentence: &'static str,
}

/// Every reason, sorted by code.
#[pyfunction]
pub(crate) fn list_reasons() -> Vec<ReasonInfo> {
    let info =
        |row: &placement::ReasonRow| ReasonInfo { code: row.code, label: row.label, sentence: row.sentence };
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
