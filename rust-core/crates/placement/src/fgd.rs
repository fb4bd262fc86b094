//! Fragmentation: how much of a node's free cards the expected pods could not use.
//!
//! After Weng et al., "Beware of Fragmentation" (USENIX ATC'23). The free share of a card is the smaller of its free
//! memory and its free cores, as fractions of the card; it is 0 where the card is faulty or has no free slot. For a
//! shape m of the workload on a node:
//!
//! - `free` is the sum of the free shares of all cards;
//! - `able(m)` is that of the cards that pass m's checks, or 0 where m cannot run on the node: too few such cards, no
//!   card of an allowed model, or too little free processor time or memory of the host, if that is known;
//! - `hosted(m)` is `able(m)`, at most what as many copies of m take as the free host amounts last for (fractions of
//!   a copy count).
//!
//! The fragment m sees is `free` less the mean of `able(m)` and `hosted(m)`. Without host amounts both are the same and
//! this is the method of the paper. There, a node whose host is nearly used up counts as whole until the last copy no
//! longer fits; `hosted` sees it coming.
//!
//! The fragmentation of a node is the sum over m of `weight(m)` times the fragment m sees. The weight is m's frequency
//! times `cards of the cluster / cards that m could use were they empty`: who can use few cards needs them kept; and
//! times the square root of the cards it asks for: half-way between counting pods and counting cards, so that the few
//! pods that need a whole node find one. For pods of one card that can use every card this is the frequency, as in the
//! paper.
//!
//! A policy takes the choice by which fragmentation grows least. All is counted in whole numbers, so sums do not
//! depend on their order.

use crate::card::{CardKind, CardKinds, ScannedCard};
use crate::check::{failed_checks, Check, KindNeed};
use crate::demand::Demands;
use crate::family::Families;
use crate::host::HostAmount;
use crate::node::Node;
use crate::quota::Quotas;
use crate::usage::PodUse;
use crate::workload::{BookedShape, Workload, WorkloadShape};

/// Free shares are counted in millionths of a card.
const CARD: i64 = 1_000_000;
/// The weights of all shapes together, as nearly as rounding allows.
const WEIGHTS: f64 = 1_048_576.0;
/// The mean of `able` and `hosted` is counted as their sum.
const TERMS: i64 = 2;

/// Checks that no request passes on a card that fails them.
const CLOSED: u32 = Check::Health.bit()
    | Check::MigReservation.bit()
    | Check::Cordon.bit()
    | Check::Blocked.bit()
    | Check::Slots.bit();

/// What one shape needs of cards of one kind.
#[derive(Clone, Copy, Debug)]
struct Need {
    need: KindNeed,
    /// The share of a card that one copy takes.
    share: i64,
}

/// One shape, made ready.
#[derive(Clone, Copy, Debug)]
struct Shape {
    weight: i64,
    /// Cards that one copy takes.
    cards: u32,
    host: HostAmount,
    /// Copies for each free thousandth of a core and MiB of the host.
    copies_per_cpu_milli: f64,
    copies_per_memory_mib: f64,
}

/// What one shape finds on the node at hand.
#[derive(Clone, Copy, Debug, Default)]
struct Found {
    /// Free shares of the cards that pass.
    able: i64,
    cards: u32,
    /// The largest share that a copy takes of one card here.
    share: i64,
}

/// What the shapes were made ready from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Origin {
    given: Option<u64>,
    booked: Vec<(BookedShape, u32)>,
    kinds_generation: u64,
}

/// The workload made ready for one set of kinds of cards, and the node at hand. Buffers are kept from pod to pod.
#[derive(Clone, Default)]
pub(crate) struct Fragments {
    origin: Origin,
    /// Changes whenever the same node may come to have another fragmentation.
    pub(crate) epoch: u64,
    shapes: Vec<Shape>,
    /// By kind, then by shape.
    needs: Vec<Need>,
    /// Memory in MiB and cores in percent of the kinds.
    totals: Vec<(i64, i64)>,
    /// The weight of all shapes.
    weight: i64,
    found: Vec<Found>,
    distinct: Vec<(ScannedCard, u32)>,
    free: i64,
    host: Option<HostAmount>,
    /// Fragmentation of the node at hand.
    value: i64,
    /// By place: the fragmentation as booked, with the version of the node it is of.
    kept: Vec<(u64, i64)>,
}

