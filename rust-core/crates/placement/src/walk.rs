//! The walk over the cards of one node: container by container, ask by ask, from the preferred card on.

use crate::ask::{ContainerKind, PodAsk};
use crate::best_set::BestSet;
use crate::card::{Amount, Card, Faults, ScannedCard};
use crate::check::{failed_checks, Check, KindNeed, BEFORE_NUMA, BEFORE_QUOTA};
use crate::demand::{Demand, Demands, PodQuota, Unwalkable};
use crate::mig::{MigChoice, SliceMask};
use crate::mig_use::{PodSlices, SliceUse};
use crate::node::Node;
use crate::note::Notes;
use crate::policy::CardRank;
use crate::reason::Reason;
use crate::score::card_score;
use crate::selection::{Choice, Collected};
use crate::tally::Tally;
use crate::usage::PodUse;

/// What a node is taken to hold already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Base {
    /// What is booked.
    Present,
    /// Nothing, on healthy, uncordoned cards and without quota.
    Empty,
}

impl Base {
    fn of(self, card: &Card) -> (Amount, Faults) {
        match self {
            Self::Present => (card.used, card.faults),
            Self::Empty => (Amount::default(), Faults::default()),
        }
    }

    fn slices(self, card: &SliceUse) -> SliceMask {
        match self {
            Self::Present => card.mask(),
            Self::Empty => 0,
        }
    }
}

/// One card given to one ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Taken {
    /// Number of the demand.
    pub(crate) demand: u16,
    /// Place of the card in the inventory.
    pub(crate) position: u16,
    pub(crate) memory_mib: i64,
    pub(crate) cores_percent: i64,
    /// Of a card that is cut into instances.
    pub(crate) instance: Option<MigChoice>,
}

/// One look at one card.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Look {
    pub(crate) position: u16,
    /// The checks it failed, as bits; none: the card passed.
    pub(crate) failed: u32,
    pub(crate) memory_mib: i64,
    pub(crate) cores_percent: i64,
    /// Booked on the card, this pod's earlier containers included.
    pub(crate) used: Amount,
    pub(crate) quota: PodQuota,
    /// What the share adds to what the pod holds.
    pub(crate) held_more: Amount,
}

/// One card as an ask finds it.
struct Found<'a> {
    /// Place in the inventory.
    position: u16,
    need: &'a KindNeed,
    total: Amount,
    used: Amount,
    /// Every failed check but those on quota and instances, as bits.
    failed: u32,
    /// Of a card that is cut into instances.
    slices: Option<&'a SliceUse>,
    occupied: SliceMask,
}

/// Is told of each look. Decisions need none of it; explanations all.
pub(crate) trait Witness {
    /// An ask begins.
    fn begins(&mut self, demand: &Demand);
    /// A card was looked at.
    fn sees(&mut self, look: Look);
}

/// Hears nothing.
pub(crate) struct Nobody;

impl Witness for Nobody {
    fn begins(&mut self, _demand: &Demand) {}
    fn sees(&mut self, _look: Look) {}
}

/// Buffers of the walk, kept from node to node.
#[derive(Clone, Default)]
pub(crate) struct Walk {
    /// What the pod holds so far, by card.
    pod_use: Vec<PodUse>,
    /// What it takes of cards that are cut into instances, by position; empty where the node has none.
    pod_slices: Vec<PodSlices>,
    ranks: Vec<CardRank>,
    /// Cards from the least to the most preferred.
    order: Vec<u16>,
    collected: Vec<Collected>,
    /// What the collected shares add to what the pod holds.
    collected_use: Amount,
    /// With NUMA binding: the cards of the NUMA node seen last that has enough of them.
    numa_group: Vec<Collected>,
    /// The result: cards in the order they were taken.
    pub(crate) taken: Vec<Taken>,
    /// What is to be said about the choice of the cards taken.
    pub(crate) notes: Notes,
    best_set: BestSet,
}

impl Walk {
    /// Fits the whole pod on the node; the cards are then in `taken`.
    pub(crate) fn fit(
        &mut self,
        node: &Node,
        pod: &PodAsk,
        demands: &mut Demands,
        base: Base,
        witness: &mut impl Witness,
    ) -> Result<(), Tally> {
        self.collect_for_last(node, pod, demands, base, witness)?;
        if let Some(last) = demands.list.len().checked_sub(1) {
            self.take(node, demands, last);
        }
        Ok(())
    }

