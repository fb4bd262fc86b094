//! The smallest change that would make a pod fit: its kinds, their order, and how one is applied.

use crate::ask::PodAsk;
use crate::cluster::Cluster;

/// A number that would have to become another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Shift {
    /// What it is.
    pub from: i64,
    /// What it would have to be: at most for what is asked, at least for a limit.
    pub to: i64,
}

impl Shift {
    /// The share of the larger number that goes or comes, in millionths, rounded up.
    fn cost(self) -> i64 {
        let larger = self.from.max(self.to).max(1);
        let millionths = i128::from(self.from.abs_diff(self.to)) * 1_000_000;
        (millionths.unsigned_abs().div_ceil(larger.unsigned_abs().into())) as i64
    }

    /// One unit closer to what it is; None where nothing would be left of the change.
    fn one_less(self) -> Option<Self> {
        let to = self.to + (self.from - self.to).signum();
        (to != self.from).then_some(Self { to, ..self })
    }
}

/// A number of an ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AskField {
    /// MiB of each card.
    MemoryMib,
    /// Percent of each card's memory.
    MemoryPercent,
    /// Percent of each card's cores.
    CoresPercent,
    /// Cards.
    Count,
}

/// A card that takes no pods, and why.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FaultyCard {
    /// The card's id.
    pub card_id: String,
    /// It does not work.
    pub unhealthy: bool,
    /// An operator excluded it.
    pub cordoned: bool,
}

/// What would have to change. Among changes of one cost the kinds are ordered as they are listed here.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Change {
    /// These cards of the node are healthy and uncordoned.
    RestoreCards {
        /// In the order of the inventory.
        cards: Vec<FaultyCard>,
    },
    /// A quota of the pod's namespace is raised; None: that limit need not change.
    RaiseQuota {
        /// The namespace.
        namespace: String,
        /// The vendor word.
        vendor: String,
        /// Limit on memory in MiB.
        memory_mib: Option<Shift>,
        /// Limit on cores in percent of one card.
        cores_percent: Option<Shift>,
    },
    /// One container asks a vendor for less.
    LowerAsk {
        /// Number of the container in the pod's ask.
        container_number: u16,
        /// Its name.
        container: String,
        /// The vendor word.
        vendor: String,
        /// What is lowered.
        lowered: Vec<(AskField, Shift)>,
    },
    /// These pods of the node end.
    EndPods {
        /// Their UIDs, from the one that holds least.
        uids: Vec<String>,
    },
}

/// What ending one pod or mending one card costs: as much as halving what is asked.
const WHOLE_THING: i64 = 500_000;

impl Change {
    /// How large the change is, in millionths: the share by which an ask is lowered or a limit raised, a half for each
    /// pod that ends and each card that is mended. Changes of one cost are ordered by kind, then by what they name.
    pub fn cost(&self) -> i64 {
        match self {
            Self::RestoreCards { cards } => WHOLE_THING * cards.len() as i64,
            Self::EndPods { uids } => WHOLE_THING * uids.len() as i64,
            Self::RaiseQuota { memory_mib, cores_percent, .. } => {
                memory_mib.iter().chain(cores_percent).map(|shift| shift.cost()).sum()
            }
            Self::LowerAsk { lowered, .. } => lowered.iter().map(|(_, shift)| shift.cost()).sum(),
        }
    }

    /// Every change that is one unit (MiB, percent, card or pod) less than this one; nothing is left out of them.
    pub fn one_less(&self) -> Vec<Self> {
        match self {
            Self::RestoreCards { cards } => {
                let rest = without_each(cards).into_iter();
                rest.map(|cards| Self::RestoreCards { cards }).collect()
            }
            Self::EndPods { uids } => {
                without_each(uids).into_iter().map(|uids| Self::EndPods { uids }).collect()
            }
            Self::RaiseQuota { namespace, vendor, memory_mib, cores_percent } => {
                let raise = |memory_mib, cores_percent| Self::RaiseQuota {
                    namespace: namespace.clone(),
                    vendor: vendor.clone(),
                    memory_mib,
                    cores_percent,
                };
                let less_memory = memory_mib.iter().map(|shift| raise(shift.one_less(), *cores_percent));
                let less_cores = cores_percent.iter().map(|shift| raise(*memory_mib, shift.one_less()));
                less_memory.chain(less_cores).collect()
            }
            Self::LowerAsk { lowered, .. } => (0..lowered.len())
                .map(|number| {
                    let mut less = self.clone();
                    if let Self::LowerAsk { lowered, .. } = &mut less {
                        match lowered[number].1.one_less() {
                            Some(shift) => lowered[number].1 = shift,
                            None => {
                                lowered.remove(number);
                            }
                        }
                    }
                    less
                })
                .collect(),
        }
    }

