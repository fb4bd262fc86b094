//! Explanations: for each node, each card with what was asked, used and there.

use crate::ask::PodAsk;
use crate::check::Check;
use crate::cluster::Cluster;
use crate::demand::Demand;
use crate::note::Notes;
use crate::reason::Reason;
use crate::search::Candidates;
use crate::walk::{Base, Look, Walk, Witness};

/// Why one card was taken or not. Numbers are in the unit of the reason: MiB, percent or slots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CardVerdict {
    /// The card's id.
    pub card_id: String,
    /// None: the card passed.
    pub reason: Option<Reason>,
    /// What the share needs.
    pub asked: Option<i64>,
    /// What is in use, of the card or of the quota.
    pub used: Option<i64>,
    /// The card's total, or the quota's limit.
    pub total: Option<i64>,
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
    /// Cards looked at for that container's ask; where the pod fits, for the last ask.
    pub cards: Vec<CardVerdict>,
    /// Where the pod fits: what is to be said about the choice of its cards.
    pub notes: Notes,
}

/// Keeps the looks of the last ask.
#[derive(Default)]
struct Looks(Vec<Look>);

impl Witness for Looks {
    fn begins(&mut self, _demand: &Demand) {
        self.0.clear();
    }

    fn sees(&mut self, look: Look) {
        self.0.push(look);
    }
}

impl Cluster {
    /// Asks each candidate about a pod, nodes sorted by name, and leaves the state as it is.
    pub fn explain(&mut self, pod: &PodAsk, candidates: Candidates<'_>) -> Vec<NodeVerdict> {
        self.without_booking(&pod.uid, |cluster| {
            cluster.prepare(pod);
            let mut names: Vec<String> = match candidates {
                Candidates::All => cluster.nodes().into_iter().map(String::from).collect(),
                Candidates::Named(names) => names.iter().map(|name| (*name).to_string()).collect(),
            };
            names.sort_unstable();
            names.dedup();
            let mut walk = Walk::default();
            names.into_iter().map(|name| cluster.explain_node(&mut walk, pod, name)).collect()
        })
    }

    fn explain_node(&mut self, walk: &mut Walk, pod: &PodAsk, name: String) -> NodeVerdict {
        let place = self.nodes.find(&name).filter(|place| self.nodes[*place].registered);
        let Some(place) = place else {
            return NodeVerdict {
                node: name,
                fits: false,
                never: false,
                score: None,
                container: None,
                reason: Reason::NodeUnregistered.bare_text().into(),
                cards: Vec::new(),
                notes: Notes::default(),
            };
        };
        let node = &self.nodes[place];
        let mut looks = Looks::default();
        let outcome = walk.fit(node, pod, &mut self.search.demands, Base::Present, &mut looks);
        let notes = walk.notes;
        let cards = looks
            .0
            .iter()
            .map(|look| {
                let position = usize::from(look.position);
                card_verdict(node.id_at(position), look, node.cards[position].total)
            })
            .collect();
        let fits = outcome.is_ok();
        NodeVerdict {
            fits,
            never: !fits && self.search.never_fits(&self.nodes, place, pod),
            score: fits.then_some(self.nodes.scanned()[place as usize].score),
            container: outcome.err().map(|tally| pod.containers[usize::from(tally.container)].name.clone()),
            reason: outcome.err().map(|tally| tally.text()).unwrap_or_default(),
            cards,
            notes: if fits { notes } else { Notes::default() },
            node: name,
        }
    }
}

fn card_verdict(card_id: &str, look: &Look, total: crate::card::Amount) -> CardVerdict {
    let numbers = match look.failed {
        Some(Check::Memory | Check::MigPlacement) | None => {
            Some((look.memory_mib, look.used.memory_mib, total.memory_mib))
        }
        Some(Check::Cores | Check::ComputeExhausted) => {
            Some((look.cores_percent, look.used.cores_percent, total.cores_percent))
        }
        Some(Check::Slots | Check::Mutex | Check::Exclusive) => Some((1, look.used.slots, total.slots)),
        Some(Check::Quota) => Some(quota_numbers(look)),
        Some(
            Check::Health
            | Check::MigReservation
            | Check::Cordon
            | Check::Blocked
            | Check::Type
            | Check::Uuid,
        ) => None,
    };
    CardVerdict {
        card_id: card_id.into(),
        reason: look.failed.map(Check::reason),
        asked: numbers.map(|(asked, _, _)| asked),
        used: numbers.map(|(_, used, _)| used),
        total: numbers.map(|(_, _, total)| total),
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
