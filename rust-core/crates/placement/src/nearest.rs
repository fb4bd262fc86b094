//! The search for the smallest change on one node. Every change it finds was tried: the pod then fits, and with one
//! unit less of any part it does not.

use crate::ask::PodAsk;
use crate::change::{lowered_ask, AskField, Change, FaultyCard, Shift};
use crate::cluster::Cluster;
use crate::walk::{Base, Nobody};

/// How many sets of pods or cards are tried before the search goes over to leaving out what is not needed.
const SETS_TRIED: usize = 500;
/// Numbers up to this are tried one by one.
const TRIED_ONE_BY_ONE: i64 = 128;

/// A change with the cards the pod would then get.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeChange {
    /// The node.
    pub node: String,
    /// What would have to change.
    pub change: Change,
    /// Ids of the cards the pod would then get, each once, in the order they are given.
    pub cards: Vec<String>,
}

impl Cluster {
    /// The smallest change of each kind that makes the pod fit on a node, the smallest first.
    ///
    /// The pod's own booking must be lifted. The state is as before when this returns.
    pub(crate) fn smallest_changes(&mut self, place: u32, pod: &PodAsk) -> Vec<NodeChange> {
        let mut found = Vec::new();
        found.extend(self.restored_cards(place, pod));
        found.extend(self.raised_quota(place, pod));
        found.extend(self.lowered_asks(place, pod));
        found.extend(self.ended_pods(place, pod));
        found.sort_by(|left: &NodeChange, right| {
            left.change.cost().cmp(&right.change.cost()).then_with(|| left.change.cmp(&right.change))
        });
        found
    }

    fn fits_now(&mut self, place: u32, pod: &PodAsk) -> bool {
        self.prepare(pod);
        let search = &mut self.search;
        search.walk.fit(&self.nodes[place], pod, &mut search.demands, Base::Present, &mut Nobody).is_ok()
    }

    /// With the cards of the last walk that fitted.
    fn found(&mut self, place: u32, change: Change) -> NodeChange {
        let node = &self.nodes[place];
        let mut cards: Vec<String> = Vec::new();
        for taken in &self.search.walk.taken {
            let id = node.id_at(usize::from(taken.position));
            if !cards.iter().any(|known| **known == **id) {
                cards.push(id.to_string());
            }
        }
        NodeChange { node: self.nodes.name(place).into(), change, cards }
    }

    fn restored_cards(&mut self, place: u32, pod: &PodAsk) -> Option<NodeChange> {
        let node = &self.nodes[place];
        let positions: Vec<usize> = (0..node.cards.len())
            .filter(|position| {
                let faults = node.cards[*position].faults;
                faults.unhealthy || faults.cordoned
            })
            .collect();
        let before: Vec<_> = positions.iter().map(|position| node.cards[*position].faults).collect();
        let mut restored = vec![false; positions.len()];
        let set = smallest_set(positions.len(), |wanted| {
            for number in 0..positions.len() {
                if restored[number] != wanted[number] {
                    let faults = &mut self.nodes[place].cards[positions[number]].faults;
                    (faults.unhealthy, faults.cordoned) = if wanted[number] {
                        (false, false)
                    } else {
                        (before[number].unhealthy, before[number].cordoned)
                    };
                    restored[number] = wanted[number];
                }
            }
            self.nodes.refresh(place);
            self.fits_now(place, pod)
        });
        let found = set.map(|set| {
            let faulty_card = |number: &usize| FaultyCard {
                card_id: self.nodes[place].id_at(positions[*number]).to_string(),
                unhealthy: before[*number].unhealthy,
                cordoned: before[*number].cordoned,
            };
            let cards = set.iter().map(faulty_card).collect();
            self.found(place, Change::RestoreCards { cards })
        });
        for (position, faults) in positions.iter().zip(before) {
            self.nodes[place].cards[*position].faults = faults;
        }
        self.nodes.refresh(place);
        found
    }