impl Fragments {
    /// Reads the workload anew where it, or the kinds of cards, have changed.
    pub(crate) fn prepare(&mut self, workload: &Workload, families: &Families, kinds: &CardKinds) {
        let given = workload.given.as_ref().map(|_| workload.generation);
        let known = &self.origin;
        let same_booked = given.is_some() || workload.booked.parts().eq(known.booked.iter().copied());
        if self.epoch > 0 && known.given == given && known.kinds_generation == kinds.generation && same_booked
        {
            return;
        }
        self.epoch += 1;
        self.kept.clear();
        self.origin.given = given;
        self.origin.kinds_generation = kinds.generation;
        self.origin.booked.clear();
        if given.is_none() {
            self.origin.booked.extend(workload.booked.parts());
        }
        let from_booked: Vec<WorkloadShape>;
        let shapes = if let Some(shapes) = &workload.given {
            shapes
        } else {
            // Families and amounts were checked when the pods were booked.
            let request = |(shape, parts): &(BookedShape, u32)| shape.as_request(*parts, families).ok();
            from_booked = self.origin.booked.iter().filter_map(request).collect();
            &from_booked
        };
        self.read(shapes, families, kinds);
    }

    fn read(&mut self, shapes: &[WorkloadShape], families: &Families, kinds: &CardKinds) {
        let mut demands = Demands::default();
        let all_cards: f64 = kinds.all().iter().map(|kind| f64::from(kind.cards)).sum();
        let all_pods: f64 = shapes.iter().map(|shape| f64::from(shape.weight)).sum();
        self.shapes.clear();
        self.needs.clear();
        self.totals.clear();
        self.totals.extend(kinds.all().iter().map(|k| (k.total.memory_mib, k.total.cores_percent)));
        let mut needs_by_shape: Vec<Vec<Need>> = Vec::with_capacity(shapes.len());
        for shape in shapes {
            demands.prepare(&shape.pod, families, kinds, &Quotas::default());
            let Some(demand) = demands.list.first() else { continue };
            let needs = demands.needs(demand);
            let usable: f64 = kinds
                .all()
                .iter()
                .zip(needs)
                .filter(|(_, need)| need.candidate && need.fits_empty)
                .map(|(kind, _)| f64::from(kind.cards))
                .sum();
            if usable == 0.0 || shape.weight == 0 {
                // Nothing is kept free for who can run nowhere.
                continue;
            }
            let frequency = f64::from(shape.weight) / all_pods * f64::from(demand.count).sqrt();
            let host = shape.pod.host;
            self.shapes.push(Shape {
                weight: (WEIGHTS * frequency * all_cards / usable).round() as i64,
                cards: demand.count,
                host,
                copies_per_cpu_milli: 1.0 / host.cpu_milli as f64,
                copies_per_memory_mib: 1.0 / host.memory_mib as f64,
            });
            let need_of = |(kind, need): (&CardKind, &KindNeed)| {
                let usable = need.candidate && need.fits_empty;
                Need { need: *need, share: if usable { share_taken(kind, need) } else { 0 } }
            };
            needs_by_shape.push(kinds.all().iter().zip(needs).map(need_of).collect());
        }
        for kind in 0..kinds.all().len() {
            self.needs.extend(needs_by_shape.iter().map(|needs| needs[kind]));
        }
        self.weight = self.shapes.iter().map(|shape| shape.weight).sum();
    }

    fn needs_of_kind(&self, kind: u16) -> &[Need] {
        let shapes = self.shapes.len();
        &self.needs[usize::from(kind) * shapes..][..shapes]
    }

    /// The free share of a card that someone could take.
    fn free_share(&self, card: ScannedCard) -> i64 {
        let (memory, cores) = self.totals[usize::from(card.kind)];
        if u32::from(card.state) & CLOSED != 0 || memory <= 0 || cores <= 0 {
            return 0;
        }
        let memory = card.free_memory_mib.max(0) * CARD / memory;
        memory.min(i64::from(card.free_cores_percent.max(0)) * CARD / cores)
    }

    /// Takes a node at hand; `cards` as they would be, `host` what of it would be free.
    fn load(&mut self, cards: impl Iterator<Item = ScannedCard>, host: Option<HostAmount>) {
        self.distinct.clear();
        for card in cards {
            match self.distinct.iter_mut().find(|(known, _)| *known == card) {
                Some((_, times)) => *times += 1,
                None => self.distinct.push((card, 1)),
            }
        }
        let mut found = std::mem::take(&mut self.found);
        found.clear();
        found.resize(self.shapes.len(), Found::default());
        self.free = 0;
        self.host = host;
        for &(card, times) in &self.distinct {
            let free = self.free_share(card) * i64::from(times);
            self.free += free;
            for (found, need) in found.iter_mut().zip(self.needs_of_kind(card.kind)) {
                let passes = passes(card, need);
                found.able += if passes { free } else { 0 };
                found.cards += if passes { times } else { 0 };
                found.share = found.share.max(need.share);
            }
        }
        let used: i64 = self.shapes.iter().zip(&found).map(|(shape, found)| self.usable(shape, *found)).sum();
        self.found = found;
        self.value = TERMS * self.weight * self.free - used;
    }

