//! Cards: what a node registers, and the compact form that decisions read.

use std::sync::Arc;

use crate::ask::{in_range, InvalidInput, MAX_MEMORY_MIB};

/// One card as its node registered it.
#[derive(Clone, Debug, PartialEq, Eq)]
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
}

impl CardSpec {
    /// Negative totals are accepted: such a card fits nothing.
    ///
    /// # Errors
    /// When the memory is beyond what sums can hold.
    pub fn validate(&self) -> Result<(), InvalidInput> {
        in_range("memory_mib", self.memory_mib, -MAX_MEMORY_MIB, MAX_MEMORY_MIB).map(|_| ())
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

/// Bits of [`Card::flags`]. They sit where the first checks of a card have their bits (see `check`).
pub(crate) mod flag {
    pub(crate) const UNHEALTHY: u8 = 1;
    pub(crate) const CORDONED: u8 = 1 << 1;
    pub(crate) const BLOCKED: u8 = 1 << 2;
}

/// What a decision reads of a card; 48 bytes, cards of a node lie side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Card {
    pub(crate) memory_mib: i64,
    pub(crate) used_memory_mib: i64,
    pub(crate) used_cores_percent: i64,
    pub(crate) cores_percent: i32,
    pub(crate) slots: i32,
    pub(crate) used_slots: i32,
    pub(crate) numa: i32,
    /// Index into the table of kinds.
    pub(crate) kind: u16,
    pub(crate) flags: u8,
}

impl Card {
    pub(crate) fn used(&self) -> Amount {
        Amount::new(self.used_memory_mib, self.used_cores_percent, i64::from(self.used_slots))
    }

    pub(crate) fn total(&self) -> Amount {
        Amount::new(self.memory_mib, i64::from(self.cores_percent), i64::from(self.slots))
    }

    pub(crate) fn set_used(&mut self, used: Amount) {
        self.used_memory_mib = used.memory_mib;
        self.used_cores_percent = used.cores_percent;
        self.used_slots = used.slots as i32;
    }

    pub(crate) fn set_flag(&mut self, bit: u8, on: bool) {
        if on {
            self.flags |= bit;
        } else {
            self.flags &= !bit;
        }
    }
}

/// What cards have in common that rules on models and modes look at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CardKind {
    pub(crate) vendor: Arc<str>,
    pub(crate) model: Arc<str>,
    pub(crate) model_lowercase: String,
    pub(crate) mode: String,
}

/// Every kind of card seen. Few: rules are matched once per kind, not once per card.
#[derive(Clone, Debug, Default)]
pub(crate) struct CardKinds {
    kinds: Vec<CardKind>,
}

impl CardKinds {
    pub(crate) fn all(&self) -> &[CardKind] {
        &self.kinds
    }

    pub(crate) fn get(&self, kind: u16) -> &CardKind {
        &self.kinds[usize::from(kind)]
    }

    /// The number of the kind of `spec`, which is added when it is new.
    ///
    /// # Errors
    /// When 65,536 kinds have been seen.
    pub(crate) fn intern(&mut self, spec: &CardSpec) -> Result<u16, InvalidInput> {
        let same = |kind: &CardKind| {
            *kind.vendor == *spec.vendor && *kind.model == *spec.model && kind.mode == spec.mode
        };
        let index = self.kinds.iter().position(same).unwrap_or(self.kinds.len());
        in_range("number of card models", index as i64, 0, i64::from(u16::MAX))?;
        if index == self.kinds.len() {
            self.kinds.push(CardKind {
                vendor: spec.vendor.as_str().into(),
                model: spec.model.as_str().into(),
                model_lowercase: spec.model.to_lowercase(),
                mode: spec.mode.clone(),
            });
        }
        Ok(index as u16)
    }
}