    /// Whether the whole pod fits on the node, without a choice of cards for its last ask.
    pub(crate) fn fits(
        &mut self,
        node: &Node,
        pod: &PodAsk,
        demands: &mut Demands,
        base: Base,
    ) -> Result<(), Tally> {
        self.collect_for_last(node, pod, demands, base, &mut Nobody)
    }

    /// Gives cards to every ask but the last, and collects for that one.
    fn collect_for_last(
        &mut self,
        node: &Node,
        pod: &PodAsk,
        demands: &mut Demands,
        base: Base,
        witness: &mut impl Witness,
    ) -> Result<(), Tally> {
        match demands.unwalkable {
            Some(Unwalkable::UnknownVendor { container }) => {
                return Err(Tally::bare(Reason::DeviceTypeNotFound, container));
            }
            None => {}
        }
        self.taken.clear();
        self.notes = Notes::default();
        self.pod_use.clear();
        self.pod_use.resize(node.cards.len(), PodUse::default());
        self.pod_slices.clear();
        self.pod_slices.resize(node.slices.len(), PodSlices::default());
        for quota in &mut demands.quotas {
            quota.pod_memory_mib = 0;
            quota.pod_cores_percent = 0;
        }
        let mut apps_began = false;
        for number in 0..demands.list.len() {
            let demand = demands.list[number];
            if let Some(before) = number.checked_sub(1) {
                self.take(node, demands, before);
            }
            if demand.opens_container {
                // App containers go on with the order the one before left; each init container starts anew.
                if demand.kind != ContainerKind::App || !apps_began {
                    self.order.clear();
                    self.order.extend(0..node.cards.len() as u16);
                }
                apps_began |= demand.kind == ContainerKind::App;
                self.rank(node, demands, number, base, pod);
            }
            self.sort(pod);
            witness.begins(&demand);
            self.collect(node, pod, demands, &demand, base, witness)?;
        }
        Ok(())
    }

    /// What an ask finds taken of a card by the pod's earlier containers of the last walk.
    pub(crate) fn own_use(&self, position: usize, demand: &Demand) -> Amount {
        self.pod_use[position].seen_by(demand.container, demand.kind)
    }

    /// Which memory slices of a card that is cut into instances an ask finds taken, the pod's earlier ones included.
    pub(crate) fn occupied(&self, slices: &SliceUse, position: usize, demand: &Demand) -> SliceMask {
        Base::Present.slices(slices) | self.pod_slices[position].seen_by(demand.container, demand.kind)
    }

    /// Ranks every card once for all asks of a container.
    fn rank(&mut self, node: &Node, demands: &mut Demands, opening: usize, base: Base, pod: &PodAsk) {
        let container = demands.list[opening].container;
        let kind = demands.list[opening].kind;
        self.ranks.clear();
        for (position, card) in node.cards.iter().enumerate() {
            let used = base.of(card).0.plus(self.pod_use[position].seen_by(container, kind));
            let mut scored = used;
            for demand in demands.list[opening..].iter().take_while(|demand| demand.container == container) {
                if demands.needs(demand)[usize::from(card.kind)].model_is_vendor {
                    let ask = &pod.containers[usize::from(container)].asks[usize::from(demand.ask)];
                    let memory_mib = match ask.memory_percent {
                        Some(percent) if percent != 0 => card.total.memory_mib * percent / 100,
                        _ => ask.memory_mib,
                    };
                    scored = scored.plus(Amount::new(memory_mib, ask.cores_percent, 1));
                }
            }
            self.ranks.push(CardRank {
                score: card_score(scored, card.total, pod.weights),
                numa: card.numa,
                used_slots: used.slots,
                index: card.index,
                growth: 0,
                place: 0,
            });
        }
        if pod.card_policy.fgd && base == Base::Present {
            self.rank_fragmentation(node, demands, opening, pod);
        }
    }

    /// Ranks every card by how much the fragmentation grows when it gives its share to the container.
    fn rank_fragmentation(&mut self, node: &Node, demands: &mut Demands, opening: usize, pod: &PodAsk) {
        demands.fragments.look_at(node, &self.pod_use, pod.host);
        let opens = demands.list[opening];
        for (position, card) in node.cards.iter().enumerate() {
            let need = demands.list[opening..]
                .iter()
                .take_while(|demand| demand.container == opens.container)
                .map(|demand| demands.needs(demand)[usize::from(card.kind)])
                .find(|need| need.candidate);
            let Some(need) = need else { continue };
            let held = self.pod_use[position];
            let alike = |other: usize| {
                let (before, after) = (&node.cards[other], self.pod_use[other]);
                (before.kind, before.used, before.faults, after) == (card.kind, card.used, card.faults, held)
            };
            self.ranks[position].growth = if let Some(other) = (0..position).find(|other| alike(*other)) {
                self.ranks[other].growth
            } else {
                let share = Amount::new(need.memory_mib, need.cores_percent, 1);
                let with_share = held.with(opens.container, opens.kind, share);
                demands.fragments.growth_of_card(node, position, held, with_share)
            };
        }
    }

