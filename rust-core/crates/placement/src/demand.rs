//! A pod's asks made ready for the walk over thousands of cards: everything that does not depend on the card.

use crate::ask::{Ask, CardConstraint, ContainerKind, PodAsk};
use crate::card::{Amount, CardKind, CardKinds, Faults, ScannedCard};
use crate::check::{failed_checks, Check, KindNeed};
use crate::family::{Families, Family, MemoryNeed};
use crate::fgd::Fragments;
use crate::mig::{MigLayout, PlacementRule};
use crate::quota::Quotas;
use crate::selection::{ByPairScores, Selection};

/// One ask of one container.
#[derive(Clone, Copy)]
pub(crate) struct Demand {
    pub(crate) container: u16,
    /// Number of the ask within its container.
    pub(crate) ask: u16,
    pub(crate) kind: ContainerKind,
    pub(crate) opens_container: bool,
    pub(crate) count: u32,
    /// Which of the cards that pass it gets.
    pub(crate) selection: &'static dyn Selection,
    memory: MemoryNeed,
    cores_percent: i64,
    mutex: bool,
    /// Where the needs of the kinds of cards begin.
    needs_from: u32,
    /// Number of the pod's constraint when it names ids.
    id_constraint: Option<u16>,
    /// How an instance is placed on a card that is cut into them.
    pub(crate) placement_rule: PlacementRule,
    /// Whether the pod accepts cards that are partitioned in hardware.
    pub(crate) accepts_partitioned: bool,
    /// Number of the quota among those of the pod.
    pub(crate) quota: u16,
    /// What a node's score gains by cards of one group.
    pub(crate) group_weight: f32,
}

impl Demand {
    /// The pod's rules on card ids for this ask, if it has any.
    #[inline]
    pub(crate) fn id_rules<'a>(&self, pod: &'a PodAsk) -> Option<&'a CardConstraint> {
        self.id_constraint.map(|number| &pod.constraints[usize::from(number)].1)
    }

    fn need_of(&self, kind: &CardKind, ask: &Ask, family: &Family, admitted: bool) -> KindNeed {
        if kind.vendor != *ask.vendor() || !family.owns_model(&kind.model_lowercase) {
            return KindNeed::default();
        }
        let bit = |on: bool, check: Check| if on { check.bit() as u16 } else { 0 };
        let mut need = KindNeed {
            memory_mib: self.memory.on(kind.total.memory_mib),
            cores_percent: self.cores_percent,
            state_mask: bit(true, Check::Health)
                | bit(true, Check::MigReservation)
                | bit(true, Check::Cordon)
                | bit(true, Check::Blocked)
                | bit(true, Check::Slots)
                | bit(self.mutex, Check::Mutex)
                | bit(
                    family.whole_card_is_exclusive
                        && kind.total.cores_percent == 100
                        && self.cores_percent == 100,
                    Check::Exclusive,
                )
                | bit(family.zero_cores_need_free_cores && self.cores_percent == 0, Check::ComputeExhausted),
            failed: bit(!ask.mode.is_empty() && *kind.mode != *ask.mode, Check::SoftSplit)
                | bit(!admitted, Check::Type)
                // All of less than nothing would be a share that gives memory to others.
                | bit(kind.total.memory_mib < 0, Check::Memory),
            partitioned: kind.mig.is_some(),
            candidate: true,
            fits_empty: false,
            model_is_vendor: kind.model == family.word,
        };
        if let Some(layout) = &kind.mig {
            self.adapt_to_layout(&mut need, layout, kind.total.cores_percent);
        }
        let empty = ScannedCard::new(0, kind.total, Amount::default(), Faults::default());
        need.fits_empty = failed_checks(empty, &need, true) == 0;
        need
    }

    /// On a card that is cut into instances, compute comes with the profile.
    ///
    /// A percentage of memory that no profile has, such as all of it, means the instance that is the whole card, where
    /// the card offers one: some of the card's memory goes with cutting it. Cores do not decide then. Else cores are
    /// compared as on other cards, but rounding up the cores of profiles takes nothing from a share that asks none.
    fn adapt_to_layout(&self, need: &mut KindNeed, layout: &MigLayout, all_cores_percent: i64) {
        let whole = layout.whole_memory_mib(all_cores_percent);
        let asks_whole = whole.filter(|whole| self.memory.percent_of_card > 0 && need.memory_mib > *whole);
        if let Some(memory_mib) = asks_whole {
            need.memory_mib = memory_mib;
            need.state_mask &= !((Check::Exclusive.bit() | Check::ComputeExhausted.bit()) as u16);
        }
        if asks_whole.is_some() || need.cores_percent == 0 {
            need.cores_percent = i64::MIN;
        }
    }
}

/// The quota of one vendor as the pod meets it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PodQuota {
    pub(crate) memory_limit: Option<i64>,
    pub(crate) cores_limit: Option<i64>,
    /// Used by other pods.
    pub(crate) used_memory_mib: i64,
    pub(crate) used_cores_percent: i64,
    /// What the pod itself holds so far during a walk.
    pub(crate) pod_memory_mib: i64,
    pub(crate) pod_cores_percent: i64,
}

/// Why the pod cannot be walked at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unwalkable {
    UnknownVendor { container: u16 },
}

