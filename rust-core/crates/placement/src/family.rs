//! Vendor particularities. A family is found by its vendor word; what differs by data differs only in `Rules`.

/// What the checks of a card need to know about its family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// A share of all cores of a whole card needs the card unused.
    pub whole_card_is_exclusive: bool,
    /// A share without cores is refused where all cores are given away.
    pub zero_cores_need_free_cores: bool,
    /// Largest share of cores that counts; more is read as this.
    pub most_cores_percent: i64,
    /// Mode of cards that are partitioned in hardware. One such card can serve an ask for several.
    pub partitioned_mode: &'static str,
}

/// One vendor.
pub trait Family: Sync {
    /// The vendor word, as annotations carry it.
    fn word(&self) -> &'static str;

    /// What the checks of a card need to know.
    fn rules(&self) -> Rules;

    /// Whether a card that is registered under the vendor's word can serve its asks; `model` in lower case.
    fn owns_model(&self, model: &str) -> bool;

    /// Memory a share takes of a card. Absolute memory wins over the percentage.
    fn memory_need(&self, asked_mib: i64, asked_percent: Option<i64>) -> MemoryNeed {
        if asked_mib > 0 {
            return MemoryNeed { fixed_mib: asked_mib, percent_of_card: 0 };
        }
        MemoryNeed { fixed_mib: 0, percent_of_card: asked_percent.unwrap_or(0) }
    }
}

/// Memory a share takes, before it is known of which card.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryNeed {
    /// In MiB, on any card.
    pub fixed_mib: i64,
    /// On top, in percent of the card's memory.
    pub percent_of_card: i64,
}

impl MemoryNeed {
    /// In MiB on a card of `card_memory_mib`, rounded towards 0.
    #[inline]
    pub fn on(self, card_memory_mib: i64) -> i64 {
        self.fixed_mib + card_memory_mib * self.percent_of_card / 100
    }
}

struct Nvidia;

impl Family for Nvidia {
    fn word(&self) -> &'static str {
        "NVIDIA"
    }

    fn rules(&self) -> Rules {
        Rules {
            whole_card_is_exclusive: true,
            zero_cores_need_free_cores: true,
            most_cores_percent: 100,
            partitioned_mode: "mig",
        }
    }

    /// Product names of the driver are registered with the vendor's name in them.
    fn owns_model(&self, model: &str) -> bool {
        model.contains("nvidia")
    }
}

/// Every family. A new one is a line here.
const FAMILIES: [&dyn Family; 1] = [&Nvidia];

/// The family of a vendor word.
pub fn family(word: &str) -> Option<&'static dyn Family> {
    FAMILIES.into_iter().find(|family| family.word() == word)
}
