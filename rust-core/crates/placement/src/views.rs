//! What goes into the kept state besides pods to place, and what can be read of it.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::ask::{in_range, ContainerKind, InvalidInput, MAX_CORES_PERCENT, MAX_MEMORY_MIB};
use crate::booking::BookingState;
use crate::card::{Amount, CardSpec};
use crate::mig::MigInstance;

/// One card's share of a bound pod, as its annotation tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BoundShare {
    /// The card's id.
    pub card_id: String,
    /// The vendor word.
    pub vendor: Arc<str>,
    /// Memory in MiB.
    pub memory_mib: i64,
    /// Cores in percent of one card.
    pub cores_percent: i64,
    /// Where it lies on a card that is cut into instances.
    pub instance: Option<Arc<MigInstance>>,
}

impl BoundShare {
    /// # Errors
    /// When a quantity is negative or beyond what sums can hold.
    pub fn new(
        card_id: &str,
        vendor: &str,
        memory_mib: i64,
        cores_percent: i64,
    ) -> Result<Self, InvalidInput> {
        Ok(Self {
            card_id: card_id.into(),
            vendor: vendor.into(),
            memory_mib: in_range("memory_mib", memory_mib, 0, MAX_MEMORY_MIB)?,
            cores_percent: in_range("cores_percent", cores_percent, 0, MAX_CORES_PERCENT)?,
            instance: None,
        })
    }

    /// Says where the share lies on a card that is cut into instances.
    #[must_use]
    pub fn on_instance(mut self, instance: MigInstance) -> Self {
        self.instance = Some(Arc::new(instance));
        self
    }
}

/// An instance that a bound pod claims beyond its shares.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BoundClaim {
    /// The card's id.
    pub card_id: String,
    /// None: the pod holds an instance of the card, and nobody knows which.
    pub instance: Option<Arc<MigInstance>>,
}

/// A bound pod to charge.
#[derive(Clone, Copy, Debug)]
pub struct BoundPod<'a> {
    /// The pod's UID.
    pub uid: &'a str,
    /// The pod's namespace.
    pub namespace: &'a str,
    /// The node it is bound to.
    pub node: &'a str,
    /// Containers in their order.
    pub containers: &'a [(ContainerKind, Vec<BoundShare>)],
    /// Whether all one-shot init containers have ended.
    pub init_done: bool,
    /// Cards that take no new pods while this pod stands.
    pub blocked_cards: &'a [String],
    /// Instances it claims beyond its shares. They are held and cost nothing.
    pub claims: &'a [BoundClaim],
}

/// One booking as others see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BookingView<'a> {
    /// The pod's UID.
    pub uid: &'a str,
    /// The pod's namespace.
    pub namespace: &'a str,
    /// The node.
    pub node: &'a str,
    /// How firm it is.
    pub state: BookingState,
}

/// One card as others see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CardView {
    /// As registered; `healthy` is the present state.
    pub spec: CardSpec,
    /// A pod with a malformed or contradictory allocation blocks the card.
    pub blocked: bool,
    /// What is booked on it.
    pub used: Amount,
    /// Instances that bookings hold of it, in the order of their places.
    pub instances: Vec<MigInstance>,
}