/// The asks of one pod. Buffers are kept from pod to pod.
#[derive(Clone, Default)]
pub(crate) struct Demands {
    pub(crate) list: Vec<Demand>,
    pub(crate) quotas: Vec<PodQuota>,
    needs: Vec<KindNeed>,
    kind_count: usize,
    pub(crate) unwalkable: Option<Unwalkable>,
    /// Read and used where a policy of the pod names `fgd`.
    pub(crate) fragments: Fragments,
}

impl Demands {
    pub(crate) fn prepare(&mut self, pod: &PodAsk, families: &Families, kinds: &CardKinds, quotas: &Quotas) {
        self.list.clear();
        self.quotas.clear();
        self.needs.clear();
        self.kind_count = kinds.all().len();
        self.unwalkable = None;
        for (container_number, container) in pod.containers.iter().enumerate() {
            for (ask_number, ask) in container.asks.iter().enumerate() {
                let Some(family) = families.find(ask.vendor()) else {
                    let container = container_number as u16;
                    self.unwalkable.get_or_insert(Unwalkable::UnknownVendor { container });
                    continue;
                };
                self.add(pod, (container_number, ask_number), families, family, kinds, quotas);
            }
        }
    }

    fn add(
        &mut self,
        pod: &PodAsk,
        (container_number, ask_number): (usize, usize),
        families: &Families,
        family: &Family,
        kinds: &CardKinds,
        quotas: &Quotas,
    ) {
        let container = &pod.containers[container_number];
        let ask = &container.asks[ask_number];
        let constraint_number = pod.constraints.iter().position(|(vendor, _)| **vendor == **ask.vendor());
        let constraint = constraint_number.map(|number| &pod.constraints[number].1);
        let last = self.list.last();
        let demand = Demand {
            container: container_number as u16,
            ask: ask_number as u16,
            kind: container.kind,
            opens_container: last.is_none_or(|last| usize::from(last.container) != container_number),
            count: ask.count,
            selection: if pod.card_policy.topology && family.has_pair_scores {
                &ByPairScores
            } else {
                families.selection(family)
            },
            memory: MemoryNeed::of(ask.memory_mib, ask.memory_percent),
            cores_percent: ask.cores_percent.min(family.most_cores_percent),
            mutex: pod.card_policy.mutex,
            needs_from: self.needs.len() as u32,
            id_constraint: constraint_number
                .filter(|_| constraint.is_some_and(CardConstraint::names_ids))
                .map(|number| number as u16),
            placement_rule: if pod.card_policy.fgd {
                PlacementRule::MostRoom
            } else {
                PlacementRule::ByStart
            },
            accepts_partitioned: constraint.is_none_or(|rule| rule.admits_mode(&family.partitioned_mode)),
            quota: self.pod_quota(pod, ask, quotas),
            group_weight: family.group_weight,
        };
        self.needs.extend(kinds.all().iter().map(|kind| {
            let admitted = constraint.is_none_or(|rule| rule.admits_model(&kind.model_lowercase, &kind.mode));
            demand.need_of(kind, ask, family, admitted)
        }));
        self.list.push(demand);
    }

    /// The number of the quota of an ask's vendor; asks of one vendor share it.
    fn pod_quota(&mut self, pod: &PodAsk, ask: &Ask, quotas: &Quotas) -> u16 {
        let vendor_of = |demand: &Demand| {
            pod.containers[usize::from(demand.container)].asks[usize::from(demand.ask)].vendor()
        };
        if let Some(same) = self.list.iter().find(|demand| vendor_of(demand) == ask.vendor()) {
            return same.quota;
        }
        let quota = quotas.find(&pod.namespace, ask.vendor()).map(|place| quotas.get(place));
        self.quotas.push(quota.map_or_else(PodQuota::default, |quota| PodQuota {
            memory_limit: quota.memory_limit,
            cores_limit: quota.cores_limit,
            used_memory_mib: quota.used_memory_mib,
            used_cores_percent: quota.used_cores_percent,
            pod_memory_mib: 0,
            pod_cores_percent: 0,
        }));
        (self.quotas.len() - 1) as u16
    }

    /// What one ask needs of every kind of card.
    #[inline]
    pub(crate) fn needs(&self, demand: &Demand) -> &[KindNeed] {
        &self.needs[demand.needs_from as usize..][..self.kind_count]
    }

    /// Whether enough cards that pass always serve the pod's first ask, whichever they are.
    pub(crate) fn any_cards_serve_first(&self) -> bool {
        self.list.first().is_none_or(|demand| demand.selection.counts())
    }

    /// Whether no choice of cards for the pod's first ask can exceed the quota.
    pub(crate) fn quota_cannot_bind_first(&self) -> bool {
        let Some(demand) = self.list.first() else { return false };
        let quota = &self.quotas[usize::from(demand.quota)];
        let within = |limit: Option<i64>, used: i64, need: i64| {
            limit.is_none_or(|limit| {
                i128::from(used) + i128::from(need) * i128::from(demand.count) <= i128::from(limit)
            })
        };
        let most_memory = self.needs(demand).iter().map(|need| need.memory_mib).max().unwrap_or(0);
        within(quota.memory_limit, quota.used_memory_mib, most_memory)
            && within(quota.cores_limit, quota.used_cores_percent, demand.cores_percent)
    }
}
