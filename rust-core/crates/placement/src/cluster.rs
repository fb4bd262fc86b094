//! The kept state of the cluster and the operations on it. Every operation is one whole step.

use std::sync::Arc;

use crate::ask::{InvalidInput, PodAsk};
use crate::booking::{Booking, BookingState, Bookings, Claim, Share};
use crate::card::{Amount, Card, CardKinds, CardSpec};
use crate::decision::Decision;
use crate::family::Families;
use crate::host::HostAmount;
use crate::mig::MigInstance;
use crate::node::{validate_inventory, Node, Nodes};
use crate::pair_scores::{CardScores, PairScores};
use crate::quota::Quotas;
use crate::search::{Candidates, Search};
use crate::views::{BookingView, BoundPod, CardView};
use crate::workload::{Workload, WorkloadShape};

/// The kept state.
#[derive(Clone)]
pub struct Cluster {
    pub(crate) families: Families,
    pub(crate) nodes: Nodes,
    pub(crate) kinds: CardKinds,
    pub(crate) bookings: Bookings,
    pub(crate) quotas: Quotas,
    pub(crate) search: Search,
    pub(crate) workload: Workload,
}

impl Cluster {
    /// A cluster without nodes that knows these families.
    pub fn new(families: Families) -> Self {
        Self {
            families,
            nodes: Nodes::default(),
            kinds: CardKinds::default(),
            bookings: Bookings::default(),
            quotas: Quotas::default(),
            search: Search::default(),
            workload: Workload::default(),
        }
    }

    /// Registers a node's cards, which have no pair scores. See [`Self::set_node_with_pair_scores`].
    ///
    /// # Errors
    /// As there.
    pub fn set_node(&mut self, name: &str, specs: &[CardSpec]) -> Result<(), InvalidInput> {
        self.set_node_with_pair_scores(name, specs, &[])
    }

    /// Registers a node's cards and the scores between them in place of those it had. Bookings stay.
    ///
    /// Of several entries of a card in `scores` the first counts; what names no card of the node is left out.
    ///
    /// # Errors
    /// When a card id comes twice or a quantity is out of range; nothing is changed then.
    pub fn set_node_with_pair_scores(
        &mut self,
        name: &str,
        specs: &[CardSpec],
        scores: &[CardScores],
    ) -> Result<(), InvalidInput> {
        validate_inventory(name, specs)?;
        let ids: Vec<&str> = specs.iter().map(|spec| &*spec.id).collect();
        let scores = PairScores::new(&ids, scores);
        let known = self.nodes.find(name);
        if let Some(place) = known.filter(|place| self.nodes[*place].is_registered_as(specs, &self.kinds)) {
            if self.nodes[place].pair_scores != scores {
                self.nodes[place].pair_scores = scores;
                // What is kept about the node under `fgd` followed from the old scores.
                self.nodes.refresh(place);
            }
            return Ok(());
        }
        let mut kinds = Vec::with_capacity(specs.len());
        for spec in specs {
            let family = self.families.find(&spec.vendor);
            match self.kinds.add(spec, family.is_some_and(|family| family.partitions(&spec.mode))) {
                Ok(kind) => kinds.push(kind),
                Err(error) => {
                    for kind in kinds {
                        self.kinds.remove(kind);
                    }
                    return Err(error);
                }
            }
        }
        let place = self.find_or_add_node(name);
        self.rebuild(place, |node, all_kinds| node.register(specs, &kinds, all_kinds));
        self.nodes[place].pair_scores = scores;
        Ok(())
    }

    fn find_or_add_node(&mut self, name: &str) -> u32 {
        self.nodes.find(name).unwrap_or_else(|| {
            self.search.forget_names();
            self.nodes.find_or_add(name)
        })
    }

    /// Takes a node out of placement. Bookings on it stay. False when it was not registered.
    pub fn remove_node(&mut self, name: &str) -> bool {
        let Some(place) = self.nodes.find(name).filter(|place| self.nodes[*place].registered) else {
            return false;
        };
        self.nodes[place].host = None;
        self.rebuild(place, |node, _| node.unregister());
        self.nodes.drop_if_unused(place);
        true
    }

    /// Changes a node's inventory and books its pods anew on it.
    fn rebuild(&mut self, place: u32, change: impl FnOnce(&mut Node, &CardKinds)) {
        self.count_bookings_of(place, false);
        let node = &mut self.nodes[place];
        let ids: Vec<Arc<str>> = node.known.iter().map(|card| card.id.clone()).collect();
        for card in &node.cards {
            self.kinds.remove(card.kind);
        }
        change(node, &self.kinds);
        for booking in &node.bookings.clone() {
            let booking = &mut self.bookings.slots[*booking];
            let renamed = booking
                .shares
                .iter_mut()
                .map(|share| &mut share.card)
                .chain(booking.held.iter_mut().map(|held| &mut held.card))
                .chain(booking.claims.iter_mut().map(|claim| &mut claim.card))
                .chain(&mut booking.blocked);
            for card in renamed {
                *card = self.nodes[place].know(&ids[*card as usize]);
            }
            let node = &mut self.nodes[place];
            node.shift_booking(booking, true);
        }
        self.count_bookings_of(place, true);
        self.nodes.refresh(place);
    }

