//! The quick answer for a pod with one ask: does it fit on a node, and if not, why.
//!
//! Where neither NUMA binding nor quota is at play, the order of the cards decides which are taken, not whether
//! enough pass. So cards are only counted; the walk is left to the node that wins. Both must always agree.

use crate::ask::PodAsk;
use crate::card::Amount;
use crate::check::{failed_checks, verdict};
use crate::demand::Demand;
use crate::node::Node;
use crate::reason::Reason;
use crate::tally::Tally;

/// Whether enough cards of the node pass. `EMPTY`: were it empty, healthy and uncordoned.
#[inline]
pub(crate) fn count_fitting<const EMPTY: bool>(
    node: &Node,
    pod: &PodAsk,
    demand: &Demand,
    verdicts: &[u16],
) -> Result<(), Tally> {
    let id_constraint = demand.id_constraint.map(|number| &pod.constraints[usize::from(number)].1);
    let mut tally = Tally { container: demand.container, ..Tally::EMPTY };
    let mut partitioned = false;
    let mut passed: u32 = 0;
    for (position, card) in node.cards.iter().enumerate() {
        let kind_verdict = verdicts[usize::from(card.kind)];
        if kind_verdict & verdict::CANDIDATE == 0 {
            continue;
        }
        tally.cards += 1;
        partitioned |= kind_verdict & verdict::MODE_UNAVAILABLE != 0;
        let admits_id = id_constraint.is_none_or(|constraint| constraint.admits_id(node.id_at(position)));
        let (used, flags) = if EMPTY { (Amount::default(), 0) } else { (card.used(), card.flags) };
        let failed =
            failed_checks(card, used, flags, kind_verdict, admits_id, demand.need_of(card), demand.rules);
        if failed == 0 {
            passed += 1;
        } else {
            tally.count(failed);
        }
    }
    if demand.count > u32::from(tally.cards) && !(demand.accepts_partitioned && partitioned) {
        return Err(Tally::bare(Reason::NodeInsufficientDevice, demand.container));
    }
    if passed >= demand.count {
        return Ok(());
    }
    tally.collected = passed as u16;
    Err(tally)
}
