//! The quick answer for a pod's first ask: does it fit on a node, and if not, why.
//!
//! Where neither NUMA binding nor quota is at play, the order of the cards decides which are taken, not whether
//! enough pass. So cards are only counted; the walk is left to the node that wins, and to later asks. Both must
//! always agree.

use crate::ask::CardConstraint;
use crate::card::ScannedCard;
use crate::check::{failed_checks, KindNeed, CHECK_COUNT};
use crate::demand::Demand;
use crate::node::Node;
use crate::reason::Reason;
use crate::tally::Tally;

/// Whether enough cards of a node pass. `admits_id` is asked by position in the inventory.
#[inline]
pub(crate) fn count_fitting(
    cards: &[ScannedCard],
    demand: &Demand,
    needs: &[KindNeed],
    admits_id: impl Fn(usize) -> bool,
) -> Result<(), Tally> {
    // Cards by first failed check; behind the checks, those that passed.
    let mut counts = [0u16; CHECK_COUNT + 1];
    let mut candidates = 0;
    let mut partitioned = false;
    for (position, card) in cards.iter().enumerate() {
        let need = &needs[usize::from(card.kind)];
        if !need.candidate {
            continue;
        }
        candidates += 1;
        partitioned |= need.is_partitioned();
        let failed = failed_checks(*card, need, admits_id(position)) | 1 << CHECK_COUNT;
        counts[failed.trailing_zeros() as usize] += 1;
    }
    let passed = counts[CHECK_COUNT];
    if demand.count > u32::from(candidates) && !(demand.accepts_partitioned && partitioned) {
        return Err(Tally::bare(Reason::NodeInsufficientDevice, demand.container));
    }
    if u32::from(passed) >= demand.count {
        return Ok(());
    }
    let mut tally =
        Tally { container: demand.container, cards: candidates, collected: passed, ..Tally::EMPTY };
    tally.by_check.copy_from_slice(&counts[..CHECK_COUNT]);
    Err(tally)
}

/// Whether enough cards of the node would pass were it empty, healthy and uncordoned.
pub(crate) fn counts_when_empty(
    cards: &[ScannedCard],
    node: &Node,
    demand: &Demand,
    needs: &[KindNeed],
    id_rules: Option<&CardConstraint>,
) -> bool {
    let passed = cards
        .iter()
        .enumerate()
        .filter(|(position, card)| {
            needs[usize::from(card.kind)].fits_empty
                && id_rules.is_none_or(|rules| rules.admits_id(node.id_at(*position)))
        })
        .count();
    passed >= demand.count as usize
}