    /// Counts the pods of a node among those booked, or takes them out.
    fn count_bookings_of(&mut self, place: u32, adds: bool) {
        let node = &self.nodes[place];
        for number in &node.bookings {
            let held = &self.bookings.slots[*number].held;
            self.workload.booked.count(held, node, &self.families, adds);
        }
    }

    /// Sets a card's health. False when the node has not registered such a card.
    pub fn set_card_health(&mut self, node: &str, card_id: &str, healthy: bool) -> bool {
        let Some(place) = self.nodes.find(node) else { return false };
        let Some(card) = self.nodes[place].card_mut(card_id) else { return false };
        card.faults.unhealthy = !healthy;
        self.nodes.refresh(place);
        true
    }

    /// Says what of a node's host is free; None: not known, which is how a node begins. False when there is no such
    /// node. The engine keeps no account of it: say it again whenever it changes.
    pub fn set_node_host(&mut self, node: &str, free: Option<HostAmount>) -> bool {
        let Some(place) = self.nodes.find(node) else { return false };
        if self.nodes[place].host != free {
            self.nodes[place].host = free;
            self.nodes.refresh(place);
        }
        true
    }

    /// Sets the pods that the policy `fgd` expects; None: as those that are booked.
    pub fn set_workload(&mut self, shapes: Option<Vec<WorkloadShape>>) {
        self.workload.set(shapes);
    }

    /// How many free cards of a node a pod of the workload finds useless, in the mean. None for an unknown node.
    pub fn fragmentation(&mut self, node: &str) -> Option<f64> {
        let place = self.nodes.find(node)?;
        let fragments = &mut self.search.demands.fragments;
        fragments.prepare(&self.workload, &self.families, &self.kinds);
        let value = fragments.fragmentation((place, self.nodes.version(place)), &self.nodes[place]);
        Some(fragments.in_cards(value))
    }

    /// Sets whether a card works and whether an operator excluded it. False when the node has not registered it.
    pub fn set_card_faults(&mut self, node: &str, card_id: &str, unhealthy: bool, cordoned: bool) -> bool {
        let Some(place) = self.nodes.find(node) else { return false };
        let Some(card) = self.nodes[place].card_mut(card_id) else { return false };
        (card.faults.unhealthy, card.faults.cordoned) = (unhealthy, cordoned);
        self.nodes.refresh(place);
        true
    }

    /// Names of the registered nodes, sorted.
    pub fn nodes(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self
            .nodes
            .all()
            .filter(|(_, node)| node.registered)
            .map(|(place, _)| self.nodes.name(place))
            .collect();
        names.sort_unstable();
        names
    }

    /// Cards of a registered node in the order of its inventory; empty for another.
    pub fn node_cards(&self, name: &str) -> Vec<CardView> {
        let Some(place) = self.nodes.find(name) else { return Vec::new() };
        let node = &self.nodes[place];
        let view = |(position, card): (usize, &Card)| {
            let kind = self.kinds.get(card.kind);
            CardView {
                spec: CardSpec {
                    id: node.id_at(position).to_string(),
                    vendor: kind.vendor.to_string(),
                    model: kind.model.to_string(),
                    index: card.index,
                    slots: card.total.slots as i32,
                    memory_mib: card.total.memory_mib,
                    cores_percent: card.total.cores_percent as i32,
                    numa: card.numa,
                    mode: kind.mode.clone(),
                    healthy: !card.faults.unhealthy,
                    cordoned: card.faults.cordoned,
                    mig_profiles: kind.mig_profiles().to_vec(),
                    group: node.group_name(card),
                },
                blocked: card.faults.blocked || card.faults.unclear_instances,
                used: card.used,
                instances: self.instances_on(node, card.known),
            }
        };
        node.cards.iter().enumerate().map(view).collect()
    }

    /// The scores between the cards of a node; empty where it has none.
    pub fn node_pair_scores(&self, name: &str) -> Vec<CardScores> {
        let Some(place) = self.nodes.find(name) else { return Vec::new() };
        let node = &self.nodes[place];
        let ids: Vec<&str> = (0..node.cards.len()).map(|position| &**node.id_at(position)).collect();
        node.pair_scores.by_id(&ids)
    }