    /// Makes the change on a node of a copy of the state, and returns the pod that then asks.
    pub fn apply(&self, cluster: &mut Cluster, node: &str, pod: &PodAsk) -> PodAsk {
        match self {
            Self::RestoreCards { cards } => {
                for card in cards {
                    cluster.set_card_faults(node, &card.card_id, false, false);
                }
            }
            Self::RaiseQuota { namespace, vendor, memory_mib, cores_percent } => {
                let (memory, cores) = cluster.quota_limits(namespace, vendor);
                let raised =
                    |limit: Option<i64>, shift: &Option<Shift>| shift.map(|shift| shift.to).or(limit);
                cluster.set_quota(
                    namespace,
                    vendor,
                    raised(memory, memory_mib),
                    raised(cores, cores_percent),
                );
            }
            Self::LowerAsk { container_number, vendor, lowered, .. } => {
                return lowered_ask(pod, usize::from(*container_number), vendor, lowered);
            }
            Self::EndPods { uids } => {
                for uid in uids {
                    cluster.release(uid);
                }
            }
        }
        pod.clone()
    }
}

fn without_each<T: Clone>(items: &[T]) -> Vec<Vec<T>> {
    (0..items.len())
        .map(|left_out| {
            let kept = items.iter().enumerate().filter(|(number, _)| *number != left_out);
            kept.map(|(_, item)| item.clone()).collect()
        })
        .collect()
}

/// The pod with some numbers of one ask lowered.
pub(crate) fn lowered_ask(
    pod: &PodAsk,
    container: usize,
    vendor: &str,
    lowered: &[(AskField, Shift)],
) -> PodAsk {
    let mut pod = pod.clone();
    for ask in &mut pod.containers[container].asks {
        if **ask.vendor() != *vendor {
            continue;
        }
        for (field, shift) in lowered {
            match field {
                AskField::MemoryMib => ask.memory_mib = shift.to,
                AskField::MemoryPercent => ask.memory_percent = Some(shift.to),
                AskField::CoresPercent => ask.cores_percent = shift.to,
                AskField::Count => ask.count = shift.to as u32,
            }
        }
    }
    pod
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lower(lowered: &[(AskField, i64, i64)]) -> Change {
        let shift = |(field, from, to): &(AskField, i64, i64)| (*field, Shift { from: *from, to: *to });
        Change::LowerAsk {
            container_number: 0,
            container: "main".into(),
            vendor: "V".into(),
            lowered: lowered.iter().map(shift).collect(),
        }
    }

    fn end(uids: &[&str]) -> Change {
        Change::EndPods { uids: uids.iter().map(|uid| (*uid).to_string()).collect() }
    }

    fn raise(from: i64, to: i64) -> Change {
        Change::RaiseQuota {
            namespace: "team".into(),
            vendor: "V".into(),
            memory_mib: Some(Shift { from, to }),
            cores_percent: None,
        }
    }

    #[test]
    fn cost_counts_shares_and_whole_things() {
        let cases = [
            (lower(&[(AskField::MemoryMib, 8000, 7200)]), 100_000),
            (lower(&[(AskField::MemoryMib, 8000, 7999)]), 125),
            (lower(&[(AskField::MemoryMib, 8000, 4000), (AskField::CoresPercent, 100, 75)]), 750_000),
            (raise(7200, 8000), 100_000),
            (raise(0, 8000), 1_000_000),
            (end(&["a"]), 500_000),
            (end(&["a", "b"]), 1_000_000),
        ];
        for (change, cost) in cases {
            assert_eq!(change.cost(), cost, "{change:?}");
        }
    }

    #[test]
    fn one_less_takes_one_unit_from_each_part() {
        let both = lower(&[(AskField::MemoryMib, 8000, 7200), (AskField::CoresPercent, 30, 29)]);
        let less = [
            lower(&[(AskField::MemoryMib, 8000, 7201), (AskField::CoresPercent, 30, 29)]),
            lower(&[(AskField::MemoryMib, 8000, 7200)]),
        ];
        assert_eq!(both.one_less(), less);
        assert_eq!(end(&["a", "b"]).one_less(), [end(&["b"]), end(&["a"])]);
        assert_eq!(raise(7200, 8000).one_less(), [raise(7200, 7999)]);
    }
}
