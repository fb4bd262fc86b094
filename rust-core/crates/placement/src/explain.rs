//! Explanations: for each node, each card with what was needed, used and there, and the smallest change that would
//! make the pod fit.

use std::collections::BTreeMap;

use crate::ask::PodAsk;
use crate::card::{Amount, ScannedCard};
use crate::ceiling::Ceiling;
use crate::check::{failed_checks, Check};
use crate::cluster::Cluster;
use crate::demand::Demand;
use crate::groups::group_gain;
use crate::nearest::NodeChange;
use crate::node::Node;
use crate::note::Notes;
use crate::reason::Reason;
use crate::search::{Candidates, Search};
use crate::tally::Tally;
use crate::walk::{Base, Look, Witness};

/// How much an explanation tells.
#[derive(Clone, Copy, Debug)]
pub struct Detail {
    /// At most so many nodes are told card by card; the others are counted.
    pub nodes: usize,
    /// On at most so many nodes, those that miss least, the smallest change is looked for.
    pub searched: usize,
}

impl Default for Detail {
    fn default() -> Self {
        Self { nodes: usize::MAX, searched: 16 }
    }
}

/// What the pod would hold of its namespace's quota of one vendor, up to and with one card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuotaVerdict {
    /// What the pod would hold: MiB, and percent of one card.
    pub needed: (i64, i64),
    /// What other pods hold.
    pub used: (i64, i64),
    /// The limits; None: none.
    pub limits: (Option<i64>, Option<i64>),
}

/// Why one card was taken or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CardVerdict {
    /// The card's id.
    pub card_id: String,
    /// The decision came to this card; it ends at the first cards that are enough.
    pub looked_at: bool,
    /// The first check that failed, which is what the node's text counts. None: the card passed.
    pub reason: Option<Reason>,
    /// Every check that failed, in their order.
    pub reasons: Vec<Reason>,
    /// Of what the first reason is about, in its unit (MiB, percent or slots): what the share needs.
    pub asked: Option<i64>,
    /// Likewise what is in use, of the card or of the quota.
    pub used: Option<i64>,
    /// Likewise the card's total, or the quota's limit.
    pub total: Option<i64>,
    /// What the share needs of this card.
    pub needed: Amount,
    /// What is in use of it, this pod's earlier containers included.
    pub in_use: Amount,
    /// What the card has.
    pub capacity: Amount,
    /// Where the namespace has a quota of the vendor.
    pub quota: Option<QuotaVerdict>,
}

/// What one node says to a pod.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeVerdict {
    /// The node's name.
    pub node: String,
    /// Whether the pod fits.
    pub fits: bool,
    /// The pod would not fit were the node empty, healthy and uncordoned.
    pub never: bool,
    /// Score before the pod, where it fits.
    pub score: Option<f32>,
    /// The first container that does not fit.
    pub container: Option<String>,
    /// The text kube-scheduler shows; empty where the pod fits.
    pub reason: String,
    /// Cards of the vendor of that container's ask, from the preferred one on; where the pod fits, of the last ask.
    pub cards: Vec<CardVerdict>,
    /// Where the pod fits: what is to be said about the choice of its cards.
    pub notes: Notes,
    /// Whether the smallest change was looked for.
    pub searched: bool,
    /// Of each kind of change that suffices the smallest, the smallest of all first.
    pub changes: Vec<NodeChange>,
}

/// What all candidates say to a pod.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Explanation {
    /// Nodes where the pod fits by name, then the others: those that miss least first.
    pub nodes: Vec<NodeVerdict>,
    /// How many candidates there were, each name once.
    pub candidates: usize,
    /// On how many the pod fits.
    pub fitting: usize,
    /// How many would not take it empty, healthy and uncordoned either. Counted where the pod fits on no candidate.
    pub never: usize,
    /// Text of a node, and how many nodes say it.
    pub texts: BTreeMap<String, usize>,
    /// On how many nodes the smallest change was looked for.
    pub searched: usize,
    /// The smallest change of these nodes; None where the pod fits, and where no change of one kind suffices.
    pub change: Option<NodeChange>,
    /// What is asked beyond what the largest card, or node, of the candidates has.
    pub ceilings: Vec<Ceiling>,
}