    /// The instances that bookings hold of a card, each once, in the order of their places.
    fn instances_on(&self, node: &Node, known: u32) -> Vec<MigInstance> {
        if node.slices.is_empty() {
            return Vec::new();
        }
        let bookings = node.bookings.iter().map(|number| &self.bookings.slots[*number]);
        let mut instances: Vec<MigInstance> = bookings
            .flat_map(|booking| {
                let shares = booking.shares.iter().filter(|share| booking.is_live(share));
                let claims = booking.claims.iter().map(|claim| (claim.card, &claim.instance));
                shares.map(|share| (share.card, &share.instance)).chain(claims)
            })
            .filter(|(card, _)| *card == known)
            .filter_map(|(_, instance)| instance.as_deref().cloned())
            .collect();
        instances.sort_unstable_by(|left, right| {
            (left.placement, &left.profile).cmp(&(right.placement, &right.profile))
        });
        instances.dedup();
        instances
    }

    /// Sets the limits of a namespace for one vendor. None: no limit; 0 blocks.
    pub fn set_quota(&mut self, namespace: &str, vendor: &str, memory: Option<i64>, cores: Option<i64>) {
        self.quotas.set_limits(namespace, vendor, memory, cores);
    }

    /// Limits of a namespace for one vendor: memory in MiB, cores in percent of one card.
    pub fn quota_limits(&self, namespace: &str, vendor: &str) -> (Option<i64>, Option<i64>) {
        self.quotas.find(namespace, vendor).map_or((None, None), |place| {
            let quota = self.quotas.get(place);
            (quota.memory_limit, quota.cores_limit)
        })
    }

    /// Memory in MiB and cores in percent that live bookings of a namespace use of one vendor.
    pub fn quota_used(&self, namespace: &str, vendor: &str) -> (i64, i64) {
        self.quotas.find(namespace, vendor).map_or((0, 0), |place| {
            let quota = self.quotas.get(place);
            (quota.used_memory_mib, quota.used_cores_percent)
        })
    }

    /// Books a bound pod in place of whatever was booked for its UID.
    ///
    /// Cards the node does not know are remembered and count once it registers them.
    pub fn charge(&mut self, pod: &BoundPod<'_>) {
        self.release(pod.uid);
        let place = self.find_or_add_node(pod.node);
        let number = self.bookings.slots.take();
        let booking = &mut self.bookings.slots[number];
        booking.reset(pod.uid, pod.namespace, place, BookingState::Bound);
        booking.init_done = pod.init_done;
        let node = &mut self.nodes[place];
        for (container, (kind, shares)) in (0..).zip(pod.containers) {
            booking.shares.extend(shares.iter().map(|share| Share {
                container,
                kind: *kind,
                card: node.know(&share.card_id),
                vendor: share.vendor.clone(),
                memory_mib: share.memory_mib,
                cores_percent: share.cores_percent,
                instance: share.instance.clone(),
            }));
        }
        booking.claims.extend(
            pod.claims
                .iter()
                .map(|claim| Claim { card: node.know(&claim.card_id), instance: claim.instance.clone() }),
        );
        for card_id in pod.blocked_cards {
            let card = node.know(card_id);
            if !booking.blocked.contains(&card) {
                booking.blocked.push(card);
            }
        }
        self.book(number);
    }

    /// Places a pod and books it as reserved, in place of whatever was booked for its UID.
    ///
    /// A pod that fits nowhere loses its earlier booking too.
    pub fn reserve(&mut self, pod: &PodAsk, candidates: Candidates<'_>) -> Arc<Decision> {
        self.release(&pod.uid);
        let decision = self.decide(pod, candidates);
        if let Some(place) = decision.winner() {
            let number = self.bookings.slots.take();
            let booking = &mut self.bookings.slots[number];
            booking.reset(&pod.uid, &pod.namespace, place, BookingState::Reserved);
            let node = &self.nodes[place];
            booking.shares.extend(self.search.taken().map(|(demand, taken)| {
                Share {
                    container: demand.container,
                    kind: demand.kind,
                    card: node.cards[usize::from(taken.position)].known,
                    vendor: pod.containers[usize::from(demand.container)].asks[usize::from(demand.ask)]
                        .vendor()
                        .clone(),
                    memory_mib: taken.memory_mib,
                    cores_percent: taken.cores_percent,
                    instance: node.instance_at(usize::from(taken.position), taken.instance),
                }
            }));
            self.book(number);
        }
        decision
    }

    /// Decides about a pod and leaves the state as it is. Its own booking does not count against it.
    pub fn what_if(&mut self, pod: &PodAsk, candidates: Candidates<'_>) -> Arc<Decision> {
        self.without_booking(&pod.uid, |cluster| cluster.decide(pod, candidates))
    }

    pub(crate) fn decide(&mut self, pod: &PodAsk, candidates: Candidates<'_>) -> Arc<Decision> {
        self.prepare(pod);
        self.search.decide(&self.nodes, pod, candidates)
    }

