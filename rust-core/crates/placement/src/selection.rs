//! Which of the cards that passed an ask gets: small strategies behind one trait.

use crate::node::Node;

/// A card that passed, with the share it gives. A card that can give one ask several shares comes several times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Collected {
    /// Place of the card in the inventory.
    pub(crate) position: u16,
    pub(crate) memory_mib: i64,
    pub(crate) cores_percent: i64,
}

/// A choice to make. More than `count` cards passed; they come in the order in which the walk saw them, the preferred
/// one first.
pub(crate) struct Choice<'a> {
    pub(crate) node: &'a Node,
    /// How many cards the ask gets.
    pub(crate) count: usize,
    /// To be left with the cards to take, in the order in which they are given.
    pub(crate) collected: &'a mut Vec<Collected>,
}

/// How an ask's cards are chosen among those that passed.
pub(crate) trait Selection: Sync {
    /// Whether every card that passes is collected. If not, the walk ends at the first that are enough, and there is
    /// no choice.
    fn collects_all(&self) -> bool;

    /// Leaves the cards to take in `collected`.
    fn choose(&self, choice: &mut Choice<'_>);
}

/// The preferred ones.
pub(crate) struct First;

impl Selection for First {
    fn collects_all(&self) -> bool {
        false
    }

    fn choose(&self, choice: &mut Choice<'_>) {
        choice.collected.truncate(choice.count);
    }
}
