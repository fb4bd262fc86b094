//! A pod's asks made ready for the walk over thousands of cards: everything that does not depend on the card.

use crate::ask::{ContainerKind, PodAsk};
use crate::card::{Card, CardKinds};
use crate::check::{verdict, Need};
use crate::family::{family, Family, MemoryNeed, Rules};
use crate::quota::Quotas;

/// One ask of one container.
#[derive(Clone, Copy)]
pub(crate) struct Demand {
    pub(crate) container: u16,
    /// Number of the ask within its container.
    pub(crate) ask: u16,
    pub(crate) kind: ContainerKind,
    pub(crate) opens_container: bool,
    pub(crate) count: u32,
    pub(crate) memory: MemoryNeed,
    pub(crate) cores_percent: i64,
    pub(crate) mutex: bool,
    pub(crate) rules: Rules,
    /// Where the verdicts on the kinds of cards begin.
    verdicts_from: u32,
    /// Number of the pod's constraint when it names ids.
    pub(crate) id_constraint: Option<u16>,
    /// Whether the pod accepts cards that are partitioned in hardware.
    pub(crate) accepts_partitioned: bool,
    /// Number of the quota among those of the pod.
    pub(crate) quota: u16,
}

impl Demand {
    #[inline]
    pub(crate) fn need_of(&self, card: &Card) -> Need {
        Need {
            memory_mib: self.memory.on(card.memory_mib),
            cores_percent: self.cores_percent,
            mutex: self.mutex,
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
    TopologyPolicy,
    UnknownVendor { container: u16 },
}

/// The asks of one pod. Buffers are kept from pod to pod.
#[derive(Clone, Default)]
pub(crate) struct Demands {
    pub(crate) list: Vec<Demand>,
    pub(crate) quotas: Vec<PodQuota>,
    verdicts: Vec<u16>,
    kind_count: usize,
    pub(crate) unwalkable: Option<Unwalkable>,
}

impl Demands {
    pub(crate) fn prepare(&mut self, pod: &PodAsk, kinds: &CardKinds, quotas: &Quotas) {
        self.list.clear();
        self.quotas.clear();
        self.verdicts.clear();
        self.kind_count = kinds.all().len();
        self.unwalkable = None;
        for (container_number, container) in pod.containers.iter().enumerate() {
            for (ask_number, ask) in container.asks.iter().enumerate() {
                let Some(family) = family(ask.vendor()) else {
                    let container = container_number as u16;
                    self.unwalkable.get_or_insert(Unwalkable::UnknownVendor { container });
                    continue;
                };
                let demand = self.demand(pod, (container_number, ask_number), family, kinds, quotas);
                self.list.push(demand);
            }
        }
        if pod.card_policy.topology && !self.list.is_empty() {
            self.unwalkable = Some(Unwalkable::TopologyPolicy);
        }
    }

    fn demand(
        &mut self,
        pod: &PodAsk,
        (container_number, ask_number): (usize, usize),
        family: &dyn Family,
        kinds: &CardKinds,
        quotas: &Quotas,
    ) -> Demand {
        let container = &pod.containers[container_number];
        let ask = &container.asks[ask_number];
        let rules = family.rules();
        let constraint_number = pod.constraints.iter().position(|(vendor, _)| **vendor == **ask.vendor());
        let constraint = constraint_number.map(|number| &pod.constraints[number].1);
        let verdicts_from = self.verdicts.len() as u32;
        self.verdicts.extend(kinds.all().iter().map(|kind| {
            if kind.vendor != *ask.vendor() || !family.owns_model(&kind.model_lowercase) {
                return 0;
            }
            let admitted = constraint.is_none_or(|rule| rule.admits_model(&kind.model_lowercase, &kind.mode));
            verdict::CANDIDATE
                | if admitted { 0 } else { verdict::TYPE_MISMATCH }
                | if kind.mode == rules.partitioned_mode { verdict::MODE_UNAVAILABLE } else { 0 }
                | if *kind.model == *family.word() { verdict::MODEL_IS_VENDOR } else { 0 }
        }));
        Demand {
            container: container_number as u16,
            ask: ask_number as u16,
            kind: container.kind,
            opens_container: self
                .list
                .last()
                .is_none_or(|last| usize::from(last.container) != container_number),
            count: ask.count,
            memory: family.memory_need(ask.memory_mib, ask.memory_percent),
            cores_percent: ask.cores_percent.min(rules.most_cores_percent),
            mutex: pod.card_policy.mutex,
            rules,
            verdicts_from,
            id_constraint: constraint_number
                .filter(|number| pod.constraints[*number].1.names_ids())
                .map(|number| number as u16),
            accepts_partitioned: constraint.is_none_or(|rule| rule.admits_mode(rules.partitioned_mode)),
            quota: self.pod_quota(pod, (container_number, ask_number), quotas),
        }
    }

    /// The number of the quota of an ask's vendor; asks of one vendor share it.
    fn pod_quota(&mut self, pod: &PodAsk, ask_at: (usize, usize), quotas: &Quotas) -> u16 {
        let vendor_of = |(container, ask): (usize, usize)| pod.containers[container].asks[ask].vendor();
        let vendor = vendor_of(ask_at);
        let same = self
            .list
            .iter()
            .find(|demand| vendor_of((usize::from(demand.container), usize::from(demand.ask))) == vendor);
        if let Some(demand) = same {
            return demand.quota;
        }
        let quota = quotas.find(&pod.namespace, vendor).map(|place| quotas.get(place));
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

    /// Verdicts on every kind of card, for one ask.
    #[inline]
    pub(crate) fn verdicts(&self, demand: &Demand) -> &[u16] {
        let from = demand.verdicts_from as usize;
        &self.verdicts[from..from + self.kind_count]
    }

    /// Whether no choice of cards can exceed the quota, given the memory of the largest card there is.
    pub(crate) fn quota_cannot_bind(&self, largest_card_mib: i64) -> bool {
        self.list.iter().all(|demand| {
            let quota = &self.quotas[usize::from(demand.quota)];
            let within = |limit: Option<i64>, used: i64, need: i64| {
                limit.is_none_or(|limit| {
                    i128::from(used) + i128::from(need) * i128::from(demand.count) <= i128::from(limit)
                })
            };
            self.list.len() == 1
                && within(quota.memory_limit, quota.used_memory_mib, demand.memory.on(largest_card_mib))
                && within(quota.cores_limit, quota.used_cores_percent, demand.cores_percent)
        })
    }
}