    /// Makes the search ready for a pod.
    pub(crate) fn prepare(&mut self, pod: &PodAsk) {
        self.search.prepare(pod, &self.families, &self.kinds, &self.quotas);
        if pod.looks_at_fragmentation() {
            self.search.demands.fragments.prepare(&self.workload, &self.families, &self.kinds);
        }
    }

    /// Runs `look` while the pod's own booking is lifted.
    pub(crate) fn without_booking<T>(&mut self, uid: &str, look: impl FnOnce(&mut Self) -> T) -> T {
        let own = self.bookings.find(uid);
        if let Some(number) = own {
            self.apply(number, false);
        }
        let answer = look(self);
        if let Some(number) = own {
            self.apply(number, true);
        }
        answer
    }

    /// Makes a filled-in booking count.
    fn book(&mut self, number: u32) {
        let booking = &mut self.bookings.slots[number];
        booking.sum_up();
        self.nodes[booking.node].bookings.push(number);
        self.apply(number, true);
        self.bookings.publish(number);
    }

    /// Adds a booking to the sums, or takes it out of them.
    pub(crate) fn apply(&mut self, number: u32, adds: bool) {
        let booking = &mut self.bookings.slots[number];
        let node = &mut self.nodes[booking.node];
        node.shift_booking(booking, adds);
        self.workload.booked.count(&booking.held, node, &self.families, adds);
        self.nodes.refresh(booking.node);
        if !adds {
            for charge in booking.charges.drain(..) {
                self.quotas.give_back(charge);
            }
            return;
        }
        for index in 0..booking.held.len() {
            let vendor = &booking.held[index].vendor;
            if booking.held[..index].iter().any(|earlier| earlier.vendor == *vendor) {
                continue;
            }
            let sum = booking.held[index..]
                .iter()
                .filter(|held| held.vendor == *vendor)
                .fold(Amount::default(), |sum, held| sum.plus(held.amount));
            booking.charges.push(self.quotas.charge(
                &booking.namespace,
                vendor,
                sum.memory_mib,
                sum.cores_percent,
            ));
        }
    }

    /// Makes a reservation bound. False when nothing is booked for the UID.
    pub fn confirm(&mut self, uid: &str) -> bool {
        let Some(number) = self.bookings.find(uid) else { return false };
        self.bookings.slots[number].state = BookingState::Bound;
        true
    }

    /// Gives back what is booked for a UID. False when nothing is.
    pub fn release(&mut self, uid: &str) -> bool {
        let Some(number) = self.bookings.find(uid) else { return false };
        self.apply(number, false);
        self.bookings.remove(number);
        let place = self.bookings.slots[number].node;
        let node = &mut self.nodes[place];
        node.bookings.retain(|other| *other != number);
        if node.bookings.is_empty() {
            // Registered cards are known first; the others were known for bookings alone.
            node.known.truncate(node.cards.len());
            self.nodes.drop_if_unused(place);
        }
        true
    }

    fn view<'a>(&'a self, booking: &'a Booking) -> BookingView<'a> {
        BookingView {
            uid: &booking.uid,
            namespace: &booking.namespace,
            node: self.nodes.name(booking.node),
            state: booking.state,
        }
    }

    /// What is booked for a UID.
    pub fn booking(&self, uid: &str) -> Option<BookingView<'_>> {
        self.bookings.find(uid).map(|number| self.view(&self.bookings.slots[number]))
    }

    /// What a UID holds, by card id, sorted.
    pub fn booked(&self, uid: &str) -> Vec<(&str, Amount)> {
        let Some(number) = self.bookings.find(uid) else { return Vec::new() };
        let booking = &self.bookings.slots[number];
        let known = &self.nodes[booking.node].known;
        let mut held: Vec<(&str, Amount)> =
            booking.held.iter().map(|held| (&*known[held.card as usize].id, held.amount)).collect();
        held.sort_unstable_by_key(|(id, _)| *id);
        // A malformed allocation may name one card under two vendors.
        held.dedup_by(|later, kept| {
            let same = later.0 == kept.0;
            if same {
                kept.1 = kept.1.plus(later.1);
            }
            same
        });
        held
    }

    /// Bookings on a node, sorted by UID.
    pub fn pods(&self, node: &str) -> Vec<BookingView<'_>> {
        let Some(place) = self.nodes.find(node) else { return Vec::new() };
        let bookings = &self.nodes[place].bookings;
        let mut pods: Vec<_> =
            bookings.iter().map(|number| self.view(&self.bookings.slots[*number])).collect();
        pods.sort_unstable_by_key(|pod| pod.uid);
        pods
    }

    /// How many bookings there are.
    pub fn booking_count(&self) -> usize {
        self.bookings.count()
    }
}
