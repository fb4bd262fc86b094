//! Why one node does not take a pod: how often each reason was met.

use crate::check::{Check, CHECK_COUNT};
use crate::reason::{Reason, REASONS};

/// What was met on one node, for the first container that does not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Tally {
    /// A reason that concerns the whole node; the counts are then empty.
    pub(crate) bare: Option<Reason>,
    /// The pod would not fit on the node were it empty, healthy and uncordoned.
    pub(crate) never: bool,
    /// Number of the container.
    pub(crate) container: u16,
    /// Cards of the vendor asked for.
    pub(crate) cards: u16,
    /// Cards that passed, of those that can be given together; None: that is not worth a word.
    pub(crate) collected: Option<u16>,
    /// Cards that passed on a NUMA node which was left again.
    pub(crate) numa_not_fit: u16,
    /// Cards by the first check they failed.
    pub(crate) by_check: [u16; CHECK_COUNT],
}

impl Tally {
    pub(crate) const EMPTY: Self = Self {
        bare: None,
        never: false,
        container: 0,
        cards: 0,
        collected: None,
        numa_not_fit: 0,
        by_check: [0; CHECK_COUNT],
    };

    pub(crate) fn bare(reason: Reason, container: u16) -> Self {
        Self { bare: Some(reason), container, ..Self::EMPTY }
    }

    #[inline]
    pub(crate) fn count(&mut self, failed: u32) {
        self.by_check[failed.trailing_zeros() as usize] += 1;
    }

    /// Cards by reason, in the order of the table of reasons; reasons not met are left out.
    fn counts(&self) -> impl Iterator<Item = (Reason, u16)> + '_ {
        let mut counts = [0; REASONS.len()];
        for (place, count) in self.by_check.iter().enumerate() {
            counts[Check::reason_at(place) as usize] += count;
        }
        // What a whole node cannot do is said once.
        counts[Reason::ModeNotFit as usize] = counts[Reason::ModeNotFit as usize].min(1);
        counts[Reason::AllocatedCardsInsufficientRequest as usize] = self.collected.unwrap_or(0);
        counts[Reason::NumaNotFit as usize] = self.numa_not_fit;
        REASONS.iter().map(move |row| (row.reason, counts[row.reason as usize])).filter(|(reason, count)| {
            *count > 0 || (*reason == Reason::AllocatedCardsInsufficientRequest && self.collected.is_some())
        })
    }

    /// Every reason met.
    pub(crate) fn reasons(&self) -> impl Iterator<Item = Reason> + '_ {
        self.bare.into_iter().chain(self.counts().map(|(reason, _)| reason))
    }

    /// The text kube-scheduler shows: `<count>/<cards> <code>`, sorted as text and joined.
    pub(crate) fn text(&self) -> String {
        if let Some(reason) = self.bare {
            return reason.bare_text().into();
        }
        let mut counts: Vec<(&str, u16)> = Vec::with_capacity(REASONS.len());
        for (reason, count) in self.counts() {
            match counts.iter_mut().find(|(word, _)| *word == reason.word()) {
                Some((_, sum)) => *sum += count,
                None => counts.push((reason.word(), count)),
            }
        }
        reasons_text(counts, self.cards)
    }
}

/// `<count>/<cards> <code>` for each reason, sorted as text and joined.
pub fn reasons_text<'a>(counts: impl IntoIterator<Item = (&'a str, u16)>, cards: u16) -> String {
    let mut parts: Vec<String> =
        counts.into_iter().map(|(code, count)| format!("{count}/{cards} {code}")).collect();
    parts.sort_unstable();
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_counts_reasons_over_cards_in_the_order_of_the_text() {
        let mut tally = Tally { cards: 12, collected: Some(1), ..Tally::EMPTY };
        for _ in 0..10 {
            tally.count(Check::Memory.bit() | Check::Cores.bit());
        }
        tally.count(Check::Mutex.bit());
        tally.count(Check::Exclusive.bit());
        assert_eq!(
            tally.text(),
            "1/12 AllocatedCardsInsufficientRequest, 10/12 CardInsufficientMemory, \
             2/12 ExclusiveDeviceAllocateConflict"
        );
        assert_eq!(Tally::bare(Reason::NodeInsufficientDevice, 0).text(), "NodeInsufficientDevice");
        assert_eq!(Tally::bare(Reason::NodeUnregistered, 0).text(), "node unregistered");
    }
}
