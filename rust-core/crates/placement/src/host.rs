//! Processor and memory of a node beside its cards. The engine refuses no pod for them; the policy `fgd` looks at
//! what of a node's cards they leave unusable.

use serde::{Deserialize, Serialize};

use crate::ask::{in_range, InvalidInput, MAX_MEMORY_MIB};

/// What a node has free of its host, or a pod takes of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostAmount {
    /// Processor time in thousandths of a core.
    pub cpu_milli: i64,
    /// Memory in MiB.
    pub memory_mib: i64,
}

impl HostAmount {
    /// # Errors
    /// When an amount is negative or beyond what products can hold.
    pub fn new(cpu_milli: i64, memory_mib: i64) -> Result<Self, InvalidInput> {
        Ok(Self {
            cpu_milli: in_range("cpu_milli", cpu_milli, 0, MAX_MEMORY_MIB)?,
            memory_mib: in_range("host memory_mib", memory_mib, 0, MAX_MEMORY_MIB)?,
        })
    }

    pub(crate) fn is_nothing(&self) -> bool {
        *self == Self::default()
    }

    /// What is left of this when a pod takes `taken`; negative where it takes more.
    pub(crate) fn without(self, taken: Self) -> Self {
        Self { cpu_milli: self.cpu_milli - taken.cpu_milli, memory_mib: self.memory_mib - taken.memory_mib }
    }

    pub(crate) fn covers(self, need: Self) -> bool {
        self.cpu_milli >= need.cpu_milli && self.memory_mib >= need.memory_mib
    }
}
