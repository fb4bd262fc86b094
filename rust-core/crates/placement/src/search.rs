//! The search for a node: every candidate is asked, the best of those that fit wins.

use std::sync::Arc;

use crate::ask::PodAsk;
use crate::card::CardKinds;
use crate::count::count_fitting;
use crate::decision::{Decision, PlacedShare};
use crate::demand::{Demand, Demands};
use crate::family::Families;
use crate::groups::group_gain;
use crate::growths::Growths;
use crate::node::Nodes;
use crate::policy::NodePolicy;
use crate::quota::Quotas;
use crate::tally::Tally;
use crate::walk::{Base, Nobody, Taken, Walk};

/// Where a pod may go.
#[derive(Clone, Copy, Debug)]
pub enum Candidates<'a> {
    /// Every registered node.
    All,
    /// These; names that are not registered are reported.
    Named(&'a [&'a str]),
}

/// No node.
const NO_PLACE: u32 = u32::MAX;

/// A cluster has few shapes of nodes; comparing with more would cost what judging does.
const SHAPES_REMEMBERED: usize = 16;

/// Buffers of the search, kept from pod to pod. Nothing in them changes an answer.
#[derive(Default)]
pub(crate) struct Search {
    pub(crate) demands: Demands,
    pub(crate) walk: Walk,
    /// The last decision; its buffers are used again once its readers are gone.
    decision: Option<Arc<Decision>>,
    known_names: KnownNames,
    /// By place: number of the last search whose candidates name the node.
    wanted: Vec<u32>,
    searches: u32,
    /// Nodes of different shapes, and whether the pod never fits on them.
    judged: Vec<(u32, bool)>,
    /// Counting tells whether the first ask fits.
    counts_first: bool,
    /// There is no other ask, and which cards it gets does not matter to the node's score. Nodes with cards that are
    /// cut into instances are walked all the same.
    counts_all: bool,
    growths: Growths,
    /// Scores depend on the groups of the cards given.
    weighs_groups: bool,
}