/// Keeps the looks of the last ask.
#[derive(Default)]
struct Looks {
    demand: Option<Demand>,
    seen: Vec<Look>,
}

impl Witness for Looks {
    fn begins(&mut self, demand: &Demand) {
        self.demand = Some(*demand);
        self.seen.clear();
    }

    fn sees(&mut self, look: Look) {
        self.seen.push(look);
    }
}

impl Cluster {
    /// Asks each candidate about a pod and leaves the state as it is. The pod's own booking does not count against it.
    ///
    /// Where it fits on no candidate, the smallest change is looked for on the nodes that miss least. Every change
    /// told of was tried: the pod then fits on that node, and with one unit less of any part of it does not.
    pub fn explain(&mut self, pod: &PodAsk, candidates: Candidates<'_>, detail: Detail) -> Explanation {
        self.without_booking(&pod.uid, |cluster| cluster.explain_pod(pod, candidates, detail))
    }

    fn explain_pod(&mut self, pod: &PodAsk, candidates: Candidates<'_>, detail: Detail) -> Explanation {
        let decision = self.decide(pod, candidates);
        let mut told = Explanation {
            candidates: decision.candidate_nodes(),
            fitting: decision.fitting_nodes(),
            never: decision.never_count(),
            ..Explanation::default()
        };
        let failed = decision.failed(None);
        for (_, text) in failed.iter() {
            match told.texts.get_mut(text) {
                Some(count) => *count += 1,
                None => {
                    told.texts.insert(text.to_string(), 1);
                }
            }
        }
        let mut looks = Looks::default();
        let mut misses: Vec<(i64, &str)> =
            failed.nodes.iter().map(|(name, _)| (self.misses(pod, name, &mut looks), *name)).collect();
        misses.sort_unstable();
        if told.fitting == 0 {
            told.ceilings = self.ceilings(pod, &failed.nodes);
        }
        let wanted = if told.fitting == 0 { detail.searched } else { 0 };
        let mut nearest: Vec<(i64, &str, Vec<NodeChange>)> = Vec::new();
        for (_, name) in misses.iter().take(wanted) {
            if let Some(place) = self.registered_place(name) {
                let changes = self.smallest_changes(place, pod);
                let cost = changes.first().map_or(i64::MAX, |found| found.change.cost());
                nearest.push((cost, name, changes));
            }
        }
        told.searched = nearest.len();
        nearest.sort_by(|left, right| (left.0, left.1).cmp(&(right.0, right.1)));
        told.change = nearest.first().and_then(|(.., changes)| changes.first().cloned());

        self.prepare(pod);
        let scores = decision.node_scores();
        let searched: Vec<&str> = nearest.iter().map(|(_, name, _)| *name).collect();
        let fitting = scores.iter().map(|(name, _)| *name);
        let others = misses.iter().map(|(_, name)| *name).filter(|name| !searched.contains(name));
        let names: Vec<&str> =
            fitting.chain(searched.iter().copied()).chain(others).take(detail.nodes).collect();
        for name in names {
            let mut verdict = self.node_verdict(pod, name, &mut looks);
            if let Some((.., changes)) = nearest.iter_mut().find(|(_, other, _)| *other == name) {
                verdict.searched = true;
                verdict.changes = std::mem::take(changes);
            }
            told.nodes.push(verdict);
        }
        told
    }

    pub(crate) fn registered_place(&self, name: &str) -> Option<u32> {
        self.nodes.find(name).filter(|place| self.nodes[*place].registered)
    }

