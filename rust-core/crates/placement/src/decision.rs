//! What was decided about one pod: the node and cards it gets, or why it fits nowhere.

use std::hash::BuildHasher;
use std::sync::Arc;

use hashbrown::HashTable;
use rustc_hash::FxBuildHasher;
use serde::{Deserialize, Serialize};

use crate::mig::MigInstance;
use crate::note::Notes;
use crate::policy::NodePolicy;
use crate::reason::{Reason, REASONS};
use crate::tally::Tally;

/// How many of the best nodes a decision names.
pub const BEST_COUNT: usize = 10;

/// One card's share given to one container by a decision.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlacedShare {
    /// Number of the container in the pod's ask.
    pub container: u16,
    /// The card's id.
    pub card_id: Arc<str>,
    /// The vendor word.
    pub vendor: Arc<str>,
    /// Memory in MiB.
    pub memory_mib: i64,
    /// Cores in percent of one card.
    pub cores_percent: i64,
    /// Where it lies on a card that is cut into instances; memory and cores are then those of its profile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<Arc<MigInstance>>,
}

/// What a candidate said.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    pub(crate) node: u32,
    score: f32,
    /// Number of the tally, or `FITS`.
    pub(crate) tally: u32,
    /// The pod would not fit on the node were it empty, healthy and uncordoned.
    pub(crate) never: bool,
}

/// One of the best nodes.
#[derive(Clone, Copy, Debug)]
struct Best {
    node: u32,
    score: f32,
    growth: i64,
}

pub(crate) const FITS: u32 = u32::MAX;

/// A decision about one pod. Texts and lists are made when they are asked for.
#[derive(Clone, Debug, Default)]
pub struct Decision {
    names: Arc<Vec<Arc<str>>>,
    pub(crate) rows: Vec<Row>,
    /// Each tally once, with the number of nodes that met it: thousands of nodes meet few different ones.
    pub(crate) tallies: Vec<(Tally, usize)>,
    tally_places: HashTable<u32>,
    pub(crate) unregistered: Vec<String>,
    best: Vec<Best>,
    shares: Vec<PlacedShare>,
    notes: Notes,
    fitting: usize,
}

impl Decision {
    pub(crate) fn begin(&mut self, names: &Arc<Vec<Arc<str>>>) {
        if !Arc::ptr_eq(&self.names, names) {
            self.names = names.clone();
        }
        self.rows.clear();
        self.tallies.clear();
        self.tally_places.clear();
        self.unregistered.clear();
        self.best.clear();
        self.shares.clear();
        self.notes = Notes::default();
        self.fitting = 0;
    }

    /// Lets go of the names, so that the nodes may change them without a copy.
    pub(crate) fn forget(&mut self) {
        self.names = Arc::default();
    }

    /// `growth` is 0 unless the policy looks at fragmentation.
    pub(crate) fn add_fitting(&mut self, node: u32, score: f32, growth: i64, policy: NodePolicy) {
        self.fitting += 1;
        self.rows.push(Row { node, score, tally: FITS, never: false });
        let names = &self.names;
        let before = |other: &Best| {
            other
                .growth
                .cmp(&growth)
                .then_with(|| policy.compare(other.score, score))
                .then_with(|| names[other.node as usize].cmp(&names[node as usize]))
                .is_lt()
        };
        if self.best.len() == BEST_COUNT && self.best.last().is_some_and(before) {
            return;
        }
        self.best.truncate(BEST_COUNT - 1);
        let place = self.best.partition_point(before);
        self.best.insert(place, Best { node, score, growth });
    }

    pub(crate) fn add_failing(&mut self, node: u32, mut tally: Tally) {
        let never = std::mem::take(&mut tally.never);
        let place = self.place_of(tally);
        self.tallies[place as usize].1 += 1;
        self.rows.push(Row { node, score: 0.0, tally: place, never });
    }

    fn place_of(&mut self, tally: Tally) -> u32 {
        // Neighbours are often alike.
        if let Some(last) = self.rows.last().map(|row| row.tally) {
            if last != FITS && self.tallies[last as usize].0 == tally {
                return last;
            }
        }
        let hashed = |tally: &Tally| FxBuildHasher.hash_one(tally);
        let tallies = &mut self.tallies;
        let same = |place: &u32| tallies[*place as usize].0 == tally;
        if let Some(place) = self.tally_places.find(hashed(&tally), same) {
            return *place;
        }
        let place = tallies.len() as u32;
        tallies.push((tally, 0));
        self.tally_places.insert_unique(hashed(&tally), place, |other| hashed(&tallies[*other as usize].0));
        place
    }

    pub(crate) fn add_unregistered(&mut self, name: &str) {
        self.unregistered.push(name.into());
    }

    /// Names that were given twice count once.
    pub(crate) fn end(&mut self) {
        self.unregistered.sort_unstable();
        self.unregistered.dedup();
    }

    pub(crate) fn add_share(&mut self, share: PlacedShare) {
        self.shares.push(share);
    }

    pub(crate) fn set_notes(&mut self, notes: Notes) {
        self.notes = notes;
    }

    /// What is to be said about the choice of the cards.
    pub fn notes(&self) -> Notes {
        self.notes
    }

    pub(crate) fn winner(&self) -> Option<u32> {
        self.best.first().map(|best| best.node)
    }

    /// Sets, for each node that does not fit, whether it never would. None: counting has told.
    pub(crate) fn judge_never(&mut self, mut never: impl FnMut(u32) -> Option<bool>) {
        for row in self.rows.iter_mut().filter(|row| row.tally != FITS) {
            row.never = never(row.node).unwrap_or(row.never);
        }
    }

    pub(crate) fn name(&self, node: u32) -> &str {
        &self.names[node as usize]
    }

    /// The chosen node with its score before this pod, or None when the pod fits nowhere.
    pub fn chosen(&self) -> Option<(&str, f32)> {
        self.best.first().map(|best| (self.name(best.node), best.score))
    }

    /// The shares, containers in their order.
    pub fn shares(&self) -> &[PlacedShare] {
        &self.shares
    }

    /// At most ten nodes, best first.
    pub fn best(&self) -> impl Iterator<Item = (&str, f32)> {
        self.best.iter().map(|best| (self.name(best.node), best.score))
    }

    /// How many candidates fit.
    pub fn fitting_nodes(&self) -> usize {
        self.fitting
    }

    /// How many candidates there were, each name once.
    pub fn candidate_nodes(&self) -> usize {
        self.rows.len() + self.unregistered.len()
    }

    /// Score of each node that fits, by name.
    pub fn node_scores(&self) -> Vec<(&str, f32)> {
        let mut scores: Vec<_> = self
            .rows
            .iter()
            .filter(|row| row.tally == FITS)
            .map(|row| (self.name(row.node), row.score))
            .collect();
        scores.sort_unstable_by_key(|(name, _)| *name);
        scores
    }

    /// For each reason met, on how many nodes; in the order of the codes.
    pub fn tally(&self) -> Vec<(&'static str, usize)> {
        let mut nodes = [0; REASONS.len()];
        nodes[Reason::NodeUnregistered as usize] = self.unregistered.len();
        for (tally, count) in &self.tallies {
            for reason in tally.reasons() {
                nodes[reason as usize] += count;
            }
        }
        REASONS
            .iter()
            .map(|row| (row.code, nodes[row.reason as usize]))
            .filter(|(_, count)| *count > 0)
            .collect()
    }
}