    fn ended_pods(&mut self, place: u32, pod: &PodAsk) -> Option<NodeChange> {
        let node = &self.nodes[place];
        let mut bookings: Vec<(i64, i64, i64, &str, u32)> = node
            .bookings
            .iter()
            .map(|number| (&self.bookings.slots[*number], *number))
            .filter(|(booking, _)| booking.uid != pod.uid)
            .filter(|(booking, _)| !(booking.held.is_empty() && booking.blocked.is_empty()))
            .map(|(booking, number)| {
                let sum = booking.held.iter().fold((0, 0, 0), |sum, held| {
                    let amount = held.amount;
                    (sum.0 + amount.memory_mib, sum.1 + amount.cores_percent, sum.2 + amount.slots)
                });
                (sum.0, sum.1, sum.2, booking.uid.as_str(), number)
            })
            .collect();
        bookings.sort_unstable();
        let numbers: Vec<u32> = bookings.into_iter().map(|(.., number)| number).collect();
        let mut ended = vec![false; numbers.len()];
        let mut end = |cluster: &mut Self, wanted: &[bool]| {
            for number in 0..numbers.len() {
                if ended[number] != wanted[number] {
                    cluster.apply(numbers[number], !wanted[number]);
                    ended[number] = wanted[number];
                }
            }
        };
        let set = smallest_set(numbers.len(), |wanted| {
            end(self, wanted);
            self.fits_now(place, pod)
        });
        let found = set.map(|set| {
            let uid = |number: &usize| self.bookings.slots[numbers[*number]].uid.clone();
            let uids = set.iter().map(uid).collect();
            self.found(place, Change::EndPods { uids })
        });
        end(self, &vec![false; numbers.len()]);
        found
    }

    fn raised_quota(&mut self, place: u32, pod: &PodAsk) -> Option<NodeChange> {
        let mut vendors: Vec<String> = Vec::new();
        for ask in pod.containers.iter().flat_map(|container| &container.asks) {
            if !vendors.iter().any(|known| **known == **ask.vendor()) {
                vendors.push(ask.vendor().to_string());
            }
        }
        vendors.into_iter().find_map(|vendor| {
            let limits = self.quota_limits(&pod.namespace, &vendor);
            let change = self.raised_limits(place, pod, &vendor, limits);
            let found = change.map(|change| self.found(place, change));
            self.set_quota(&pod.namespace, &vendor, limits.0, limits.1);
            found
        })
    }

    /// Leaves other limits than it found.
    fn raised_limits(
        &mut self,
        place: u32,
        pod: &PodAsk,
        vendor: &str,
        (memory, cores): (Option<i64>, Option<i64>),
    ) -> Option<Change> {
        let mut fits = |memory: Option<i64>, cores: Option<i64>| {
            self.set_quota(&pod.namespace, vendor, memory, cores);
            self.fits_now(place, pod)
        };
        if (memory, cores) == (None, None) || !fits(None, None) {
            return None;
        }
        // With what is found for one limit the other is looked for; a limit that suffices stays as it is.
        let raised = |limit: Option<i64>, fits: &mut dyn FnMut(Option<i64>) -> bool| match limit {
            Some(limit) if !fits(Some(limit)) => first_that_fits_above(limit, |limit| fits(Some(limit))),
            _ => limit,
        };
        let new_memory = raised(memory, &mut |memory| fits(memory, None));
        let new_cores = raised(cores, &mut |cores| fits(new_memory, cores));
        if !fits(new_memory, new_cores) {
            return None;
        }
        let shift = |from: Option<i64>, to: Option<i64>| {
            from.zip(to).filter(|(from, to)| from != to).map(|(from, to)| Shift { from, to })
        };
        Some(Change::RaiseQuota {
            namespace: pod.namespace.clone(),
            vendor: vendor.into(),
            memory_mib: shift(memory, new_memory),
            cores_percent: shift(cores, new_cores),
        })
    }

    /// The smallest way in which one container may ask less of one vendor.
    fn lowered_asks(&mut self, place: u32, pod: &PodAsk) -> Option<NodeChange> {
        let mut best: Option<NodeChange> = None;
        for container in 0..pod.containers.len() {
            for ask in 0..pod.containers[container].asks.len() {
                for lowered in self.lowered_fields(place, pod, container, ask) {
                    let change = Change::LowerAsk {
                        container_number: container as u16,
                        container: pod.containers[container].name.clone(),
                        vendor: pod.containers[container].asks[ask].vendor().to_string(),
                        lowered,
                    };
                    let rank = |change: &Change| (change.cost(), change.clone());
                    if best.as_ref().is_some_and(|best| rank(&best.change) <= rank(&change)) {
                        continue;
                    }
                    if let Some(change) = self.tried(place, pod, change) {
                        best = Some(change);
                    }
                }
            }
        }
        best
    }

