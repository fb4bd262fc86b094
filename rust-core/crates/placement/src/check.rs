//! The checks of one card, in their order. Each failed check is a bit; the lowest bit names the reason.

use crate::card::ScannedCard;
use crate::reason::Reason;

/// The checks. The number is the place in the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Check {
    SoftSplit,
    Health,
    MigReservation,
    Cordon,
    Blocked,
    Type,
    Uuid,
    Slots,
    Mutex,
    Quota,
    Memory,
    Cores,
    Exclusive,
    ComputeExhausted,
    MigPlacement,
}

/// How many checks there are.
pub(crate) const CHECK_COUNT: usize = Check::MigPlacement as usize + 1;

const CHECKS: [(Check, Reason); CHECK_COUNT] = [
    (Check::SoftSplit, Reason::ModeNotFit),
    (Check::Health, Reason::CardNotHealth),
    (Check::MigReservation, Reason::CardMigReservationUnclear),
    (Check::Cordon, Reason::CardCordoned),
    (Check::Blocked, Reason::CardBlocked),
    (Check::Type, Reason::CardTypeMismatch),
    (Check::Uuid, Reason::CardUuidMismatch),
    (Check::Slots, Reason::CardTimeSlicingExhausted),
    (Check::Mutex, Reason::ExclusiveDeviceAllocateConflict),
    (Check::Quota, Reason::ResourceQuotaNotFit),
    (Check::Memory, Reason::CardInsufficientMemory),
    (Check::Cores, Reason::CardInsufficientCore),
    (Check::Exclusive, Reason::ExclusiveDeviceAllocateConflict),
    (Check::ComputeExhausted, Reason::CardComputeUnitsExhausted),
    (Check::MigPlacement, Reason::CardMigTopologyInfeasible),
];

impl Check {
    pub(crate) const fn bit(self) -> u32 {
        1 << self as u8
    }

    /// The first failed check of a set that is not empty.
    pub(crate) fn first(failed: u32) -> Self {
        CHECKS[failed.trailing_zeros() as usize].0
    }

    /// Every failed check of a set.
    pub(crate) fn all_of(failed: u32) -> impl Iterator<Item = Self> {
        CHECKS.iter().map(|(check, _)| *check).filter(move |check| failed & check.bit() != 0)
    }

    pub(crate) fn reason(self) -> Reason {
        CHECKS[self as usize].1
    }

    pub(crate) fn reason_at(place: usize) -> Reason {
        CHECKS[place].1
    }
}

/// Checks before the one on NUMA.
pub(crate) const BEFORE_NUMA: u32 = Check::Uuid.bit() - 1;
/// Checks before the one on quota.
pub(crate) const BEFORE_QUOTA: u32 = Check::Quota.bit() - 1;

/// What one ask needs of cards of one kind.
#[allow(clippy::struct_excessive_bools, reason = "each may hold alone")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct KindNeed {
    pub(crate) memory_mib: i64,
    pub(crate) cores_percent: i64,
    /// Which bits of a card's state fail this ask.
    pub(crate) state_mask: u16,
    /// Checks that every card of the kind fails.
    pub(crate) failed: u16,
    /// Cards of this kind are cut into instances: what a share takes depends on which are free.
    pub(crate) partitioned: bool,
    /// The vendor's cards of this kind can serve the ask.
    pub(crate) candidate: bool,
    /// A card of this kind passes while nothing is booked on it and nothing is wrong with it.
    pub(crate) fits_empty: bool,
    /// The model is the bare vendor word, so the score counts the request too.
    pub(crate) model_is_vendor: bool,
}

impl KindNeed {
    /// The pod's rules on models and modes accept cards of the kind.
    pub(crate) fn admits_model(&self) -> bool {
        self.candidate && u32::from(self.failed) & Check::Type.bit() == 0
    }
}

/// Every failed check but the one on quota, as bits. It runs for every card there is, so it has no branches.
#[inline]
pub(crate) fn failed_checks(card: ScannedCard, need: &KindNeed, admits_id: bool) -> u32 {
    u32::from(card.state & need.state_mask)
        | u32::from(need.failed)
        | (u32::from(!admits_id) << Check::Uuid as u8)
        | (u32::from(card.free_memory_mib < need.memory_mib) << Check::Memory as u8)
        | (u32::from(i64::from(card.free_cores_percent) < need.cores_percent) << Check::Cores as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_in_the_order_of_the_checks() {
        for (place, (check, reason)) in CHECKS.iter().enumerate() {
            assert_eq!(*check as usize, place);
            assert_eq!(check.reason(), *reason);
        }
    }
}