    /// Roughly how much is missing on a node that does not fit: only the order of nodes follows from it.
    fn misses(&mut self, pod: &PodAsk, name: &str, looks: &mut Looks) -> i64 {
        const OUT_OF_REACH: i64 = 1 << 60;
        let Some(place) = self.registered_place(name) else { return i64::MAX };
        let node = &self.nodes[place];
        looks.demand = None;
        looks.seen.clear();
        let Search { walk, demands, .. } = &mut self.search;
        if walk.fit(node, pod, demands, Base::Present, looks).is_ok() {
            return 0;
        }
        let Some(demand) = looks.demand else { return OUT_OF_REACH };
        let later = demands.list.iter().rev().take_while(|other| other.container > demand.container).count();
        let mut missing: Vec<i64> = self
            .cards_looked_at(node, pod, &demand, &looks.seen)
            .iter()
            .map(|look| missing_of(look, node.cards[usize::from(look.position)].total))
            .collect();
        missing.sort_unstable();
        let cards = missing.len();
        let count = demand.count as usize;
        let lacking = count.saturating_sub(cards) as i64 * 1_000_000;
        missing.iter().take(count).fold(lacking, |sum, missing| sum.saturating_add(*missing))
            + 1_000_000 * later as i64
    }

    /// The looks of the walk, then those at the cards it did not come to.
    fn cards_looked_at(&self, node: &Node, pod: &PodAsk, demand: &Demand, seen: &[Look]) -> Vec<Look> {
        let needs = self.search.demands.needs(demand);
        let quota = self.search.demands.quotas[usize::from(demand.quota)];
        let id_rules = demand.id_rules(pod);
        let mut looks = seen.to_vec();
        for (position, card) in node.cards.iter().enumerate() {
            let need = &needs[usize::from(card.kind)];
            if !need.candidate || seen.iter().any(|look| usize::from(look.position) == position) {
                continue;
            }
            let used = card.used.plus(self.search.walk.own_use(position, demand));
            let row = ScannedCard::new(card.kind, card.total, used, card.faults);
            let admits_id = id_rules.is_none_or(|rules| rules.admits_id(node.id_at(position)));
            let mut share = Amount::new(need.memory_mib, need.cores_percent.max(0), 1);
            let mut failed = failed_checks(row, need, admits_id);
            if let Some(slices) = node.slices_of(position).filter(|_| failed == 0) {
                let occupied = self.search.walk.occupied(slices, position, demand);
                match slices.layout.choose(occupied, need.memory_mib, demand.placement_rule) {
                    None => failed = Check::MigPlacement.bit(),
                    Some(choice) => share = slices.layout.amount(choice),
                }
            }
            looks.push(Look {
                position: position as u16,
                failed,
                memory_mib: share.memory_mib,
                cores_percent: share.cores_percent,
                used,
                quota,
                held_more: share,
            });
        }
        looks
    }

    fn node_verdict(&mut self, pod: &PodAsk, name: &str, looks: &mut Looks) -> NodeVerdict {
        let Some(place) = self.registered_place(name) else {
            return NodeVerdict {
                node: name.into(),
                fits: false,
                never: false,
                score: None,
                container: None,
                reason: Reason::NodeUnregistered.bare_text().into(),
                cards: Vec::new(),
                notes: Notes::default(),
                searched: false,
                changes: Vec::new(),
            };
        };
        looks.demand = None;
        looks.seen.clear();
        let node = &self.nodes[place];
        let Search { walk, demands, .. } = &mut self.search;
        let outcome = walk.fit(node, pod, demands, Base::Present, looks);
        let notes = walk.notes;
        let cards = looks
            .demand
            .map(|demand| self.cards_looked_at(node, pod, &demand, &looks.seen))
            .unwrap_or_default()
            .iter()
            .enumerate()
            .map(|(number, look)| card_verdict(node, look, number < looks.seen.len()))
            .collect();
        let fits = outcome.is_ok();
        let gain = group_gain(node, &self.search.demands, &self.search.walk.taken);
        let container = |tally: Tally| pod.containers[usize::from(tally.container)].name.clone();
        NodeVerdict {
            fits,
            never: !fits && self.search.never_fits(&self.nodes, place, pod),
            score: fits.then_some(pod.node_policy.improved(self.nodes.scanned()[place as usize].score, gain)),
            container: outcome.err().map(container),
            reason: outcome.err().map(|tally| tally.text()).unwrap_or_default(),
            cards,
            notes: if fits { notes } else { Notes::default() },
            node: name.into(),
            searched: false,
            changes: Vec::new(),
        }
    }
}