    /// The change when the pod then fits and with one unit less does not.
    fn tried(&mut self, place: u32, pod: &PodAsk, change: Change) -> Option<NodeChange> {
        let Change::LowerAsk { container_number, vendor, .. } = &change else { return None };
        let mut fits = |less: &Change| match less {
            Change::LowerAsk { lowered, .. } => {
                let asked = lowered_ask(pod, usize::from(*container_number), vendor, lowered);
                self.fits_now(place, &asked)
            }
            _ => false,
        };
        let holds = !change.one_less().iter().any(&mut fits) && fits(&change);
        holds.then(|| self.found(place, change))
    }

    /// Ways of lowering one ask, each of one number or of memory and cores together.
    fn lowered_fields(
        &mut self,
        place: u32,
        pod: &PodAsk,
        container: usize,
        ask: usize,
    ) -> Vec<Vec<(AskField, Shift)>> {
        let asked = &pod.containers[container].asks[ask];
        let vendor = asked.vendor().to_string();
        let memory = match (asked.memory_mib, asked.memory_percent) {
            (mib, _) if mib > 0 => Some((AskField::MemoryMib, mib)),
            (_, Some(percent)) => Some((AskField::MemoryPercent, percent)),
            _ => None,
        };
        let most_cores = self
            .families
            .find(&vendor)
            .map_or(0, |family| asked.cores_percent.min(family.most_cores_percent));
        let (cores_from, count) = (asked.cores_percent, i64::from(asked.count));
        let node = &self.nodes[place];
        let mut free_memory: Vec<i64> =
            node.cards.iter().map(|card| card.total.memory_mib - card.used.memory_mib).collect();
        free_memory.sort_unstable_by(|left, right| right.cmp(left));
        free_memory.dedup();
        let cards = node.cards.len() as i64;
        let mut fits = |lowered: &[(AskField, Shift)]| {
            let lowered = lowered_ask(pod, container, &vendor, lowered);
            self.fits_now(place, &lowered)
        };
        let mut ways = Vec::new();
        if let Some((field, from)) = memory {
            let part = |to| (field, Shift { from, to });
            if let Some(to) = largest_that_fits((1, from), &free_memory, |to| fits(&[part(to)])) {
                ways.push(vec![part(to)]);
            }
        }
        let cores_part = |to| (AskField::CoresPercent, Shift { from: cores_from, to });
        if let Some(to) = largest_that_fits((0, most_cores), &[], |to| fits(&[cores_part(to)])) {
            ways.push(vec![cores_part(to)]);
        }
        let count_part = |to| (AskField::Count, Shift { from: count, to });
        if let Some(to) = largest_that_fits((1, count), &[cards + 1, cards], |to| fits(&[count_part(to)])) {
            ways.push(vec![count_part(to)]);
        }
        if !ways.is_empty() {
            return ways;
        }
        let Some((field, from)) = memory else { return ways };
        let memory_part = |to| (field, Shift { from, to });
        let cores = largest_that_fits((0, most_cores), &[], |to| fits(&[memory_part(1), cores_part(to)]));
        if let Some(cores) = cores {
            let cores = cores_part(cores);
            let memory = largest_that_fits((1, from), &free_memory, |to| fits(&[memory_part(to), cores]));
            ways.extend(memory.map(|memory| vec![memory_part(memory), cores]));
        }
        ways
    }
}

/// The first number above `fails` that fits, found by steps that double and then by halving. `fits` must hold for
/// some number that large.
fn first_that_fits_above(fails: i64, mut fits: impl FnMut(i64) -> bool) -> Option<i64> {
    let (mut fails, mut step) = (fails, 1i64);
    loop {
        let next = fails.checked_add(step)?;
        if fits(next) {
            return Some(halve(fails, next, fits));
        }
        fails = next;
        step = step.checked_mul(2)?;
    }
}

