//! Nodes with their cards and kept sums.

use std::sync::Arc;

use crate::ask::InvalidInput;
use crate::booking::Booking;
use crate::card::{Amount, Card, CardKinds, CardSpec, Faults, ScannedCard};
use crate::groups::{sort_groups, NO_GROUP, UNREADABLE};
use crate::host::HostAmount;
use crate::mig::{MigChoice, MigInstance};
use crate::mig_use::{HeldSlices, SliceUse};
use crate::names::{NameIndex, Slots};
use crate::pair_scores::PairScores;
use crate::score::node_score;

/// Where a known card lies in the node's inventory when it is not registered.
pub(crate) const UNREGISTERED: u16 = u16::MAX;

/// A card id that the node registered or that a booking on the node names.
#[derive(Clone, Debug)]
pub(crate) struct KnownCard {
    pub(crate) id: Arc<str>,
    /// Place in the inventory, or `UNREGISTERED`.
    pub(crate) position: u16,
    /// How many bookings block the card.
    pub(crate) blocks: u32,
    /// How many bookings hold of the card what its mode does not allow.
    pub(crate) unclear: u32,
}

/// One node. It exists while it is registered or a booking names it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Node {
    pub(crate) registered: bool,
    /// In the order of the inventory.
    pub(crate) cards: Vec<Card>,
    pub(crate) known: Vec<KnownCard>,
    /// By position, of cards that are cut into instances; empty where the node has none.
    pub(crate) slices: Vec<Option<SliceUse>>,
    /// Names of the groups of its cards, in their order.
    groups: Vec<String>,
    pub(crate) used: Amount,
    pub(crate) total: Amount,
    pub(crate) pair_scores: PairScores,
    /// Places of the bookings on this node, in no order.
    pub(crate) bookings: Vec<u32>,
    /// What of its host is free, where that is known.
    pub(crate) host: Option<HostAmount>,
}

impl Node {
    /// The number of a card id, which is added when it is new.
    pub(crate) fn know(&mut self, id: &str) -> u32 {
        let found = self.known.iter().position(|known| *known.id == *id);
        found.unwrap_or_else(|| {
            self.known.push(KnownCard { id: id.into(), position: UNREGISTERED, blocks: 0, unclear: 0 });
            self.known.len() - 1
        }) as u32
    }

    pub(crate) fn card_mut(&mut self, id: &str) -> Option<&mut Card> {
        let known = &self.known;
        self.cards.iter_mut().find(|card| *known[card.known as usize].id == *id)
    }

    pub(crate) fn id_at(&self, position: usize) -> &Arc<str> {
        &self.known[self.cards[position].known as usize].id
    }

    /// Books (or gives back) an amount of a known card. Unregistered cards keep no sums.
    fn shift(&mut self, known: u32, amount: Amount, adds: bool) {
        let position = self.known[known as usize].position;
        if position == UNREGISTERED {
            return;
        }
        let card = &mut self.cards[usize::from(position)];
        let apply = |sum: Amount| if adds { sum.plus(amount) } else { sum.minus(amount) };
        card.used = apply(card.used);
        self.used = apply(self.used);
    }

    /// Books (or gives back) all that a booking holds.
    pub(crate) fn shift_booking(&mut self, booking: &Booking, adds: bool) {
        for held in &booking.held {
            self.shift(held.card, held.amount, adds);
            self.shift_slices(held.card, held.slices, adds);
        }
        for claim in &booking.claims {
            self.shift_slices(claim.card, claim.slices(), adds);
        }
        for card in &booking.blocked {
            self.shift_blocks(*card, adds);
        }
    }

    fn shift_blocks(&mut self, known: u32, adds: bool) {
        let card = &mut self.known[known as usize];
        card.blocks = if adds { card.blocks + 1 } else { card.blocks - 1 };
        let blocked = card.blocks > 0;
        if card.position != UNREGISTERED {
            self.cards[usize::from(card.position)].faults.blocked = blocked;
        }
    }

    /// The slices of a card that is cut into instances.
    pub(crate) fn slices_of(&self, position: usize) -> Option<&SliceUse> {
        self.slices.get(position).and_then(Option::as_ref)
    }

    /// The instance that a choice for a card stands for.
    pub(crate) fn instance_at(&self, position: usize, choice: Option<MigChoice>) -> Option<Arc<MigInstance>> {
        let slices = self.slices_of(position)?;
        choice.map(|choice| Arc::new(slices.layout.instance(choice)))
    }

