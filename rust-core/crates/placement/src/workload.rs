//! The pods that are expected, as shapes of requests with how often they come. The policy `fgd` judges by them.
//!
//! A workload is given as data, or else follows from the pods booked on the cluster: a pod counts as a request for as
//! many cards as it holds (16 at most) of the most it holds of one of them, in steps of 5 % of a card, rounded up.
//! Frequencies are rounded to 64ths and rarer shapes left out, so that one more pod seldom changes the workload. It
//! is a function of what is booked, whatever the order in which it came.

use serde::{Deserialize, Serialize};

use crate::ask::{in_range, Ask, CardConstraint, ContainerAsk, ContainerKind, InvalidInput, PodAsk};
use crate::booking::Held;
use crate::family::Families;
use crate::host::HostAmount;
use crate::node::{Node, UNREGISTERED};

/// Frequencies of booked shapes are counted in so many parts of one.
const BOOKED_PARTS: u64 = 64;
const STEP_PERCENT: i64 = 5;
const MOST_CARDS: usize = 16;

/// One shape of requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkloadShape {
    pub(crate) weight: u32,
    pub(crate) pod: PodAsk,
}

impl WorkloadShape {
    /// `weight`: how often it comes in proportion to the other shapes, for example as a count of pods. `ask` None: a
    /// pod without cards. `constraint` None: any card of the vendor.
    ///
    /// # Errors
    /// When the weight is negative or beyond 32 bits.
    pub fn new(
        weight: i64,
        ask: Option<Ask>,
        constraint: Option<CardConstraint>,
        host: HostAmount,
    ) -> Result<Self, InvalidInput> {
        let weight = in_range("weight", weight, 0, i64::from(u32::MAX))? as u32;
        let vendor = ask.as_ref().map(|ask| ask.vendor().clone());
        let container = ContainerAsk::new("", ContainerKind::App, ask.into_iter().collect())?;
        let mut pod = PodAsk::new("", "", "", vec![container])?.with_host(host);
        if let (Some(vendor), Some(constraint)) = (vendor, constraint) {
            pod = pod.with_constraint(&vendor, constraint);
        }
        Ok(Self { weight, pod })
    }

    /// Brings a shape that was read field by field into the form that the constructor gives.
    pub(crate) fn settle(&mut self) -> Result<(), InvalidInput> {
        self.pod.settle()
    }
}

/// A shape of booked pods. Its order is that of its fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct BookedShape {
    /// Number of the family.
    family: u16,
    cards: u16,
    memory_percent: u8,
    cores_percent: u8,
}

impl BookedShape {
    /// As a shape of requests that comes `weight` times.
    pub(crate) fn as_request(self, weight: u32, families: &Families) -> Result<WorkloadShape, InvalidInput> {
        let ask = Ask::new(
            &families.at(self.family).word,
            i64::from(self.cards),
            0,
            Some(i64::from(self.memory_percent)),
            i64::from(self.cores_percent),
        )?;
        WorkloadShape::new(i64::from(weight), Some(ask), None, HostAmount::default())
    }
}

/// How many booked pods have each shape.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct BookedShapes {
    /// Sorted. Rows of 0 are kept: there are few possible shapes, and most come again.
    rows: Vec<(BookedShape, u32)>,
    total: u64,
}

