//! Bookings: what each pod holds.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::ask::ContainerKind;
use crate::card::Amount;
use crate::mig::MigInstance;
use crate::mig_use::HeldSlices;
use crate::names::{PlaceByKey, Slots};
use crate::quota::Charge;
use crate::usage::PodUse;

/// How firm a booking is.
///
/// ```text
///   reserve ──▶ Reserved ──confirm──▶ Bound ──release──▶ (gone)
///                  └──────release──────────────────────▶ (gone)
///   charge ─────────────────────────▶ Bound
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BookingState {
    /// Decided here; nothing in the ledger yet.
    #[default]
    Reserved,
    /// Written in the ledger.
    Bound,
}

/// One card's share given to one container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Share {
    /// Number of the container.
    pub(crate) container: u16,
    pub(crate) kind: ContainerKind,
    /// Number of the card among the cards its node knows.
    pub(crate) card: u32,
    pub(crate) vendor: Arc<str>,
    pub(crate) memory_mib: i64,
    pub(crate) cores_percent: i64,
    /// Of a card that is cut into instances.
    pub(crate) instance: Option<Arc<MigInstance>>,
}

/// An instance that a pod claims beyond its shares; None: one that cannot be found on the card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    pub(crate) card: u32,
    pub(crate) instance: Option<Arc<MigInstance>>,
}

impl Claim {
    pub(crate) fn slices(&self) -> HeldSlices {
        let mut slices = HeldSlices::default();
        slices.add(self.instance.as_ref());
        slices
    }
}

/// What a pod holds of one card over its life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) card: u32,
    pub(crate) vendor: Arc<str>,
    pub(crate) amount: Amount,
    pub(crate) slices: HeldSlices,
}

/// One pod's booking.
#[derive(Clone, Debug, Default)]
pub(crate) struct Booking {
    pub(crate) uid: String,
    pub(crate) namespace: String,
    pub(crate) node: u32,
    pub(crate) state: BookingState,
    pub(crate) init_done: bool,
    /// Containers in their order.
    pub(crate) shares: Vec<Share>,
    pub(crate) claims: Vec<Claim>,
    /// Cards that take no new pods while this booking stands.
    pub(crate) blocked: Vec<u32>,
    /// Follows from `shares` and `init_done`.
    pub(crate) held: Vec<Held>,
    pub(crate) charges: Vec<Charge>,
}

impl Booking {
    pub(crate) fn reset(&mut self, uid: &str, namespace: &str, node: u32, state: BookingState) {
        self.uid.clear();
        self.uid.push_str(uid);
        self.namespace.clear();
        self.namespace.push_str(namespace);
        self.node = node;
        self.state = state;
        self.init_done = false;
        self.shares.clear();
        self.claims.clear();
        self.blocked.clear();
        self.held.clear();
        self.charges.clear();
    }

    /// Computes what the pod holds from its shares.
    pub(crate) fn sum_up(&mut self) {
        self.held.clear();
        for (index, share) in self.shares.iter().enumerate() {
            let same = |other: &Share| other.card == share.card && other.vendor == share.vendor;
            if self.shares[..index].iter().any(same) {
                continue;
            }
            let used = self.shares[index..].iter().filter(|other| same(other)).fold(
                PodUse::default(),
                |sum, other| {
                    let share = Amount::new(other.memory_mib, other.cores_percent, 1);
                    sum.with(other.container, other.kind, share)
                },
            );
            let amount = used.effective(self.init_done);
            if amount.slots > 0 {
                let mut slices = HeldSlices::default();
                for share in self.shares[index..].iter().filter(|other| same(other) && self.is_live(other)) {
                    slices.add(share.instance.as_ref());
                }
                self.held.push(Held { card: share.card, vendor: share.vendor.clone(), amount, slices });
            }
        }
    }

    /// Whether a share is held, now or later.
    pub(crate) fn is_live(&self, share: &Share) -> bool {
        !(self.init_done && share.kind == ContainerKind::Init)
    }
}

/// All bookings, found by pod UID.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bookings {
    pub(crate) slots: Slots<Booking>,
    places: PlaceByKey,
}

impl Bookings {
    pub(crate) fn find(&self, uid: &str) -> Option<u32> {
        self.places.find(uid, |place| self.slots[place].uid.as_str())
    }

    /// Makes a booking whose fields are set findable.
    pub(crate) fn publish(&mut self, place: u32) {
        self.places.insert(place, |place| self.slots[place].uid.as_str());
    }

    pub(crate) fn remove(&mut self, place: u32) {
        self.places.remove(place, |place| self.slots[place].uid.as_str());
        self.slots.give_back(place);
    }

    pub(crate) fn count(&self) -> usize {
        self.places.len()
    }
}