/// In millionths of what is needed; a card that is full, faulty or taken counts as half.
fn missing_of(look: &Look, total: Amount) -> i64 {
    const HALF: i64 = 500_000;
    const OUT_OF_REACH: i64 = 1 << 50;
    let share = |needed: i64, used: i64, total: i64| {
        (needed - (total - used)).clamp(0, needed.max(0)) * 1_000_000 / needed.max(1)
    };
    let failed = |check: Check| look.failed & check.bit() != 0;
    let never = [Check::SoftSplit, Check::Type, Check::Uuid].into_iter().any(failed);
    let halves = [
        Check::Health,
        Check::MigReservation,
        Check::MigPlacement,
        Check::Cordon,
        Check::Blocked,
        Check::Slots,
        Check::Mutex,
        Check::Exclusive,
        Check::ComputeExhausted,
        Check::Quota,
    ];
    let halves = halves.into_iter().filter(|check| failed(*check)).count() as i64;
    share(look.memory_mib, look.used.memory_mib, total.memory_mib)
        + share(look.cores_percent, look.used.cores_percent, total.cores_percent)
        + HALF * halves
        + if never { OUT_OF_REACH } else { 0 }
}

fn card_verdict(node: &Node, look: &Look, looked_at: bool) -> CardVerdict {
    let position = usize::from(look.position);
    let capacity = node.cards[position].total;
    let first = (look.failed != 0).then(|| Check::first(look.failed));
    let numbers = match first {
        Some(Check::Memory | Check::MigPlacement) | None => {
            Some((look.memory_mib, look.used.memory_mib, capacity.memory_mib))
        }
        Some(Check::Cores | Check::ComputeExhausted) => {
            Some((look.cores_percent, look.used.cores_percent, capacity.cores_percent))
        }
        Some(Check::Slots | Check::Mutex | Check::Exclusive) => Some((1, look.used.slots, capacity.slots)),
        Some(Check::Quota) => Some(quota_numbers(look)),
        Some(
            Check::SoftSplit
            | Check::Health
            | Check::MigReservation
            | Check::Cordon
            | Check::Blocked
            | Check::Type
            | Check::Uuid,
        ) => None,
    };
    let quota = &look.quota;
    CardVerdict {
        card_id: node.id_at(position).to_string(),
        looked_at,
        reason: first.map(Check::reason),
        reasons: Check::all_of(look.failed).map(Check::reason).collect(),
        asked: numbers.map(|(asked, _, _)| asked),
        used: numbers.map(|(_, used, _)| used),
        total: numbers.map(|(_, _, total)| total),
        needed: Amount::new(look.memory_mib, look.cores_percent, 1),
        in_use: look.used,
        capacity,
        quota: (quota.memory_limit.is_some() || quota.cores_limit.is_some()).then(|| QuotaVerdict {
            needed: (
                quota.pod_memory_mib + look.held_more.memory_mib,
                quota.pod_cores_percent + look.held_more.cores_percent,
            ),
            used: (quota.used_memory_mib, quota.used_cores_percent),
            limits: (quota.memory_limit, quota.cores_limit),
        }),
    }
}

/// Of the limit that is exceeded: what the pod asks of it up to this card, what others use, the limit.
fn quota_numbers(look: &Look) -> (i64, i64, i64) {
    let quota = &look.quota;
    let memory = quota.pod_memory_mib + look.held_more.memory_mib;
    match quota.memory_limit {
        Some(limit) if quota.used_memory_mib + memory > limit => (memory, quota.used_memory_mib, limit),
        _ => (
            quota.pod_cores_percent + look.held_more.cores_percent,
            quota.used_cores_percent,
            quota.cores_limit.unwrap_or(0),
        ),
    }
}
