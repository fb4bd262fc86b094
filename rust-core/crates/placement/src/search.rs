//! The search for a node: every candidate is asked, the best of those that fit wins.

use std::sync::Arc;

use crate::ask::PodAsk;
use crate::card::CardKinds;
use crate::count::count_fitting;
use crate::decision::{Decision, PlacedShare};
use crate::demand::{Demand, Demands};
use crate::node::{Node, Nodes};
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

/// Buffers of the search, kept from pod to pod. Nothing in them changes an answer.
#[derive(Default)]
pub(crate) struct Search {
    pub(crate) demands: Demands,
    pub(crate) walk: Walk,
    /// The last decision; its buffers are used again once its readers are gone.
    decision: Arc<Decision>,
    /// Places of the last list of names: the next list is most often the same.
    guesses: Vec<u32>,
    /// By place: number of the last search that asked the node.
    asked: Vec<u64>,
    searches: u64,
    counts: bool,
    counts_empty: bool,
}

impl Clone for Search {
    /// A copy starts with empty buffers.
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl Search {
    /// Reads the pod's asks.
    pub(crate) fn prepare(
        &mut self,
        pod: &PodAsk,
        kinds: &CardKinds,
        quotas: &Quotas,
        largest_card_mib: i64,
    ) {
        self.demands.prepare(pod, kinds, quotas);
        self.counts_empty =
            self.demands.list.len() == 1 && !pod.numa_bind && self.demands.unwalkable.is_none();
        self.counts = self.counts_empty && self.demands.quota_cannot_bind(largest_card_mib);
    }

    /// Before names change: a kept decision must not hold the old ones.
    pub(crate) fn forget_names(&mut self) {
        if let Some(decision) = Arc::get_mut(&mut self.decision) {
            decision.forget();
        }
    }

    /// Whether the prepared pod fits on the node.
    fn fits(&mut self, node: &Node, pod: &PodAsk) -> Result<(), Tally> {
        if self.counts {
            let demand = &self.demands.list[0];
            return count_fitting::<false>(node, pod, demand, self.demands.verdicts(demand));
        }
        self.walk.fit(node, pod, &mut self.demands, Base::Present, &mut Nobody)
    }

    /// Whether the prepared pod would not fit on the node were it empty, healthy and uncordoned.
    pub(crate) fn never_fits(&mut self, node: &Node, pod: &PodAsk) -> bool {
        if self.counts_empty {
            let demand = &self.demands.list[0];
            return count_fitting::<true>(node, pod, demand, self.demands.verdicts(demand)).is_err();
        }
        self.walk.fit(node, pod, &mut self.demands, Base::Empty, &mut Nobody).is_err()
    }

    /// Asks every candidate about the prepared pod.
    pub(crate) fn decide(
        &mut self,
        nodes: &Nodes,
        pod: &PodAsk,
        candidates: Candidates<'_>,
    ) -> Arc<Decision> {
        let mut shared = std::mem::take(&mut self.decision);
        if Arc::get_mut(&mut shared).is_none() {
            shared = Arc::default();
        }
        if let Some(decision) = Arc::get_mut(&mut shared) {
            self.fill(decision, nodes, pod, candidates);
        }
        self.decision = shared.clone();
        shared
    }

    fn fill(&mut self, decision: &mut Decision, nodes: &Nodes, pod: &PodAsk, candidates: Candidates<'_>) {
        decision.begin(nodes.names());
        self.searches += 1;
        self.asked.resize(nodes.slots.items().len(), 0);
        match candidates {
            Candidates::All => {
                for (place, node) in nodes.slots.items().iter().enumerate() {
                    if node.registered {
                        self.ask(decision, place as u32, node, pod);
                    }
                }
            }
            Candidates::Named(names) => {
                self.guesses.resize(self.guesses.len().max(names.len()), NO_PLACE);
                for (number, name) in names.iter().enumerate() {
                    let place = self.place_of(nodes, number, name);
                    match nodes.slots.items().get(place as usize) {
                        Some(node) if node.registered => self.ask(decision, place, node, pod),
                        _ => decision.add_unregistered(name),
                    }
                }
            }
        }
        decision.end();
        if let Some(place) = decision.winner() {
            self.take(decision, &nodes.slots[place], pod);
        } else {
            decision.judge_never(|place| self.never_fits(&nodes.slots[place], pod));
        }
    }

    fn place_of(&mut self, nodes: &Nodes, number: usize, name: &str) -> u32 {
        let guess = self.guesses[number];
        if nodes.slots.items().get(guess as usize).is_some_and(|node| node.registered && *node.name == *name)
        {
            return guess;
        }
        let place = nodes.find(name).unwrap_or(NO_PLACE);
        self.guesses[number] = place;
        place
    }

    fn ask(&mut self, decision: &mut Decision, place: u32, node: &Node, pod: &PodAsk) {
        let asked = &mut self.asked[place as usize];
        if *asked == self.searches {
            return;
        }
        *asked = self.searches;
        match self.fits(node, pod) {
            Ok(()) => decision.add_fitting(place, node.score, pod.node_policy),
            Err(tally) => decision.add_failing(place, tally),
        }
    }

    /// Walks the winner once more for its cards.
    fn take(&mut self, decision: &mut Decision, node: &Node, pod: &PodAsk) {
        let fits = self.walk.fit(node, pod, &mut self.demands, Base::Present, &mut Nobody);
        debug_assert!(fits.is_ok(), "count and walk disagree: {fits:?}");
        for (demand, taken) in self.taken() {
            let ask = &pod.containers[usize::from(demand.container)].asks[usize::from(demand.ask)];
            decision.add_share(PlacedShare {
                container: demand.container,
                card_id: node.id_at(usize::from(taken.position)).clone(),
                vendor: ask.vendor().clone(),
                memory_mib: taken.memory_mib,
                cores_percent: taken.cores_percent,
            });
        }
    }

    /// The cards of the last walk, each with the demand it serves.
    pub(crate) fn taken(&self) -> impl Iterator<Item = (&Demand, &Taken)> {
        self.walk.taken.iter().map(|taken| (&self.demands.list[usize::from(taken.demand)], taken))
    }
}