    /// Books (or gives back) the memory slices that one pod holds of a known card.
    fn shift_slices(&mut self, known: u32, held: HeldSlices, adds: bool) {
        if held.is_plain() && self.slices.is_empty() {
            return;
        }
        let card = &mut self.known[known as usize];
        if card.position == UNREGISTERED {
            return;
        }
        let position = usize::from(card.position);
        let unclear = match self.slices.get_mut(position).and_then(Option::as_mut) {
            Some(slices) => {
                slices.shift(held.mask, adds);
                held.unplaced
            }
            None => held.placed,
        };
        if unclear {
            card.unclear = if adds { card.unclear + 1 } else { card.unclear - 1 };
            self.cards[position].faults.unclear_instances = card.unclear > 0;
        }
    }

    /// Whether the inventory is the one already registered.
    pub(crate) fn is_registered_as(&self, specs: &[CardSpec], kinds: &CardKinds) -> bool {
        self.registered
            && self.cards.len() == specs.len()
            && specs.iter().zip(&self.cards).enumerate().all(|(position, (spec, card))| {
                **self.id_at(position) == *spec.id
                    && kinds.get(card.kind).is_of(spec)
                    && (card.index, card.numa) == (spec.index, spec.numa)
                    && (card.faults.unhealthy, card.faults.cordoned) == (!spec.healthy, spec.cordoned)
                    && self.group_name(card) == spec.group
            })
    }

    /// Whether both nodes, empty and healthy, answer every pod alike that names no card by its id.
    pub(crate) fn is_shaped_as(&self, other: &Self) -> bool {
        let same = |(one, two): (&Card, &Card)| {
            (one.kind, one.index, one.numa, one.group) == (two.kind, two.index, two.numa, two.group)
        };
        self.cards.len() == other.cards.len()
            && self.pair_scores == other.pair_scores
            && self.cards.iter().zip(&other.cards).all(same)
    }

    fn group_of(&self, spec: &CardSpec) -> u16 {
        match &spec.group {
            None => NO_GROUP,
            Some(name) => {
                let place = self.groups.iter().position(|known| known == name);
                place.map_or(UNREADABLE, |place| place as u16)
            }
        }
    }

    /// The group that a card named.
    pub(crate) fn group_name(&self, card: &Card) -> Option<String> {
        match card.group {
            NO_GROUP => None,
            UNREADABLE => Some(String::new()),
            place => Some(self.groups[usize::from(place)].clone()),
        }
    }

    /// Takes the inventory with nothing used, and forgets all known cards outside it.
    pub(crate) fn register(&mut self, specs: &[CardSpec], kinds: &[u16], all_kinds: &CardKinds) {
        self.unregister();
        self.registered = true;
        let layout = |kind: &u16| all_kinds.get(*kind).mig.clone();
        if kinds.iter().any(|kind| layout(kind).is_some()) {
            self.slices.extend(kinds.iter().map(|kind| layout(kind).map(SliceUse::new)));
        }
        let mut groups: Vec<&str> = specs.iter().filter_map(|spec| spec.group.as_deref()).collect();
        groups.retain(|name| !name.is_empty());
        sort_groups(&mut groups);
        self.groups = groups.into_iter().map(String::from).collect();
        for (spec, kind) in specs.iter().zip(kinds) {
            let known = self.know(&spec.id);
            self.known[known as usize].position = self.cards.len() as u16;
            self.total = self.total.plus(spec.total());
            self.cards.push(Card {
                total: spec.total(),
                used: Amount::default(),
                known,
                index: spec.index,
                numa: spec.numa,
                kind: *kind,
                group: self.group_of(spec),
                faults: Faults { unhealthy: !spec.healthy, cordoned: spec.cordoned, ..Faults::default() },
            });
        }
    }

    /// Drops inventory, sums and known cards.
    pub(crate) fn unregister(&mut self) {
        self.registered = false;
        self.cards.clear();
        self.known.clear();
        self.slices.clear();
        self.groups.clear();
        self.used = Amount::default();
        self.total = Amount::default();
        self.pair_scores = PairScores::default();
    }
}

/// What the scan over all nodes reads of one.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct ScannedNode {
    pub(crate) score: f32,
    first_card: u32,
    card_count: u16,
    pub(crate) registered: bool,
    /// Some cards are cut into instances, so counting does not tell what fits.
    pub(crate) partitioned: bool,
}

/// All nodes. A node keeps its place while it exists.
///
/// What a scan reads lies apart from the rest, in arrays without gaps of their own: a scan over thousands of nodes is
/// bound by memory, not by arithmetic.
#[derive(Clone, Debug, Default)]
pub(crate) struct Nodes {
    slots: Slots<Node>,
    index: NameIndex,
    /// Names by place, shared with the decisions that speak of them.
    names: Arc<Vec<Arc<str>>>,
    scanned: Vec<ScannedNode>,
    /// By place: how often the node has changed.
    versions: Vec<u64>,
    cards: Vec<ScannedCard>,
    /// Rows of `cards` that no node uses.
    unused_cards: usize,
}