    /// What the pod of the last walk holds, by card.
    pub(crate) fn pod_use(&self) -> &[PodUse] {
        &self.pod_use
    }

    fn sort(&mut self, pod: &PodAsk) {
        let Self { order, ranks, .. } = self;
        for (place, position) in order.iter().enumerate() {
            ranks[usize::from(*position)].place = place as u16;
        }
        // Equals are told apart by their place before, so the result is that of a stable sort.
        order.sort_unstable_by(|left, right| {
            pod.card_policy.compare(&ranks[usize::from(*left)], &ranks[usize::from(*right)])
        });
    }

    fn collect(
        &mut self,
        node: &Node,
        pod: &PodAsk,
        demands: &Demands,
        demand: &Demand,
        base: Base,
        witness: &mut impl Witness,
    ) -> Result<(), Tally> {
        let needs = demands.needs(demand);
        let id_rules = demand.id_rules(pod);
        let quota = demands.quotas[usize::from(demand.quota)];
        let mut tally = Tally { container: demand.container, ..Tally::EMPTY };
        let mut partitioned = false;
        for card in &node.cards {
            let need = &needs[usize::from(card.kind)];
            tally.cards += u16::from(need.candidate);
            partitioned |= need.partitioned;
        }
        if demand.count > u32::from(tally.cards) && !(demand.accepts_partitioned && partitioned) {
            return Err(Tally::bare(Reason::NodeInsufficientDevice, demand.container));
        }

        let collects_all = demand.selection.collects_all();
        let enough = demand.count as usize;
        self.collected.clear();
        self.numa_group.clear();
        self.collected_use = Amount::default();
        let mut numa_before = None;
        for place in (0..self.order.len()).rev() {
            let position = self.order[place];
            let card = &node.cards[usize::from(position)];
            let need = &needs[usize::from(card.kind)];
            if !need.candidate {
                continue;
            }
            let admits_id = id_rules.is_none_or(|rules| rules.admits_id(node.id_at(usize::from(position))));
            let pod_use = &self.pod_use[usize::from(position)];
            let (booked, faults) = base.of(card);
            let used = booked.plus(pod_use.seen_by(demand.container, demand.kind));
            let seen = ScannedCard::new(card.kind, card.total, used, faults);
            let card_failed = failed_checks(seen, need, admits_id);
            if pod.numa_bind && card_failed & BEFORE_NUMA == 0 && numa_before != Some(card.numa) {
                if self.collected.len() >= enough {
                    std::mem::swap(&mut self.numa_group, &mut self.collected);
                } else if !collects_all {
                    tally.numa_not_fit += self.collected.len() as u16;
                }
                self.collected.clear();
                self.collected_use = Amount::default();
                numa_before = Some(card.numa);
            }
            let slices = node.slices_of(usize::from(position));
            let occupied = slices.map_or(0, |slices| {
                let own = &self.pod_slices[usize::from(position)];
                base.slices(slices) | own.seen_by(demand.container, demand.kind)
            });
            let found =
                Found { position, need, total: card.total, used, failed: card_failed, slices, occupied };
            self.collect_shares(
                demand,
                (base == Base::Present).then_some(&quota),
                &found,
                &mut tally,
                witness,
            );
            if !collects_all && self.collected.len() == enough {
                return Ok(());
            }
        }
        if self.collected.len() < enough && !self.numa_group.is_empty() {
            std::mem::swap(&mut self.collected, &mut self.numa_group);
        }
        let usable = demand.selection.usable(node, &self.collected, enough);
        if usable.is_some_and(|usable| usable != enough) {
            return Err(Tally {
                collected: usable.map(|usable| usable as u16),
                cards: demand.count as u16,
                ..tally
            });
        }
        if self.collected.len() < enough {
            tally.collected = Some(self.collected.len() as u16).filter(|count| *count > 0);
            return Err(tally);
        }
        Ok(())
    }

