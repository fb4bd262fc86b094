//! Cards that come in groups: those of one group are better connected with each other, or belong together.

use crate::demand::Demands;
use crate::node::Node;
use crate::selection::{Choice, Collected, Selection};
use crate::walk::Taken;

/// The group of a card that names none.
pub(crate) const NO_GROUP: u16 = u16::MAX;
/// The group of a card whose group cannot be read. Such cards are not known to belong together.
pub(crate) const UNREADABLE: u16 = u16::MAX - 1;

/// Names of the groups of one node in their order: numbers by size, then other names as text.
pub(crate) fn sort_groups(names: &mut Vec<&str>) {
    let number = |name: &str| name.parse::<f64>().unwrap_or(f64::INFINITY);
    names.sort_unstable_by(|one, two| number(one).total_cmp(&number(two)).then_with(|| one.cmp(two)));
    names.dedup();
}

/// The cards by their ranks; those of one rank as they came.
fn ordered<Rank: Ord + Copy>(collected: &[Collected], rank: impl Fn(&Collected) -> Rank) -> Vec<Collected> {
    let mut ranked: Vec<(Rank, Collected)> = collected.iter().map(|card| (rank(card), *card)).collect();
    ranked.sort_by_key(|(rank, _)| *rank);
    ranked.into_iter().map(|(_, card)| card).collect()
}

/// Cards of as few groups as possible: of the group with the most cards that passed, then of the next one. Of equal
/// groups the first by its id, and in a group the preferred cards. Where a card of the family names no group, groups
/// count for nothing.
pub(crate) struct ByGroups;

impl Selection for ByGroups {
    fn collects_all(&self) -> bool {
        true
    }

    fn choose(&self, choice: &mut Choice<'_>) {
        let Choice { node, needs, count, collected, .. } = choice;
        let named =
            |card: &crate::card::Card| !needs[usize::from(card.kind)].candidate || card.group != NO_GROUP;
        if *count > 1 && node.cards.iter().all(named) {
            let group = |card: &Collected| node.cards[usize::from(card.position)].group;
            let size = |of: u16| collected.iter().filter(|card| group(card) == of).count();
            // Cards of an unreadable group come last, however many they are.
            let rank = |card: &Collected| match group(card) {
                UNREADABLE => (true, 0, UNREADABLE),
                known => (false, usize::MAX - size(known), known),
            };
            **collected = ordered(collected, rank);
        }
        collected.truncate(*count);
    }
}

/// Whole modules of two cards, which have the indexes 2n and 2n + 1; of several the first by its number. One card
/// alone is simply the preferred one.
pub(crate) struct ByPairs;

impl ByPairs {
    fn is_whole(node: &Node, collected: &[Collected], card: &Collected) -> bool {
        let module = |card: &Collected| node.cards[usize::from(card.position)].index / 2;
        collected.iter().filter(|other| module(other) == module(card)).count() == 2
    }
}

impl Selection for ByPairs {
    fn collects_all(&self) -> bool {
        true
    }

    fn counts(&self) -> bool {
        false
    }

    fn usable(&self, node: &Node, collected: &[Collected], count: usize) -> Option<usize> {
        if count == 1 {
            return None;
        }
        let whole = collected.iter().filter(|card| Self::is_whole(node, collected, card)).count();
        Some(whole.min(count.next_multiple_of(2)))
    }

    fn choose(&self, choice: &mut Choice<'_>) {
        let Choice { node, count, collected, .. } = choice;
        if *count > 1 {
            let module = |card: &Collected| {
                let whole = Self::is_whole(node, collected, card);
                (!whole, node.cards[usize::from(card.position)].index / 2)
            };
            **collected = ordered(collected, module);
        }
        collected.truncate(*count);
    }
}

/// What the groups of the taken cards add to a node's score: for each container the share of its cards that lie in
/// one group, times the family's weight. Nothing for a family of which a taken card names no group.
pub(crate) fn group_gain(node: &Node, demands: &Demands, taken: &[Taken]) -> f32 {
    let mut gain = 0.0;
    for vendor in 0..demands.quotas.len() {
        let of_vendor = |taken: &&Taken| usize::from(demands.list[usize::from(taken.demand)].quota) == vendor;
        let group = |taken: &Taken| node.cards[usize::from(taken.position)].group;
        if taken.iter().filter(of_vendor).any(|taken| group(taken) == NO_GROUP) {
            continue;
        }
        for (number, demand) in demands.list.iter().enumerate() {
            if usize::from(demand.quota) != vendor || demand.group_weight == 0.0 {
                continue;
            }
            let known = || {
                taken.iter().filter(|taken| usize::from(taken.demand) == number && group(taken) != UNREADABLE)
            };
            let largest = known()
                .map(|one| known().filter(|other| group(other) == group(one)).count())
                .max()
                .unwrap_or(0);
            if largest > 0 {
                gain += demand.group_weight * largest as f32 / known().count() as f32;
            }
        }
    }
    gain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_ordered_as_numbers_then_as_text() {
        let mut names = vec!["b", "10", "9", "a", "9"];
        sort_groups(&mut names);
        assert_eq!(names, ["9", "10", "a", "b"]);
    }
}