/// The largest number from `least` up to below `asked` that fits. Few numbers are all tried; of many those `likely`
/// (in falling order), the least, and what lies between the largest of them that fits and the next.
fn largest_that_fits(
    (least, asked): (i64, i64),
    likely: &[i64],
    mut fits: impl FnMut(i64) -> bool,
) -> Option<i64> {
    if asked - least <= TRIED_ONE_BY_ONE {
        return (least..asked).rev().find(|number| fits(*number));
    }
    let mut fails = asked;
    let inside = likely.iter().copied().filter(|number| (least + 1..asked).contains(number));
    for number in inside.chain([least]) {
        if fits(number) {
            return Some(halve(fails, number, fits));
        }
        fails = number;
    }
    None
}

/// A number that fits beside one that does not, between the two given.
fn halve(mut fails: i64, mut good: i64, mut fits: impl FnMut(i64) -> bool) -> i64 {
    while fails.abs_diff(good) > 1 {
        let middle = good + (fails - good) / 2;
        if fits(middle) {
            good = middle;
        } else {
            fails = middle;
        }
    }
    good
}

/// The first of the smallest sets that fit, in their order; None where not even all together do.
///
/// All sets of a size are tried while they are few. After that the search leaves out of all, one by one and the first
/// first, what is not needed: of what remains none can be left out, though a smaller set may exist.
fn smallest_set(count: usize, mut fits: impl FnMut(&[bool]) -> bool) -> Option<Vec<usize>> {
    if count == 0 || !fits(&vec![true; count]) {
        return None;
    }
    let chosen = |set: &[bool]| (0..count).filter(|number| set[*number]).collect::<Vec<_>>();
    let mut tried = 0;
    for size in 1..count {
        let mut members: Vec<usize> = (0..size).collect();
        loop {
            let mut set = vec![false; count];
            for member in &members {
                set[*member] = true;
            }
            if fits(&set) {
                return Some(members);
            }
            tried += 1;
            if tried == SETS_TRIED {
                let needed = needed_set(count, &mut fits);
                return fits(&needed).then(|| chosen(&needed));
            }
            if !next_members(&mut members, count) {
                break;
            }
        }
    }
    fits(&vec![true; count]).then(|| (0..count).collect())
}

/// The next choice of numbers below `count`, in the order of the numbers; false after the last.
fn next_members(members: &mut [usize], count: usize) -> bool {
    let size = members.len();
    let movable = (0..size).rev().find(|place| members[*place] < count - size + place);
    let Some(place) = movable else { return false };
    members[place] += 1;
    for later in place + 1..size {
        members[later] = members[later - 1] + 1;
    }
    true
}

fn needed_set(count: usize, fits: &mut impl FnMut(&[bool]) -> bool) -> Vec<bool> {
    let mut set = vec![true; count];
    loop {
        let mut left_out = false;
        for number in 0..count {
            if set[number] {
                set[number] = false;
                if fits(&set) {
                    left_out = true;
                } else {
                    set[number] = true;
                }
            }
        }
        if !left_out {
            return set;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_beside_one_that_fails() {
        for good in [1, 2, 500, 998, 999] {
            assert_eq!(largest_that_fits((1, 1000), &[700, 300], |number| number <= good), Some(good));
            assert_eq!(first_that_fits_above(0, |number| number >= good), Some(good));
        }
        assert_eq!(largest_that_fits((1, 1000), &[], |_| false), None);
        // Few numbers are all tried, so gaps do no harm.
        assert_eq!(largest_that_fits((0, 100), &[], |number| number == 37), Some(37));
    }

    #[test]
    fn sets_are_the_smallest_and_first_while_few_are_tried() {
        let needs = |wanted: &'static [usize]| move |set: &[bool]| wanted.iter().all(|number| set[*number]);
        assert_eq!(smallest_set(3, needs(&[1])), Some(vec![1]));
        assert_eq!(smallest_set(6, needs(&[2, 5])), Some(vec![2, 5]));
        assert_eq!(smallest_set(3, needs(&[0, 1, 2])), Some(vec![0, 1, 2]));
        assert_eq!(smallest_set(0, |_| true), None);
        assert_eq!(smallest_set(3, |_| false), None);
        assert_eq!(smallest_set(80, needs(&[7, 30, 79])), Some(vec![7, 30, 79]));
        assert_eq!(
            smallest_set(5, |set| set.iter().filter(|member| **member).count() > 2),
            Some(vec![0, 1, 2])
        );
    }
}