    /// Collects what one card gives: a share, or, of a card that is cut into instances, as many as are asked and free.
    fn collect_shares(
        &mut self,
        demand: &Demand,
        quota: Option<&PodQuota>,
        found: &Found<'_>,
        tally: &mut Tally,
        witness: &mut impl Witness,
    ) {
        let Found { position, need, slices, .. } = *found;
        let mut pod_use = self.pod_use[usize::from(position)];
        let mut free = found.total.minus(found.used);
        let mut occupied = found.occupied;
        let enough = demand.count as usize;
        let left = if demand.selection.collects_all() { enough } else { enough - self.collected.len() };
        for repeat in 0..left {
            let mut share = Amount::new(need.memory_mib, need.cores_percent.max(0), 1);
            let held_with = |share| {
                let with_share = pod_use.with(demand.container, demand.kind, share);
                self.collected_use.plus(with_share.effective(false).minus(pod_use.effective(false)))
            };
            let exceeds = |share| quota.is_some_and(|quota| !within_quota(quota, held_with(share)));
            let mut failed = found.failed;
            if failed & BEFORE_QUOTA == 0 && exceeds(share) {
                failed |= Check::Quota.bit();
            }
            let mut instance = None;
            if let Some(slices) = slices.filter(|_| failed == 0) {
                instance = slices.layout.choose(occupied, need.memory_mib, demand.placement_rule);
                match instance {
                    None => failed |= Check::MigPlacement.bit(),
                    Some(choice) => {
                        share = slices.layout.amount(choice);
                        failed |= if exceeds(share) { Check::Quota.bit() } else { 0 }
                            | if free.slots < 1 { Check::Slots.bit() } else { 0 }
                            | if free.memory_mib < share.memory_mib { Check::Memory.bit() } else { 0 };
                    }
                }
            }
            let held_more = held_with(share);
            witness.sees(Look {
                position,
                failed,
                memory_mib: share.memory_mib,
                cores_percent: share.cores_percent,
                used: found.used,
                quota: quota.copied().unwrap_or_default(),
                held_more,
            });
            if failed != 0 {
                tally.count(failed);
                return;
            }
            self.collected_use = held_more;
            self.collected.push(Collected {
                position,
                memory_mib: share.memory_mib,
                cores_percent: share.cores_percent,
                instance,
                repeat: repeat as u16,
            });
            let (Some(slices), Some(choice)) = (slices, instance) else { return };
            pod_use = pod_use.with(demand.container, demand.kind, share);
            free = free.minus(share);
            occupied |= slices.layout.mask(choice);
        }
    }

    /// Gives the ask its cards of those collected.
    fn take(&mut self, node: &Node, demands: &mut Demands, number: usize) {
        let demand = demands.list[number];
        let count = demand.count as usize;
        if self.collected.len() > count || !demand.selection.counts() {
            demand.selection.choose(&mut Choice {
                node,
                needs: demands.needs(&demand),
                count,
                collected: &mut self.collected,
                notes: &mut self.notes,
                best_set: &mut self.best_set,
            });
        }
        let quota = &mut demands.quotas[usize::from(demand.quota)];
        for card in &self.collected {
            let pod_use = &mut self.pod_use[usize::from(card.position)];
            let share = Amount::new(card.memory_mib, card.cores_percent, 1);
            let held_before = pod_use.effective(false);
            *pod_use = pod_use.with(demand.container, demand.kind, share);
            let held_more = pod_use.effective(false).minus(held_before);
            quota.pod_memory_mib += held_more.memory_mib;
            quota.pod_cores_percent += held_more.cores_percent;
            self.taken.push(Taken {
                demand: number as u16,
                position: card.position,
                memory_mib: card.memory_mib,
                cores_percent: card.cores_percent,
                instance: card.instance,
            });
            let slices = node.slices_of(usize::from(card.position));
            if let (Some(slices), Some(choice)) = (slices, card.instance) {
                let own = &mut self.pod_slices[usize::from(card.position)];
                own.take(demand.container, demand.kind, slices.layout.mask(choice));
            }
        }
    }
}

fn within_quota(quota: &PodQuota, more: Amount) -> bool {
    let memory = quota.used_memory_mib + quota.pod_memory_mib + more.memory_mib;
    let cores = quota.used_cores_percent + quota.pod_cores_percent + more.cores_percent;
    quota.memory_limit.is_none_or(|limit| memory <= limit)
        && quota.cores_limit.is_none_or(|limit| cores <= limit)
}