impl Clone for Search {
    /// A copy starts with empty buffers.
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl Search {
    /// Reads the pod's asks.
    pub(crate) fn prepare(&mut self, pod: &PodAsk, families: &Families, kinds: &CardKinds, quotas: &Quotas) {
        self.demands.prepare(pod, families, kinds, quotas);
        let countable =
            !pod.numa_bind && self.demands.unwalkable.is_none() && self.demands.any_cards_serve_first();
        self.counts_first = countable && self.demands.quota_cannot_bind_first();
        self.weighs_groups = self.demands.list.iter().any(|demand| demand.group_weight != 0.0);
        self.counts_all = self.counts_first && self.demands.list.len() == 1 && !self.weighs_groups;
    }

    /// Turns to the kept growths of the prepared pod, where its choice of cards follows from node and request alone.
    fn turn_to_growths(&mut self, nodes: &Nodes, pod: &PodAsk) {
        let epoch = self.demands.fragments.epoch;
        if self.counts_all || self.demands.list.is_empty() {
            self.growths.turn_to(pod, nodes.scanned().len(), epoch);
        } else {
            self.growths.turn_away();
        }
    }

    /// By how much the fragmentation of a node grows, on which the prepared pod was just found to fit.
    fn growth(&mut self, nodes: &Nodes, place: u32, pod: &PodAsk) -> i64 {
        let version = nodes.version(place);
        if let Some(growth) = self.growths.known(place, version) {
            return growth;
        }
        let node = &nodes[place];
        if self.counts_all {
            let fits = self.walk.fit(node, pod, &mut self.demands, Base::Present, &mut Nobody);
            debug_assert!(fits.is_ok(), "count and walk disagree: {fits:?}");
        }
        let fragments = &mut self.demands.fragments;
        let growth = fragments.growth_of_node((place, version), node, self.walk.pod_use(), pod.host);
        self.growths.keep(place, version, growth);
        growth
    }

    /// Before names change: a kept decision must not hold the old ones.
    pub(crate) fn forget_names(&mut self) {
        if let Some(decision) = self.decision.as_mut().and_then(Arc::get_mut) {
            decision.forget();
        }
    }

    /// Whether the prepared pod fits on a node.
    fn fits(&mut self, nodes: &Nodes, place: u32, pod: &PodAsk) -> Result<(), Tally> {
        if self.counts_first && !nodes.scanned()[place as usize].partitioned {
            self.count_first(nodes, place, pod)?;
            if self.counts_all {
                return Ok(());
            }
        }
        if self.weighs_groups || pod.node_policy == NodePolicy::Fgd {
            // Which cards the last ask takes matters too.
            return self.walk.fit(&nodes[place], pod, &mut self.demands, Base::Present, &mut Nobody);
        }
        self.walk.fits(&nodes[place], pod, &mut self.demands, Base::Present)
    }

    /// What the cards of the last walk add to the node's score.
    fn gain(&self, nodes: &Nodes, place: u32) -> f32 {
        if self.weighs_groups {
            group_gain(&nodes[place], &self.demands, &self.walk.taken)
        } else {
            0.0
        }
    }

    fn count_first(&self, nodes: &Nodes, place: u32, pod: &PodAsk) -> Result<(), Tally> {
        let demand = &self.demands.list[0];
        let needs = self.demands.needs(demand);
        let cards = nodes.scanned_cards(nodes.scanned()[place as usize]);
        match demand.id_rules(pod) {
            None => count_fitting(cards, demand, needs, |_| true),
            Some(rules) => {
                let node = &nodes[place];
                count_fitting(cards, demand, needs, |position| rules.admits_id(node.id_at(position)))
            }
        }
    }

    /// Whether the prepared pod would not fit on a node were it empty, healthy and uncordoned.
    pub(crate) fn never_fits(&mut self, nodes: &Nodes, place: u32, pod: &PodAsk) -> bool {
        self.walk.fits(&nodes[place], pod, &mut self.demands, Base::Empty).is_err()
    }

    /// Asks every candidate about the prepared pod.
    pub(crate) fn decide(
        &mut self,
        nodes: &Nodes,
        pod: &PodAsk,
        candidates: Candidates<'_>,
    ) -> Arc<Decision> {
        let mut shared = self.decision.take().unwrap_or_default();
        if Arc::get_mut(&mut shared).is_none() {
            shared = Arc::default();
        }
        if let Some(decision) = Arc::get_mut(&mut shared) {
            self.fill(decision, nodes, pod, candidates);
        }
        self.decision = Some(shared.clone());
        shared
    }

    fn fill(&mut self, decision: &mut Decision, nodes: &Nodes, pod: &PodAsk, candidates: Candidates<'_>) {
        decision.begin(nodes.names());
        self.begin_search(nodes.scanned().len());
        let all = matches!(candidates, Candidates::All);
        if let Candidates::Named(names) = candidates {
            for (number, name) in names.iter().enumerate() {
                let place = self.known_names.place_of(number, name, nodes);
                if place == NO_PLACE || !nodes.scanned()[place as usize].registered {
                    decision.add_unregistered(name);
                } else {
                    self.wanted[place as usize] = self.searches;
                }
            }
        }
        let looks_at_growth = pod.node_policy == NodePolicy::Fgd;
        if looks_at_growth {
            self.turn_to_growths(nodes, pod);
        }
        // In the order of memory, whatever the order of the names.
        for (place, node) in nodes.scanned().iter().enumerate() {
            if (all && node.registered) || self.wanted[place] == self.searches {
                let place = place as u32;
                match self.fits(nodes, place, pod) {
                    Ok(()) => {
                        let growth = if looks_at_growth { self.growth(nodes, place, pod) } else { 0 };
                        let score = pod.node_policy.improved(node.score, self.gain(nodes, place));
                        decision.add_fitting(place, score, growth, pod.node_policy);
                    }
                    Err(tally) => decision.add_failing(place, tally),
                }
            }
        }
        decision.end();
        if let Some(place) = decision.winner() {
            self.take(decision, nodes, place, pod);
        } else {
            self.judge_never(decision, nodes, pod);
        }
    }

    /// Judges nodes of one shape once: empty, they answer alike unless the pod names cards by their ids.
    fn judge_never(&mut self, decision: &mut Decision, nodes: &Nodes, pod: &PodAsk) {
        let names_ids = self.demands.list.iter().any(|demand| demand.id_rules(pod).is_some());
        let mut judged = std::mem::take(&mut self.judged);
        judged.clear();
        decision.judge_never(|place| {
            if self.counts_all && !nodes.scanned()[place as usize].partitioned {
                return None;
            }
            let alike = |(other, _): &&(u32, bool)| nodes[place].is_shaped_as(&nodes[*other]);
            if let Some((_, never)) = judged.iter().find(alike) {
                return Some(*never);
            }
            let never = self.never_fits(nodes, place, pod);
            if !names_ids && judged.len() < SHAPES_REMEMBERED {
                judged.push((place, never));
            }
            Some(never)
        });
        self.judged = judged;
    }

    fn begin_search(&mut self, places: usize) {
        self.searches = self.searches.wrapping_add(1);
        if self.searches == 0 {
            self.wanted.clear();
            self.searches = 1;
        }
        self.wanted.resize(places, 0);
    }

    /// Walks the winner once more for its cards.
    fn take(&mut self, decision: &mut Decision, nodes: &Nodes, place: u32, pod: &PodAsk) {
        let node = &nodes[place];
        let fits = self.walk.fit(node, pod, &mut self.demands, Base::Present, &mut Nobody);
        debug_assert!(fits.is_ok(), "count and walk disagree: {fits:?}");
        decision.set_notes(self.walk.notes);
        for (demand, taken) in self.taken() {
            let ask = &pod.containers[usize::from(demand.container)].asks[usize::from(demand.ask)];
            decision.add_share(PlacedShare {
                container: demand.container,
                card_id: node.id_at(usize::from(taken.position)).clone(),
                vendor: ask.vendor().clone(),
                memory_mib: taken.memory_mib,
                cores_percent: taken.cores_percent,
                instance: node.instance_at(usize::from(taken.position), taken.instance),
            });
        }
    }

    /// The cards of the last walk, each with the demand it serves.
    pub(crate) fn taken(&self) -> impl Iterator<Item = (&Demand, &Taken)> {
        self.walk.taken.iter().map(|taken| (&self.demands.list[usize::from(taken.demand)], taken))
    }
}

/// The places of the last list of names. The next list is most often the same, and comparing is cheaper than looking
/// up.
#[derive(Default)]
struct KnownNames {
    places: Vec<u32>,
}

impl KnownNames {
    /// The place of name `number` of the list.
    #[inline]
    fn place_of(&mut self, number: usize, name: &str, nodes: &Nodes) -> u32 {
        if self.places.len() <= number {
            self.places.resize(number + 1, NO_PLACE);
        }
        let known = &mut self.places[number];
        if *known == NO_PLACE || !nodes.is_named(*known, name) {
            *known = nodes.find(name).unwrap_or(NO_PLACE);
        }
        *known
    }
}
