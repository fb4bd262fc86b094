//! Families of accelerators. They differ by data: each is a value that the cluster is given when it is made.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::ask::InvalidInput;
use crate::selection::{self, Selection};

/// One family. [`Family::new`] has every check on; the fields are set from the family's descriptor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Family {
    /// How asks and cards name it.
    pub word: Arc<str>,
    /// Of the cards under the word, only those whose model contains this text (in lower case) serve; empty: all.
    pub model_contains: String,
    /// A share of all cores of a whole card needs the card unused.
    pub whole_card_is_exclusive: bool,
    /// A share without cores is refused where all cores are given away.
    pub zero_cores_need_free_cores: bool,
    /// Largest share of cores that counts; more is read as this.
    pub most_cores_percent: i64,
    /// Mode of cards that are partitioned in hardware; one such card can serve an ask for several. Empty: none is.
    pub partitioned_mode: String,
    /// Nodes tell how well their cards are connected, and `topology-aware` chooses by it.
    pub has_pair_scores: bool,
    /// How cards are chosen among those that pass: a strategy of `selection.rs`, by its name.
    #[serde(default = "first")]
    pub selection: String,
    /// What a node's score gains by cards of one group.
    #[serde(default)]
    pub group_weight: f32,
}

fn first() -> String {
    "first".into()
}

impl Family {
    /// A family with every check, whose cards are all those under its word.
    pub fn new(word: &str) -> Self {
        Self {
            word: word.into(),
            model_contains: String::new(),
            whole_card_is_exclusive: true,
            zero_cores_need_free_cores: true,
            most_cores_percent: 100,
            partitioned_mode: String::new(),
            has_pair_scores: false,
            selection: first(),
            group_weight: 0.0,
        }
    }

    /// Whether a card that is registered under the word can serve; `model` in lower case.
    pub(crate) fn owns_model(&self, model: &str) -> bool {
        model.contains(&self.model_contains)
    }

    /// Whether cards in this mode are partitioned in hardware.
    pub(crate) fn partitions(&self, mode: &str) -> bool {
        !self.partitioned_mode.is_empty() && self.partitioned_mode == mode
    }
}

/// Memory a share takes, before it is known of which card.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct MemoryNeed {
    /// In MiB, on any card.
    pub(crate) fixed_mib: i64,
    /// On top, in percent of the card's memory.
    pub(crate) percent_of_card: i64,
}

impl MemoryNeed {
    /// Absolute memory wins over the percentage.
    pub(crate) fn of(asked_mib: i64, asked_percent: Option<i64>) -> Self {
        if asked_mib > 0 {
            return Self { fixed_mib: asked_mib, percent_of_card: 0 };
        }
        Self { fixed_mib: 0, percent_of_card: asked_percent.unwrap_or(0) }
    }

    /// In MiB on a card of `card_memory_mib`, rounded towards 0; never negative.
    #[inline]
    pub(crate) fn on(self, card_memory_mib: i64) -> i64 {
        self.fixed_mib + card_memory_mib.max(0) * self.percent_of_card / 100
    }
}

/// The families that a cluster knows. A copy shares them.
#[derive(Clone)]
pub struct Families {
    families: Arc<[Family]>,
    selections: Arc<[&'static dyn Selection]>,
}

impl Families {
    /// # Errors
    /// When two have the same word, or one names a strategy that there is not.
    pub fn new(families: Vec<Family>) -> Result<Self, InvalidInput> {
        for (index, family) in families.iter().enumerate() {
            if families[..index].iter().any(|earlier| earlier.word == family.word) {
                return Err(InvalidInput::FamilyTwice { word: family.word.to_string() });
            }
        }
        let selections = families
            .iter()
            .map(|family| {
                selection::by_name(&family.selection).ok_or_else(|| InvalidInput::UnknownSelection {
                    word: family.word.to_string(),
                    selection: family.selection.clone(),
                    known: selection::names(),
                })
            })
            .collect::<Result<_, _>>()?;
        Ok(Self { families: families.into(), selections })
    }

    /// All of them, in the order given.
    pub fn all(&self) -> &[Family] {
        &self.families
    }

    /// The number of the family of a word.
    pub(crate) fn number_of(&self, word: &str) -> Option<u16> {
        self.families.iter().position(|family| *family.word == *word).map(|number| number as u16)
    }

    /// The family of a number.
    pub(crate) fn at(&self, number: u16) -> &Family {
        &self.families[usize::from(number)]
    }

    /// The family of a word.
    pub(crate) fn find(&self, word: &str) -> Option<&Family> {
        self.number_of(word).map(|number| self.at(number))
    }

    /// How cards of a family are chosen.
    pub(crate) fn selection(&self, family: &Family) -> &'static dyn Selection {
        self.number_of(&family.word).map_or(&selection::First, |number| self.selections[usize::from(number)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_are_found_by_their_words_and_no_word_comes_twice() {
        let families = Families::new(vec![Family::new("A"), Family::new("B")]).unwrap();
        assert_eq!(families.find("B").map(|family| &*family.word), Some("B"));
        assert_eq!(families.find("C"), None);
        assert!(Families::new(vec![Family::new("A"), Family::new("A")]).is_err());
    }
}
