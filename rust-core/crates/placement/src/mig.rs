//! MIG: cards that are cut into instances of fixed profiles at fixed places.
//!
//! A placement takes the memory slices `[start, start + size)` of its card; two instances may not share one. An ask
//! names memory, not a profile: it gets the smallest profile that has it and a free placement, and is charged all of
//! that profile.

use std::cmp::Ordering;

use serde::{Deserialize, Serialize};

use crate::ask::{in_range, InvalidInput, MAX_CORES_PERCENT, MAX_MEMORY_MIB};
use crate::card::Amount;

/// How many memory slices of a card the engine can tell apart. Cards that are sold have eight.
pub const MIG_SLICES: u32 = 64;

/// Memory slices as bits, the lowest bit the first slice.
pub(crate) type SliceMask = u64;

/// Where an instance lies on its card: memory slices `[start, start + size)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "(i64, i64)", into = "(i64, i64)")]
pub struct MigPlacement {
    start: u8,
    size: u8,
}

impl MigPlacement {
    /// # Errors
    /// When it is empty or goes beyond the last of [`MIG_SLICES`] slices.
    pub fn new(start: i64, size: i64) -> Result<Self, InvalidInput> {
        let slices = i64::from(MIG_SLICES);
        let start = in_range("start of a placement", start, 0, slices - 1)?;
        let size = in_range("size of a placement", size, 1, slices - start)?;
        Ok(Self { start: start as u8, size: size as u8 })
    }

    /// The first slice.
    pub fn start(self) -> u32 {
        u32::from(self.start)
    }

    /// How many slices.
    pub fn size(self) -> u32 {
        u32::from(self.size)
    }

    pub(crate) fn mask(self) -> SliceMask {
        (SliceMask::MAX >> (MIG_SLICES - self.size())) << self.start
    }
}

impl TryFrom<(i64, i64)> for MigPlacement {
    type Error = InvalidInput;

    fn try_from((start, size): (i64, i64)) -> Result<Self, InvalidInput> {
        Self::new(start, size)
    }
}

impl From<MigPlacement> for (i64, i64) {
    fn from(placement: MigPlacement) -> Self {
        (i64::from(placement.start), i64::from(placement.size))
    }
}

/// A kind of instance that a card offers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MigProfile {
    name: String,
    memory_mib: i64,
    cores_percent: i64,
    slice_count: i64,
    placements: Vec<MigPlacement>,
}

impl MigProfile {
    /// `slice_count`: compute slices; among profiles of one size of memory the one with fewer is tried first.
    ///
    /// # Errors
    /// When a quantity is negative or beyond what sums can hold.
    pub fn new(
        name: &str,
        memory_mib: i64,
        cores_percent: i64,
        slice_count: i64,
        placements: Vec<MigPlacement>,
    ) -> Result<Self, InvalidInput> {
        let profile = Self { name: name.into(), memory_mib, cores_percent, slice_count, placements };
        profile.validate()?;
        Ok(profile)
    }

    pub(crate) fn validate(&self) -> Result<(), InvalidInput> {
        in_range("memory_mib of a profile", self.memory_mib, 0, MAX_MEMORY_MIB)?;
        in_range("cores_percent of a profile", self.cores_percent, 0, MAX_CORES_PERCENT)?;
        Ok(())
    }

    /// The profile's name, such as `1g.5gb`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Memory of an instance in MiB.
    pub fn memory_mib(&self) -> i64 {
        self.memory_mib
    }

    /// Cores of an instance in percent of the card.
    pub fn cores_percent(&self) -> i64 {
        self.cores_percent
    }

    /// Compute slices of an instance.
    pub fn slice_count(&self) -> i64 {
        self.slice_count
    }

    /// Where instances may lie.
    pub fn placements(&self) -> &[MigPlacement] {
        &self.placements
    }
}

/// An instance that a pod holds: its profile and place.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MigInstance {
    /// The profile's name.
    pub profile: String,
    /// Where it lies.
    pub placement: MigPlacement,
}

