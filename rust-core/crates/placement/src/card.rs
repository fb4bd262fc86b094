//! Cards: what a node registers, what is kept of it, and the compact form that decisions scan.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::ask::{in_range, InvalidInput, MAX_MEMORY_MIB};
use crate::check::Check;
use crate::mig::{MigLayout, MigProfile};

/// One card as its node registered it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CardSpec {
    /// The card's id, unique on its node.
    pub id: String,
    /// The vendor word.
    pub vendor: String,
    /// The model name.
    pub model: String,
    /// The vendor's number of the card.
    pub index: u32,
    /// How many shares the card has.
    pub slots: i32,
    /// Memory in MiB.
    pub memory_mib: i64,
    /// Cores in percent of one card.
    pub cores_percent: i32,
    /// NUMA node.
    pub numa: i32,
    /// How the card is shared (`hami-core`, `mig`, `mps`, or empty).
    pub mode: String,
    /// Whether the card works.
    pub healthy: bool,
    /// Whether an operator excluded the card.
    pub cordoned: bool,
    /// What a card offers whose mode is that of its family's partitioned cards; of no meaning in other modes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mig_profiles: Vec<MigProfile>,
    /// The group it belongs to on its node. None: it names none; empty: the name cannot be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
}

impl CardSpec {
    /// Negative totals are accepted: such a card fits nothing.
    ///
    /// # Errors
    /// When the memory is beyond what sums can hold.
    pub fn validate(&self) -> Result<(), InvalidInput> {
        in_range("memory_mib", self.memory_mib, -MAX_MEMORY_MIB, MAX_MEMORY_MIB)?;
        self.mig_profiles.iter().try_for_each(MigProfile::validate)
    }

    pub(crate) fn total(&self) -> Amount {
        Amount::new(self.memory_mib, i64::from(self.cores_percent), i64::from(self.slots))
    }
}

/// Memory, cores and slots taken together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    /// Memory in MiB.
    pub memory_mib: i64,
    /// Cores in percent of one card.
    pub cores_percent: i64,
    /// Shares of a card.
    pub slots: i64,
}

impl Amount {
    pub(crate) fn new(memory_mib: i64, cores_percent: i64, slots: i64) -> Self {
        Self { memory_mib, cores_percent, slots }
    }

    pub(crate) fn plus(self, other: Self) -> Self {
        Self::new(
            self.memory_mib + other.memory_mib,
            self.cores_percent + other.cores_percent,
            self.slots + other.slots,
        )
    }

    pub(crate) fn minus(self, other: Self) -> Self {
        Self::new(
            self.memory_mib - other.memory_mib,
            self.cores_percent - other.cores_percent,
            self.slots - other.slots,
        )
    }

    /// The larger of each.
    pub(crate) fn max(self, other: Self) -> Self {
        Self::new(
            self.memory_mib.max(other.memory_mib),
            self.cores_percent.max(other.cores_percent),
            self.slots.max(other.slots),
        )
    }
}

/// A registered card with what is booked on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Card {
    pub(crate) total: Amount,
    pub(crate) used: Amount,
    /// Number among the cards its node knows.
    pub(crate) known: u32,
    pub(crate) index: u32,
    pub(crate) numa: i32,
    /// Number among the kinds of cards.
    pub(crate) kind: u16,
    /// Number among the node's groups, or one of the two of `groups`.
    pub(crate) group: u16,
    pub(crate) faults: Faults,
}

/// Why a card takes no pods at all.
#[allow(clippy::struct_excessive_bools, reason = "each may hold alone")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Faults {
    pub(crate) unhealthy: bool,
    pub(crate) cordoned: bool,
    pub(crate) blocked: bool,
    /// What a pod holds of the card contradicts the card's mode, so nobody knows what is free.
    pub(crate) unclear_instances: bool,
}

/// What the scan over all cards reads of one: 16 bytes, all cards side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ScannedCard {
    pub(crate) free_memory_mib: i64,
    /// Clamped to its type; totals fit it, so no comparison with a request changes.
    pub(crate) free_cores_percent: i32,
    pub(crate) kind: u16,
    /// Bits of the checks that look at the card alone (see `check`).
    pub(crate) state: u16,
}