impl std::ops::Index<u32> for Nodes {
    type Output = Node;

    fn index(&self, place: u32) -> &Node {
        &self.slots[place]
    }
}

impl std::ops::IndexMut<u32> for Nodes {
    fn index_mut(&mut self, place: u32) -> &mut Node {
        &mut self.slots[place]
    }
}

impl Nodes {
    pub(crate) fn find(&self, name: &str) -> Option<u32> {
        self.index.find(name)
    }

    pub(crate) fn find_or_add(&mut self, name: &str) -> u32 {
        self.find(name).unwrap_or_else(|| {
            let place = self.slots.take();
            let names = Arc::make_mut(&mut self.names);
            names.resize(names.len().max(place as usize + 1), "".into());
            names[place as usize] = name.into();
            self.scanned.resize(names.len(), ScannedNode::default());
            self.versions.resize(names.len(), 1);
            self.index.insert(place, name);
            place
        })
    }

    /// Frees a node that is neither registered nor named by a booking.
    pub(crate) fn drop_if_unused(&mut self, place: u32) {
        let node = &self.slots[place];
        if node.registered || !node.bookings.is_empty() {
            return;
        }
        self.index.remove(place);
        self.slots[place] = Node::default();
        self.slots.give_back(place);
    }

    /// Brings what scans read of a node up to date. Call it after every change of the node.
    pub(crate) fn refresh(&mut self, place: u32) {
        let node = &self.slots[place];
        self.versions[place as usize] += 1;
        let scanned = &mut self.scanned[place as usize];
        if usize::from(scanned.card_count) != node.cards.len() {
            self.unused_cards += usize::from(scanned.card_count);
            scanned.first_card = self.cards.len() as u32;
            scanned.card_count = node.cards.len() as u16;
            let empty = ScannedCard::new(0, Amount::default(), Amount::default(), Faults::default());
            self.cards.resize(self.cards.len() + node.cards.len(), empty);
        }
        scanned.registered = node.registered;
        scanned.partitioned = !node.slices.is_empty();
        scanned.score = node_score(node.used, node.total);
        let rows = &mut self.cards[scanned.first_card as usize..][..node.cards.len()];
        for (row, card) in rows.iter_mut().zip(&node.cards) {
            *row = ScannedCard::new(card.kind, card.total, card.used, card.faults);
        }
        if self.unused_cards > self.cards.len() / 2 {
            self.close_gaps();
        }
    }

    fn close_gaps(&mut self) {
        let mut cards = Vec::with_capacity(self.cards.len() - self.unused_cards);
        for scanned in &mut self.scanned {
            let from = scanned.first_card as usize;
            scanned.first_card = cards.len() as u32;
            cards.extend_from_slice(&self.cards[from..from + usize::from(scanned.card_count)]);
        }
        self.cards = cards;
        self.unused_cards = 0;
    }

    /// Changes with everything of the node that `refresh` is called for; never 0.
    pub(crate) fn version(&self, place: u32) -> u64 {
        self.versions[place as usize]
    }

    pub(crate) fn scanned(&self) -> &[ScannedNode] {
        &self.scanned
    }

    #[inline]
    pub(crate) fn scanned_cards(&self, node: ScannedNode) -> &[ScannedCard] {
        &self.cards[node.first_card as usize..][..usize::from(node.card_count)]
    }

    /// Whether a place, which need not be in use, has this name.
    #[inline]
    pub(crate) fn is_named(&self, place: u32, name: &str) -> bool {
        self.index.name(place) == name
    }

    pub(crate) fn names(&self) -> &Arc<Vec<Arc<str>>> {
        &self.names
    }

    pub(crate) fn name(&self, place: u32) -> &str {
        &self.names[place as usize]
    }

    /// Every place, also those of nodes that are no more, with its node.
    pub(crate) fn all(&self) -> impl Iterator<Item = (u32, &Node)> {
        self.slots.iter().enumerate().map(|(place, node)| (place as u32, node))
    }
}

/// Refuses an inventory that names a card twice or holds a quantity beyond the engine's range.
pub(crate) fn validate_inventory(node: &str, specs: &[CardSpec]) -> Result<(), InvalidInput> {
    crate::ask::in_range("number of cards", specs.len() as i64, 0, i64::from(UNREGISTERED) - 1)?;
    for (position, spec) in specs.iter().enumerate() {
        spec.validate()?;
        if specs[..position].iter().any(|earlier| earlier.id == spec.id) {
            return Err(InvalidInput::CardTwice { node: node.into(), card: spec.id.clone() });
        }
    }
    Ok(())
}
