//! The checks of one card, in their order. Each failed check is a bit; the lowest bit names the reason.

use crate::card::{flag, Amount, Card};
use crate::family::Rules;
use crate::reason::Reason;

/// The checks. The number is the place in the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Check {
    Health,
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
    Mode,
}

/// How many checks there are.
pub(crate) const CHECK_COUNT: usize = Check::Mode as usize + 1;

const CHECKS: [(Check, Reason); CHECK_COUNT] = [
    (Check::Health, Reason::CardNotHealth),
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
    (Check::Mode, Reason::CardModeUnavailable),
];

impl Check {
    pub(crate) const fn bit(self) -> u32 {
        1 << self as u8
    }

    /// The first failed check of a set that is not empty.
    pub(crate) fn first(failed: u32) -> Self {
        CHECKS[failed.trailing_zeros() as usize].0
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

const _: () = {
    assert!(flag::UNHEALTHY as u32 == Check::Health.bit());
    assert!(flag::CORDONED as u32 == Check::Cordon.bit());
    assert!(flag::BLOCKED as u32 == Check::Blocked.bit());
};

/// Bits of a verdict on a kind of card. The failed checks among them sit where their check has its bit.
pub(crate) mod verdict {
    use super::Check;

    pub(crate) const TYPE_MISMATCH: u16 = Check::Type.bit() as u16;
    pub(crate) const MODE_UNAVAILABLE: u16 = Check::Mode.bit() as u16;
    /// The card's vendor is the one asked for.
    pub(crate) const CANDIDATE: u16 = 1 << 13;
    /// The model is the bare vendor word, so the score counts the request too.
    pub(crate) const MODEL_IS_VENDOR: u16 = 1 << 14;
    pub(crate) const FAILED_CHECKS: u16 = TYPE_MISMATCH | MODE_UNAVAILABLE;
}

/// What a share needs of one card.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Need {
    pub(crate) memory_mib: i64,
    pub(crate) cores_percent: i64,
    pub(crate) mutex: bool,
}

/// Every failed check but the one on quota, as bits. It runs for every card there is.
#[inline]
#[allow(
    clippy::needless_bitwise_bool,
    reason = "branches here are mispredicted, as loads of cards are random"
)]
pub(crate) fn failed_checks(
    card: &Card,
    used: Amount,
    flags: u8,
    kind_verdict: u16,
    admits_id: bool,
    need: Need,
    rules: Rules,
) -> u32 {
    let bit = |failed: bool, check: Check| u32::from(failed) << check as u8;
    let total_cores = i64::from(card.cores_percent);
    let in_use = used.slots > 0;
    u32::from(flags)
        | u32::from(kind_verdict & verdict::FAILED_CHECKS)
        | bit(!admits_id, Check::Uuid)
        | bit(i64::from(card.slots) <= used.slots, Check::Slots)
        | bit(need.mutex & in_use, Check::Mutex)
        | bit(card.memory_mib - used.memory_mib < need.memory_mib, Check::Memory)
        | bit(total_cores - used.cores_percent < need.cores_percent, Check::Cores)
        | bit(
            rules.whole_card_is_exclusive & (total_cores == 100) & (need.cores_percent == 100) & in_use,
            Check::Exclusive,
        )
        | bit(
            rules.zero_cores_need_free_cores
                & (total_cores != 0)
                & (used.cores_percent == total_cores)
                & (need.cores_percent == 0),
            Check::ComputeExhausted,
        )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::family::family;

    #[test]
    fn the_table_is_in_the_order_of_the_checks() {
        for (place, (check, reason)) in CHECKS.iter().enumerate() {
            assert_eq!(*check as usize, place);
            assert_eq!(check.reason(), *reason);
        }
    }

    #[test]
    fn the_first_failed_check_names_the_reason() {
        let rules = family("NVIDIA").unwrap().rules();
        let card = |used: (i64, i64, i32)| Card {
            memory_mib: 1000,
            used_memory_mib: used.0,
            used_cores_percent: used.1,
            cores_percent: 100,
            slots: 10,
            used_slots: used.2,
            numa: 0,
            kind: 0,
            flags: 0,
        };
        let need = |memory_mib, cores_percent| Need { memory_mib, cores_percent, mutex: false };
        let cases = [
            (card((0, 0, 0)), need(1000, 100), None),
            (card((0, 0, 10)), need(1, 0), Some(Reason::CardTimeSlicingExhausted)),
            (card((500, 0, 1)), need(501, 0), Some(Reason::CardInsufficientMemory)),
            (card((0, 60, 1)), need(0, 50), Some(Reason::CardInsufficientCore)),
            (card((0, 0, 1)), need(0, 100), Some(Reason::ExclusiveDeviceAllocateConflict)),
            (card((0, 100, 1)), need(0, 0), Some(Reason::CardComputeUnitsExhausted)),
            (card((0, 120, 1)), need(0, 0), Some(Reason::CardInsufficientCore)),
        ];
        for (card, need, reason) in cases {
            let failed = failed_checks(&card, card.used(), 0, 0, true, need, rules);
            let first = (failed != 0).then(|| Check::first(failed).reason());
            assert_eq!(first, reason, "{card:?} {need:?}");
        }
    }
}