impl ScannedCard {
    #[inline]
    pub(crate) fn new(kind: u16, total: Amount, used: Amount, faults: Faults) -> Self {
        let bit = |on: bool, check: Check| if on { check.bit() as u16 } else { 0 };
        let in_use = used.slots > 0;
        let full = total.cores_percent != 0 && used.cores_percent == total.cores_percent;
        let free_cores = total.cores_percent - used.cores_percent;
        Self {
            free_memory_mib: total.memory_mib - used.memory_mib,
            free_cores_percent: free_cores.clamp(i64::from(i32::MIN), i64::from(i32::MAX)) as i32,
            kind,
            state: bit(faults.unhealthy, Check::Health)
                | bit(faults.unclear_instances, Check::MigReservation)
                | bit(faults.cordoned, Check::Cordon)
                | bit(faults.blocked, Check::Blocked)
                | bit(total.slots <= used.slots, Check::Slots)
                | bit(in_use, Check::Mutex)
                | bit(in_use, Check::Exclusive)
                | bit(full, Check::ComputeExhausted),
        }
    }
}

/// What many cards have in common: requests are matched once per kind, not once per card.
#[derive(Clone, Debug)]
pub(crate) struct CardKind {
    pub(crate) vendor: Arc<str>,
    pub(crate) model: Arc<str>,
    pub(crate) model_lowercase: String,
    pub(crate) mode: String,
    pub(crate) total: Amount,
    /// What the cards offer that are cut into instances.
    pub(crate) mig: Option<Arc<MigLayout>>,
    /// How many registered cards are of this kind.
    pub(crate) cards: u32,
}

impl CardKind {
    pub(crate) fn mig_profiles(&self) -> &[MigProfile] {
        self.mig.as_ref().map_or(&[], |mig| mig.profiles())
    }

    pub(crate) fn is_of(&self, spec: &CardSpec) -> bool {
        *self.vendor == *spec.vendor
            && *self.model == *spec.model
            && self.mode == spec.mode
            && self.total == spec.total()
            && self.mig.as_ref().is_none_or(|mig| mig.profiles() == spec.mig_profiles)
    }
}

/// Every kind of card that is registered. Places of kinds that are no more are used again.
#[derive(Clone, Debug, Default)]
pub(crate) struct CardKinds {
    kinds: Vec<CardKind>,
    /// Changes with the number of cards of a kind.
    pub(crate) generation: u64,
}

impl CardKinds {
    pub(crate) fn all(&self) -> &[CardKind] {
        &self.kinds
    }

    pub(crate) fn get(&self, kind: u16) -> &CardKind {
        &self.kinds[usize::from(kind)]
    }

    /// The number of the kind of `spec`, which counts one card more. `partitioned`: its cards are cut into instances.
    ///
    /// # Errors
    /// When 65,536 kinds are registered.
    pub(crate) fn add(&mut self, spec: &CardSpec, partitioned: bool) -> Result<u16, InvalidInput> {
        let found = self.kinds.iter().position(|kind| kind.cards > 0 && kind.is_of(spec));
        let unused = || self.kinds.iter().position(|kind| kind.cards == 0);
        let place = found.or_else(unused).unwrap_or(self.kinds.len());
        in_range("number of kinds of cards", place as i64, 0, i64::from(u16::MAX))?;
        if found.is_none() {
            let kind = CardKind {
                vendor: spec.vendor.as_str().into(),
                model: spec.model.as_str().into(),
                model_lowercase: spec.model.to_lowercase(),
                mode: spec.mode.clone(),
                total: spec.total(),
                mig: partitioned.then(|| Arc::new(MigLayout::new(&spec.mig_profiles))),
                cards: 0,
            };
            if place == self.kinds.len() {
                self.kinds.push(kind);
            } else {
                self.kinds[place] = kind;
            }
        }
        self.kinds[place].cards += 1;
        self.generation += 1;
        Ok(place as u16)
    }

    /// Counts one card less.
    pub(crate) fn remove(&mut self, kind: u16) {
        self.kinds[usize::from(kind)].cards -= 1;
        self.generation += 1;
    }
}