/// Which of a profile's free placements is taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum PlacementRule {
    /// By start: descending for profiles whose names begin with `1g.` or `3g.`, ascending for others.
    #[default]
    ByStart,
    /// The one that leaves room for most instances of the largest profile; among equals for most of the next smaller
    /// one, and so on; then by start.
    MostRoom,
}

/// A profile and placement of a layout, by their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MigChoice {
    profile: u16,
    placement: u16,
}

/// A profile made ready for choosing.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Offer {
    /// Number among the registered profiles.
    profile: usize,
    memory_mib: i64,
    /// In the order in which they are tried.
    placements: Vec<MigPlacement>,
    /// In the order of their ends: taking each that is still free takes as many as there can be.
    by_end: Vec<SliceMask>,
}

impl Offer {
    fn new(number: usize, profile: &MigProfile) -> Self {
        let mut placements = profile.placements.clone();
        if profile.name.starts_with("1g.") || profile.name.starts_with("3g.") {
            placements.sort_by_key(|placement| std::cmp::Reverse(placement.start));
        } else {
            placements.sort_by_key(|placement| placement.start);
        }
        let mut by_end = profile.placements.clone();
        by_end.sort_by_key(|placement| (placement.start + placement.size, placement.start));
        Self {
            profile: number,
            memory_mib: profile.memory_mib,
            placements,
            by_end: by_end.into_iter().map(MigPlacement::mask).collect(),
        }
    }

    /// How many more instances of this profile alone the card can take.
    fn room(&self, occupied: SliceMask) -> usize {
        let mut taken = occupied;
        self.by_end
            .iter()
            .filter(|mask| {
                let free = taken & **mask == 0;
                taken |= if free { **mask } else { 0 };
                free
            })
            .count()
    }
}

/// What the cards of one kind offer, in the order in which profiles are tried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MigLayout {
    registered: Vec<MigProfile>,
    offers: Vec<Offer>,
}

impl MigLayout {
    pub(crate) fn new(profiles: &[MigProfile]) -> Self {
        let mut offers: Vec<Offer> =
            profiles.iter().enumerate().map(|(number, profile)| Offer::new(number, profile)).collect();
        offers.sort_by_key(|offer| (offer.memory_mib, profiles[offer.profile].slice_count));
        Self { registered: profiles.to_vec(), offers }
    }

    /// As the node registered them.
    pub(crate) fn profiles(&self) -> &[MigProfile] {
        &self.registered
    }

    /// Memory of the largest profile, where an instance of it is the whole card: it has all cores.
    pub(crate) fn whole_memory_mib(&self, all_cores_percent: i64) -> Option<i64> {
        let largest = self.offers.last()?;
        let cores_percent = self.registered[largest.profile].cores_percent;
        (cores_percent >= all_cores_percent).then_some(largest.memory_mib)
    }

    /// The smallest profile with at least `memory_mib` that has a placement outside `occupied`.
    pub(crate) fn choose(
        &self,
        occupied: SliceMask,
        memory_mib: i64,
        rule: PlacementRule,
    ) -> Option<MigChoice> {
        let enough = self.offers.partition_point(|offer| offer.memory_mib < memory_mib);
        self.offers[enough..].iter().enumerate().find_map(|(number, offer)| {
            let placement = self.place(offer, occupied, rule)?;
            Some(MigChoice { profile: (enough + number) as u16, placement: placement as u16 })
        })
    }

    fn place(&self, offer: &Offer, occupied: SliceMask, rule: PlacementRule) -> Option<usize> {
        let mut free =
            (0..offer.placements.len()).filter(|number| offer.placements[*number].mask() & occupied == 0);
        let first = free.next()?;
        if rule == PlacementRule::ByStart {
            return Some(first);
        }
        let after = |number: usize| occupied | offer.placements[number].mask();
        Some(free.fold(first, |best, other| {
            if self.compare_room(after(other), after(best)).is_gt() {
                other
            } else {
                best
            }
        }))
    }

    /// Greater: `left` leaves more room, the largest profile first.
    fn compare_room(&self, left: SliceMask, right: SliceMask) -> Ordering {
        self.offers
            .iter()
            .rev()
            .map(|offer| offer.room(left).cmp(&offer.room(right)))
            .find(|order| order.is_ne())
            .unwrap_or(Ordering::Equal)
    }