impl BookedShapes {
    /// Counts what a pod holds on a node, or takes it out again. Cards that are not registered do not count.
    pub(crate) fn count(&mut self, held: &[Held], node: &Node, families: &Families, adds: bool) {
        for (index, first) in held.iter().enumerate() {
            if held[..index].iter().any(|earlier| earlier.vendor == first.vendor) {
                continue;
            }
            let Some(family) = families.number_of(&first.vendor) else { continue };
            let mut cards = 0;
            let (mut memory, mut cores) = (STEP_PERCENT, 0);
            for held in held[index..].iter().filter(|held| held.vendor == first.vendor) {
                let position = node.known[held.card as usize].position;
                if position == UNREGISTERED {
                    continue;
                }
                let total = node.cards[usize::from(position)].total;
                cards += 1;
                memory = memory.max(steps(held.amount.memory_mib, total.memory_mib));
                cores = cores.max(steps(held.amount.cores_percent, total.cores_percent));
            }
            if cards > 0 {
                let shape = BookedShape {
                    family,
                    cards: cards.min(MOST_CARDS) as u16,
                    memory_percent: memory as u8,
                    cores_percent: cores as u8,
                };
                self.shift(shape, adds);
            }
        }
    }

    fn shift(&mut self, shape: BookedShape, adds: bool) {
        let place = match self.rows.binary_search_by_key(&shape, |row| row.0) {
            Ok(place) => place,
            Err(place) => {
                self.rows.insert(place, (shape, 0));
                place
            }
        };
        let count = &mut self.rows[place].1;
        if adds {
            *count += 1;
            self.total += 1;
        } else {
            *count -= 1;
            self.total -= 1;
        }
    }

    /// The shapes that make up at least half a part of all pods, each with its parts.
    pub(crate) fn parts(&self) -> impl Iterator<Item = (BookedShape, u32)> + '_ {
        let part = |count: u32| (u64::from(count) * BOOKED_PARTS * 2 + self.total) / (self.total.max(1) * 2);
        self.rows.iter().map(move |(shape, count)| (*shape, part(*count) as u32)).filter(|row| row.1 > 0)
    }

    /// Whether both count the same pods.
    pub(crate) fn counts_as(&self, other: &Self) -> bool {
        let counted = |shapes: &Self| -> Vec<(BookedShape, u32)> {
            shapes.rows.iter().copied().filter(|row| row.1 > 0).collect()
        };
        self.total == other.total && counted(self) == counted(other)
    }
}

/// The share in percent, rounded up to a step, of 100 at most.
fn steps(amount: i64, total: i64) -> i64 {
    if amount <= 0 || total <= 0 {
        return 0;
    }
    let percent = i128::from(amount) * 100;
    let step = i128::from(total) * i128::from(STEP_PERCENT);
    ((percent + step - 1) / step * i128::from(STEP_PERCENT)).min(100) as i64
}

/// What pods are expected.
#[derive(Clone, Debug, Default)]
pub(crate) struct Workload {
    /// None: as booked.
    pub(crate) given: Option<Vec<WorkloadShape>>,
    /// Changes with `given`.
    pub(crate) generation: u64,
    pub(crate) booked: BookedShapes,
}

impl Workload {
    pub(crate) fn set(&mut self, shapes: Option<Vec<WorkloadShape>>) {
        self.given = shapes;
        self.generation += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_rounded_up_to_steps() {
        for (amount, total, percent) in [
            (0, 100, 0),
            (1, 100, 5),
            (5, 100, 5),
            (51, 1000, 10),
            (100, 100, 100),
            (300, 100, 100),
            (5, 0, 0),
        ] {
            assert_eq!(steps(amount, total), percent, "{amount} of {total}");
        }
    }

    #[test]
    fn parts_are_rounded_and_rare_shapes_left_out() {
        let shape = |cards| BookedShape { family: 0, cards, memory_percent: 5, cores_percent: 0 };
        let mut shapes = BookedShapes::default();
        for _ in 0..150 {
            shapes.shift(shape(1), true);
        }
        for _ in 0..49 {
            shapes.shift(shape(2), true);
        }
        shapes.shift(shape(4), true);
        assert_eq!(shapes.parts().collect::<Vec<_>>(), [(shape(1), 48), (shape(2), 16)]);
        let before = shapes.clone();
        shapes.shift(shape(8), true);
        shapes.shift(shape(8), false);
        assert!(shapes.counts_as(&before) && !shapes.counts_as(&BookedShapes::default()));
    }
}
