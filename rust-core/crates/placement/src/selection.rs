//! Which of the cards that passed an ask gets: small strategies behind one trait.

use crate::best_set::BestSet;
use crate::check::KindNeed;
use crate::groups::{ByGroups, ByPairs};
use crate::mig::MigChoice;
use crate::node::Node;
use crate::note::{Note, Notes};

/// A card that passed, with the share it gives. A card that can give one ask several shares comes several times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Collected {
    /// Place of the card in the inventory.
    pub(crate) position: u16,
    pub(crate) memory_mib: i64,
    pub(crate) cores_percent: i64,
    /// Of a card that is cut into instances; the share is that of its profile.
    pub(crate) instance: Option<MigChoice>,
    /// How often the card was collected before. Leave the first of a card rather than a later one.
    pub(crate) repeat: u16,
}

/// A choice to make. More than `count` cards passed; they come in the order in which the walk saw them, the preferred
/// one first.
pub(crate) struct Choice<'a> {
    pub(crate) node: &'a Node,
    /// What the ask needs of each kind of card.
    pub(crate) needs: &'a [KindNeed],
    /// How many cards the ask gets.
    pub(crate) count: usize,
    /// To be left with the cards to take, in the order in which they are given.
    pub(crate) collected: &'a mut Vec<Collected>,
    /// What is to be said about the choice.
    pub(crate) notes: &'a mut Notes,
    pub(crate) best_set: &'a mut BestSet,
}

/// How an ask's cards are chosen among those that passed.
pub(crate) trait Selection: Sync {
    /// Whether every card that passes is collected. If not, the walk ends at the first that are enough, and there is
    /// no choice.
    fn collects_all(&self) -> bool;

    /// Whether enough cards that pass always serve, whichever they are.
    fn counts(&self) -> bool {
        true
    }

    /// With how many of the collected cards it can serve; None: with every number of them.
    fn usable(&self, _node: &Node, _collected: &[Collected], _count: usize) -> Option<usize> {
        None
    }

    /// Leaves the cards to take in `collected`.
    fn choose(&self, choice: &mut Choice<'_>);
}

/// The preferred ones.
pub(crate) struct First;

impl Selection for First {
    fn collects_all(&self) -> bool {
        false
    }

    fn choose(&self, choice: &mut Choice<'_>) {
        choice.collected.truncate(choice.count);
    }
}

/// By the scores between the node's cards: for one card the one that is worst connected with the others, which keeps
/// the well connected ones together; for several those that are best connected with each other.
///
/// A pair is looked up from the card seen first to the one seen later; a pair without a score counts 0. Where enough
/// different cards passed none gives two shares.
pub(crate) struct ByPairScores;

impl Selection for ByPairScores {
    fn collects_all(&self) -> bool {
        true
    }

    fn choose(&self, choice: &mut Choice<'_>) {
        let Choice { node, count, collected, notes, best_set, .. } = choice;
        if *count > 1 {
            keep_different(collected, *count);
            if collected.len() == *count {
                return;
            }
        }
        let pair = |card: usize, peer: usize| {
            node.pair_scores.get(collected[card].position, collected[peer].position).map(i64::from)
        };
        let same = |card: usize, other: usize| collected[card].position == collected[other].position;
        let all = collected.len();
        let compared = |card: usize| if *count == 1 { 0..all } else { card + 1..all };
        let missing =
            |card: usize| compared(card).any(|peer| !same(card, peer) && pair(card, peer).is_none());
        if (0..all).any(missing) {
            notes.add(Note::PairScoresMissing);
        }
        let score = |card: usize, peer: usize| pair(card, peer).unwrap_or(0);
        if *count == 1 {
            let connection = |card: &usize| -> i64 {
                (0..all).filter(|peer| peer != card).map(|peer| score(*card, peer)).sum()
            };
            // Of equals the first.
            let worst = (0..all).min_by_key(connection).unwrap_or(0);
            collected.swap(0, worst);
        } else {
            let (best, certain) = best_set.find(all, *count, score, |card| same(card, card - 1));
            if !certain {
                notes.add(Note::CardChoiceCutShort);
            }
            for (place, chosen) in best.iter().enumerate() {
                collected[place] = collected[usize::from(*chosen)];
            }
        }
        collected.truncate(*count);
    }
}

/// Leaves each card once where that is enough.
fn keep_different(collected: &mut Vec<Collected>, enough: usize) {
    let different = collected.iter().filter(|card| card.repeat == 0).count();
    if different >= enough {
        collected.retain(|card| card.repeat == 0);
    }
}

/// Strategies that families may name. A new one is a row here.
const SELECTIONS: [(&str, &dyn Selection); 3] =
    [("first", &First), ("groups", &ByGroups), ("pairs", &ByPairs)];

/// The strategy of a name.
pub(crate) fn by_name(name: &str) -> Option<&'static dyn Selection> {
    SELECTIONS.iter().find(|(known, _)| *known == name).map(|(_, selection)| *selection)
}

/// Every name, for messages.
pub(crate) fn names() -> String {
    SELECTIONS.map(|(name, _)| name).join(", ")
}