    pub(crate) fn profile(&self, choice: MigChoice) -> &MigProfile {
        &self.registered[self.offers[usize::from(choice.profile)].profile]
    }

    /// What an instance takes of its card and of quotas.
    pub(crate) fn amount(&self, choice: MigChoice) -> Amount {
        let profile = self.profile(choice);
        Amount::new(profile.memory_mib, profile.cores_percent, 1)
    }

    fn placement(&self, choice: MigChoice) -> MigPlacement {
        self.offers[usize::from(choice.profile)].placements[usize::from(choice.placement)]
    }

    pub(crate) fn mask(&self, choice: MigChoice) -> SliceMask {
        self.placement(choice).mask()
    }

    pub(crate) fn instance(&self, choice: MigChoice) -> MigInstance {
        MigInstance { profile: self.profile(choice).name.clone(), placement: self.placement(choice) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn profile(
        name: &str,
        memory_mib: i64,
        cores: i64,
        slices: i64,
        size: i64,
        starts: &[i64],
    ) -> MigProfile {
        let placements = starts.iter().map(|start| MigPlacement::new(*start, size).unwrap()).collect();
        MigProfile::new(name, memory_mib, cores, slices, placements).unwrap()
    }

    fn a100() -> MigLayout {
        MigLayout::new(&[
            profile("7g.40gb", 40192, 100, 7, 8, &[0]),
            profile("1g.5gb", 4864, 15, 1, 1, &[0, 1, 2, 3, 4, 5, 6]),
            profile("2g.10gb", 9856, 29, 2, 2, &[0, 2, 4]),
            profile("3g.20gb", 19968, 43, 3, 4, &[0, 4]),
        ])
    }

    /// Profile and start of each instance, until one finds no place.
    fn fill(layout: &MigLayout, asks: &[i64], rule: PlacementRule) -> Vec<String> {
        let mut occupied = 0;
        asks.iter()
            .map_while(|memory_mib| {
                let choice = layout.choose(occupied, *memory_mib, rule)?;
                occupied |= layout.mask(choice);
                let MigInstance { profile, placement } = layout.instance(choice);
                Some(format!("{profile}@{}", placement.start()))
            })
            .collect()
    }

    #[test]
    fn the_smallest_profile_that_has_the_memory_and_a_place_is_taken() {
        use PlacementRule::ByStart;
        let cases: [(&[i64], &[&str]); 6] = [
            (&[4000, 4000], &["1g.5gb@6", "1g.5gb@5"]),
            (&[4865, 4865], &["2g.10gb@0", "2g.10gb@2"]),
            (&[19968, 9856, 4864, 4864], &["3g.20gb@4", "2g.10gb@0", "1g.5gb@3", "1g.5gb@2"]),
            (&[20000, 20000], &["7g.40gb@0"]),
            (&[40960], &[]),
            // The third finds no place for 2g and takes 3g.
            (&[9000, 1, 9000, 9000], &["2g.10gb@0", "1g.5gb@6", "2g.10gb@2", "2g.10gb@4"]),
        ];
        for (asks, taken) in cases {
            assert_eq!(fill(&a100(), asks, ByStart), taken, "{asks:?}");
        }
        assert_eq!(
            fill(&a100(), &[9000, 9000, 1, 9000], ByStart),
            ["2g.10gb@0", "2g.10gb@2", "1g.5gb@6", "2g.10gb@4"]
        );
        let blocked = MigPlacement::new(0, 1).unwrap().mask() | MigPlacement::new(2, 1).unwrap().mask();
        let choice = a100().choose(blocked | MigPlacement::new(4, 1).unwrap().mask(), 9000, ByStart);
        assert_eq!(choice, None);
        let choice = a100().choose(blocked, 9000, ByStart).unwrap();
        assert_eq!(a100().instance(choice).profile, "2g.10gb");
    }

    /// MIG-02
    #[test]
    fn memory_just_above_a_profile_takes_the_next_one() {
        let layout = a100();
        let named = |memory_mib| {
            layout
                .choose(0, memory_mib, PlacementRule::ByStart)
                .map(|choice| layout.profile(choice).name().to_string())
        };
        assert_eq!(named(4864).as_deref(), Some("1g.5gb"));
        assert_eq!(named(5000).as_deref(), Some("2g.10gb"));
        assert_eq!(named(5120).as_deref(), Some("2g.10gb"));
        assert_eq!(named(40193), None);
    }

    #[test]
    fn most_room_keeps_large_profiles_possible() {
        use PlacementRule::{ByStart, MostRoom};
        // By start 2g goes to 0 and then 1g to 6: no half is left. With room in mind one is.
        assert_eq!(fill(&a100(), &[9856, 4864, 19968], ByStart), ["2g.10gb@0", "1g.5gb@6"]);
        assert_eq!(fill(&a100(), &[9856, 4864, 19968], MostRoom), ["2g.10gb@0", "1g.5gb@3", "3g.20gb@4"]);
    }

    #[test]
    fn placements_beyond_the_last_slice_and_empty_ones_are_refused() {
        for (start, size) in [(0, 0), (-1, 1), (64, 1), (63, 2), (0, 65), (0, i64::MAX)] {
            assert!(MigPlacement::new(start, size).is_err(), "{start} {size}");
        }
        assert_eq!(MigPlacement::new(0, 64).unwrap().mask(), SliceMask::MAX);
        assert_eq!(MigPlacement::new(63, 1).unwrap().mask(), 1 << 63);
    }

    fn placements() -> impl Strategy<Value = Vec<MigPlacement>> {
        prop::collection::vec((0i64..8, 1i64..5), 0..6).prop_map(|found| {
            found.iter().map(|(start, size)| MigPlacement::new(*start, *size).unwrap()).collect()
        })
    }

    fn layouts() -> impl Strategy<Value = MigLayout> {
        let profile =
            (prop::sample::select(vec!["1g.a", "2g.b", "3g.c", "4g.d"]), 1i64..5, 1i64..4, placements());
        prop::collection::vec(profile, 0..4).prop_map(|found| {
            let profiles: Vec<_> = found
                .into_iter()
                .map(|(name, memory, slices, placements)| {
                    MigProfile::new(name, memory * 1000, 10, slices, placements).unwrap()
                })
                .collect();
            MigLayout::new(&profiles)
        })
    }

    /// As many disjoint placements as there can be, by trying every subset.
    fn brute_force_room(profile: &MigProfile, occupied: SliceMask) -> usize {
        let masks: Vec<SliceMask> = profile.placements.iter().map(|placement| placement.mask()).collect();
        (0u32..1 << masks.len())
            .filter_map(|subset| {
                let mut taken = occupied;
                for (number, mask) in masks.iter().enumerate().filter(|(number, _)| subset & 1 << number != 0)
                {
                    let _ = number;
                    if taken & mask != 0 {
                        return None;
                    }
                    taken |= mask;
                }
                Some(subset.count_ones() as usize)
            })
            .max()
            .unwrap_or(0)
    }

    proptest! {
        #[test]
        fn most_room_is_what_trying_everything_finds(
            layout in layouts(),
            occupied in 0u64..0x1000,
            memory in 0i64..5000,
        ) {
            let by_start = layout.choose(occupied, memory, PlacementRule::ByStart);
            let most_room = layout.choose(occupied, memory, PlacementRule::MostRoom);
            prop_assert_eq!(by_start.map(|choice| choice.profile), most_room.map(|choice| choice.profile));
            let Some(choice) = most_room else { return Ok(()) };
            prop_assert_eq!(layout.mask(choice) & occupied, 0);
            let rooms = |placement: MigPlacement| -> Vec<usize> {
                layout
                    .offers
                    .iter()
                    .rev()
                    .map(|offer| brute_force_room(&layout.registered[offer.profile], occupied | placement.mask()))
                    .collect()
            };
            let offer = &layout.offers[usize::from(choice.profile)];
            let free: Vec<_> =
                offer.placements.iter().copied().filter(|place| place.mask() & occupied == 0).collect();
            let best = free.iter().map(|place| rooms(*place)).max().unwrap();
            let first = free.iter().find(|place| rooms(**place) == best).unwrap();
            prop_assert_eq!(layout.placement(choice), *first);
        }
    }
}