    /// `able + hosted` of a shape, times its weight.
    #[inline]
    fn usable(&self, shape: &Shape, found: Found) -> i64 {
        if found.cards < shape.cards {
            return 0;
        }
        let Some(host) = self.host else { return shape.weight * TERMS * found.able };
        if !host.covers(shape.host) {
            return 0;
        }
        let mut hosted = found.able;
        let taken = found.share * i64::from(shape.cards);
        if taken > 0 && shape.host.cpu_milli > 0 {
            hosted = hosted.min((host.cpu_milli as f64 * shape.copies_per_cpu_milli * taken as f64) as i64);
        }
        if taken > 0 && shape.host.memory_mib > 0 {
            hosted = hosted.min((host.memory_mib as f64 * shape.copies_per_memory_mib * taken as f64) as i64);
        }
        shape.weight * (found.able + hosted)
    }

    /// By how much the fragmentation of the node at hand grows when one of its cards changes.
    fn growth_by_card(&self, before: ScannedCard, after: ScannedCard) -> i64 {
        let (free_before, free_after) = (self.free_share(before), self.free_share(after));
        let mut growth = TERMS * self.weight * (free_after - free_before);
        for ((shape, found), need) in self.shapes.iter().zip(&self.found).zip(self.needs_of_kind(before.kind))
        {
            let passed_before = passes(before, need);
            let passes_after = passes(after, need);
            let changed = Found {
                able: found.able - if passed_before { free_before } else { 0 }
                    + if passes_after { free_after } else { 0 },
                cards: found.cards - u32::from(passed_before) + u32::from(passes_after),
                share: found.share,
            };
            growth += self.usable(shape, *found) - self.usable(shape, changed);
        }
        growth
    }

    /// By how much the fragmentation of a node grows by what a pod takes of its cards and host.
    ///
    /// `version`: changes with the node; `place`: where it is.
    pub(crate) fn growth_of_node(
        &mut self,
        (place, version): (u32, u64),
        node: &Node,
        pod_use: &[PodUse],
        host: HostAmount,
    ) -> i64 {
        let before = self.fragmentation((place, version), node);
        self.load(cards_with(node, pod_use), node.host.map(|free| free.without(host)));
        self.value - before
    }

    /// The fragmentation of a node as booked.
    pub(crate) fn fragmentation(&mut self, (place, version): (u32, u64), node: &Node) -> i64 {
        let index = place as usize;
        if self.kept.len() <= index {
            self.kept.resize(index + 1, (0, 0));
        }
        if self.kept[index].0 != version {
            self.load(cards_with(node, &[]), node.host);
            self.kept[index] = (version, self.value);
        }
        self.kept[index].1
    }

    /// Takes a node at hand as a pod leaves it that has taken `pod_use` of its cards so far.
    pub(crate) fn look_at(&mut self, node: &Node, pod_use: &[PodUse], host: HostAmount) {
        self.load(cards_with(node, pod_use), node.host.map(|free| free.without(host)));
    }

    /// By how much the fragmentation of the node at hand grows when a card gives a share to the pod.
    pub(crate) fn growth_of_card(
        &self,
        node: &Node,
        position: usize,
        held: PodUse,
        with_share: PodUse,
    ) -> i64 {
        let card = &node.cards[position];
        let scanned = |held: PodUse| {
            ScannedCard::new(card.kind, card.total, card.used.plus(held.effective(false)), card.faults)
        };
        self.growth_by_card(scanned(held), scanned(with_share))
    }

    /// A fragmentation in cards: the free cards that a pod of the workload finds useless, in the mean.
    pub(crate) fn in_cards(&self, value: i64) -> f64 {
        if self.weight == 0 {
            return 0.0;
        }
        value as f64 / (TERMS as f64 * self.weight as f64 * CARD as f64)
    }
}

fn passes(card: ScannedCard, need: &Need) -> bool {
    need.need.candidate && failed_checks(card, &need.need, true) == 0
}

/// The share of an empty card that one copy takes of it, as the scan would count it.
fn share_taken(kind: &CardKind, need: &KindNeed) -> i64 {
    let part = |amount: i64, total: i64| if total > 0 { amount.max(0) * CARD / total } else { 0 };
    part(need.memory_mib, kind.total.memory_mib).max(part(need.cores_percent, kind.total.cores_percent))
}

/// A node's cards with what a pod takes of them; `pod_use` may be shorter than the cards.
fn cards_with<'a>(node: &'a Node, pod_use: &'a [PodUse]) -> impl Iterator<Item = ScannedCard> + 'a {
    node.cards.iter().enumerate().map(|(position, card)| {
        let held = pod_use.get(position).map_or_else(Default::default, |held| held.effective(false));
        ScannedCard::new(card.kind, card.total, card.used.plus(held), card.faults)
    })
}
