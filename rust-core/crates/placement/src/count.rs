//! The quick answer for a pod's first ask: does it fit on a node, and if not, why.
//!
//! Where neither NUMA binding nor quota is at play, the order of the cards decides which are taken, not whether
//! enough pass. So cards are only counted; the walk is left to the node that wins, and to later asks. Both must
//! always agree. Nodes with cards that are cut into instances are always walked.

use crate::card::ScannedCard;
use crate::check::{failed_checks, KindNeed};
use crate::demand::Demand;
use crate::reason::Reason;
use crate::tally::Tally;

/// Whether enough cards of a node pass. `admits_id` is asked by position in the inventory.
///
/// The tally of a node that fails says whether the ask never fits there.
#[inline]
pub(crate) fn count_fitting(
    cards: &[ScannedCard],
    demand: &Demand,
    needs: &[KindNeed],
    admits_id: impl Fn(usize) -> bool,
) -> Result<(), Tally> {
    let mut tally = Tally { container: demand.container, ..Tally::EMPTY };
    let mut passed: u32 = 0;
    let mut passed_when_empty: u32 = 0;
    for (position, card) in cards.iter().enumerate() {
        let need = &needs[usize::from(card.kind)];
        if !need.candidate {
            continue;
        }
        let admitted = admits_id(position);
        let failed = failed_checks(*card, need, admitted);
        if failed == 0 {
            passed += 1;
            if passed == demand.count {
                return Ok(());
            }
        } else {
            tally.count(failed);
        }
        tally.cards += 1;
        passed_when_empty += u32::from(need.fits_empty & admitted);
    }
    if demand.count > u32::from(tally.cards) {
        tally = Tally::bare(Reason::NodeInsufficientDevice, demand.container);
    } else {
        tally.collected = Some(passed as u16).filter(|count| *count > 0);
    }
    tally.never = passed_when_empty < demand.count;
    Err(tally)
}
