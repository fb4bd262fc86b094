//! Nodes with their cards and kept sums.

use std::sync::Arc;

use crate::ask::InvalidInput;
use crate::card::{flag, Amount, Card, CardKinds, CardSpec};
use crate::names::{PlaceByKey, Slots};
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
}

/// What decisions seldom read of a registered card.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CardFace {
    pub(crate) known: u32,
    pub(crate) index: u32,
}

/// One node. It exists while it is registered or a booking names it.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) name: Arc<str>,
    pub(crate) registered: bool,
    /// In the order of the inventory.
    pub(crate) cards: Vec<Card>,
    pub(crate) faces: Vec<CardFace>,
    pub(crate) known: Vec<KnownCard>,
    pub(crate) used: Amount,
    pub(crate) total: Amount,
    pub(crate) score: f32,
    /// Places of the bookings on this node, in no order.
    pub(crate) bookings: Vec<u32>,
}

impl Default for Node {
    fn default() -> Self {
        Self {
            name: "".into(),
            registered: false,
            cards: Vec::new(),
            faces: Vec::new(),
            known: Vec::new(),
            used: Amount::default(),
            total: Amount::default(),
            score: 0.0,
            bookings: Vec::new(),
        }
    }
}

impl Node {
    /// The number of a card id, which is added when it is new.
    pub(crate) fn know(&mut self, id: &str) -> u32 {
        let found = self.known.iter().position(|known| *known.id == *id);
        found.unwrap_or_else(|| {
            self.known.push(KnownCard { id: id.into(), position: UNREGISTERED, blocks: 0 });
            self.known.len() - 1
        }) as u32
    }

    pub(crate) fn position(&self, id: &str) -> Option<usize> {
        self.faces.iter().position(|face| *self.known[face.known as usize].id == *id)
    }

    pub(crate) fn id_at(&self, position: usize) -> &Arc<str> {
        &self.known[self.faces[position].known as usize].id
    }

    /// Books (or gives back) an amount of a known card. Unregistered cards keep no sums.
    pub(crate) fn shift(&mut self, known: u32, amount: Amount, adds: bool) {
        let position = self.known[known as usize].position;
        if position == UNREGISTERED {
            return;
        }
        let card = &mut self.cards[usize::from(position)];
        let apply = |sum: Amount| if adds { sum.plus(amount) } else { sum.minus(amount) };
        card.set_used(apply(card.used()));
        self.used = apply(self.used);
    }

    pub(crate) fn rescore(&mut self) {
        self.score = node_score(self.used, self.total);
    }

    pub(crate) fn shift_blocks(&mut self, known: u32, adds: bool) {
        let card = &mut self.known[known as usize];
        card.blocks = if adds { card.blocks + 1 } else { card.blocks - 1 };
        let blocked = card.blocks > 0;
        if card.position != UNREGISTERED {
            self.cards[usize::from(card.position)].set_flag(flag::BLOCKED, blocked);
        }
    }

    /// Whether the inventory is the one already registered.
    pub(crate) fn is_registered_as(&self, specs: &[CardSpec], kinds: &CardKinds) -> bool {
        self.registered
            && self.cards.len() == specs.len()
            && specs.iter().enumerate().all(|(position, spec)| {
                let card = &self.cards[position];
                let kind = kinds.get(card.kind);
                **self.id_at(position) == *spec.id
                    && *kind.vendor == *spec.vendor
                    && *kind.model == *spec.model
                    && kind.mode == spec.mode
                    && self.faces[position].index == spec.index
                    && card.memory_mib == spec.memory_mib
                    && card.cores_percent == spec.cores_percent
                    && card.slots == spec.slots
                    && card.numa == spec.numa
                    && card.flags & (flag::UNHEALTHY | flag::CORDONED) == spec_flags(spec)
            })
    }

    /// Takes the inventory with nothing used, and forgets all known cards outside it.
    pub(crate) fn register(&mut self, specs: &[CardSpec], kinds: &[u16]) {
        self.unregister();
        self.registered = true;
        for (spec, kind) in specs.iter().zip(kinds) {
            let known = self.know(&spec.id);
            self.known[known as usize].position = self.cards.len() as u16;
            self.faces.push(CardFace { known, index: spec.index });
            let card = Card {
                memory_mib: spec.memory_mib,
                used_memory_mib: 0,
                used_cores_percent: 0,
                cores_percent: spec.cores_percent,
                slots: spec.slots,
                used_slots: 0,
                numa: spec.numa,
                kind: *kind,
                flags: spec_flags(spec),
            };
            self.total = self.total.plus(card.total());
            self.cards.push(card);
        }
    }

    /// Drops inventory, sums and known cards.
    pub(crate) fn unregister(&mut self) {
        self.registered = false;
        self.cards.clear();
        self.faces.clear();
        self.known.clear();
        self.used = Amount::default();
        self.total = Amount::default();
        self.score = 0.0;
    }
}

fn spec_flags(spec: &CardSpec) -> u8 {
    (if spec.healthy { 0 } else { flag::UNHEALTHY }) | (if spec.cordoned { flag::CORDONED } else { 0 })
}

/// All nodes. A node keeps its place while it exists.
#[derive(Clone, Debug, Default)]
pub(crate) struct Nodes {
    pub(crate) slots: Slots<Node>,
    places: PlaceByKey,
    /// Names by place, shared with the decisions that speak of them.
    names: Arc<Vec<Arc<str>>>,
}

impl Nodes {
    pub(crate) fn find(&self, name: &str) -> Option<u32> {
        self.places.find(name, |place| &self.slots[place].name)
    }

    pub(crate) fn find_or_add(&mut self, name: &str) -> u32 {
        self.find(name).unwrap_or_else(|| {
            let place = self.slots.take();
            let shared: Arc<str> = name.into();
            self.slots[place].name = shared.clone();
            self.places.insert(place, |place| &*self.slots[place].name);
            let names = Arc::make_mut(&mut self.names);
            names.resize(names.len().max(place as usize + 1), shared.clone());
            names[place as usize] = shared;
            place
        })
    }

    /// Frees a node that is neither registered nor named by a booking.
    pub(crate) fn drop_if_unused(&mut self, place: u32) {
        let node = &self.slots[place];
        if node.registered || !node.bookings.is_empty() {
            return;
        }
        self.places.remove(place, |place| &*self.slots[place].name);
        self.slots[place] = Node::default();
        self.slots.give_back(place);
    }

    pub(crate) fn names(&self) -> &Arc<Vec<Arc<str>>> {
        &self.names
    }
}

/// Refuses an inventory that names a card twice or holds a quantity beyond the engine's range.
pub(crate) fn validate_inventory(node: &str, specs: &[CardSpec]) -> Result<(), InvalidInput> {
    for (position, spec) in specs.iter().enumerate() {
        spec.validate()?;
        if specs[..position].iter().any(|earlier| earlier.id == spec.id) {
            return Err(InvalidInput::CardTwice { node: node.into(), card: spec.id.clone() });
        }
    }
    Ok(())
}
