//! What a pod asks for.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::host::HostAmount;
use crate::policy::{CardPolicy, NodePolicy};

/// Largest accepted amount of memory, in MiB. Sums of amounts below it cannot overflow.
pub const MAX_MEMORY_MIB: i64 = 1 << 40;
/// Largest accepted amount of cores, in percent of one card.
pub const MAX_CORES_PERCENT: i64 = 1 << 31;

/// Why a value cannot enter the engine.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum InvalidInput {
    /// A quantity lies outside its range.
    #[error("{what} is {value}; it must be between {least} and {most}")]
    OutOfRange {
        /// Which quantity.
        what: &'static str,
        /// What was given.
        value: i64,
        /// The smallest accepted value.
        least: i64,
        /// The largest accepted value.
        most: i64,
    },
    /// A container asks the same vendor twice.
    #[error("container {container} asks vendor {vendor} twice; give one ask per vendor")]
    VendorAskedTwice {
        /// The container's name.
        container: String,
        /// The vendor word.
        vendor: String,
    },
    /// An init container stands behind an app container.
    #[error("container {container} runs before the app containers; put it before them")]
    InitAfterApp {
        /// The container's name.
        container: String,
    },
    /// The scoring weights are negative or all zero.
    #[error("weights are {0}, {1}, {2}; none may be negative and one must be above 0")]
    Weights(i64, i64, i64),
    /// Two families have the same word.
    #[error("family {word} is given twice; every family needs its own word")]
    FamilyTwice {
        /// The word.
        word: String,
    },
    /// A family names a strategy that there is not.
    #[error("family {word}: no selection is called {selection}; there are: {known}")]
    UnknownSelection {
        /// The family's word.
        word: String,
        /// The name given.
        selection: String,
        /// The names there are.
        known: String,
    },
    /// A node's inventory names a card twice.
    #[error("node {node} lists card {card} twice; every card of a node needs its own id")]
    CardTwice {
        /// The node's name.
        node: String,
        /// The card's id.
        card: String,
    },
}

/// Accepts `value` when it lies between `least` and `most`.
///
/// # Errors
/// [`InvalidInput::OutOfRange`] otherwise.
pub fn in_range(what: &'static str, value: i64, least: i64, most: i64) -> Result<i64, InvalidInput> {
    if (least..=most).contains(&value) {
        Ok(value)
    } else {
        Err(InvalidInput::OutOfRange { what, value, least, most })
    }
}

/// When a container runs relative to the others of its pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ContainerKind {
    /// A one-shot init container: ends before the next one starts.
    Init,
    /// An init container that keeps running.
    Sidecar,
    /// A container of the pod proper.
    App,
}

/// What one container asks of one vendor; memory and cores are per card.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ask {
    vendor: Arc<str>,
    pub(crate) count: u32,
    pub(crate) memory_mib: i64,
    pub(crate) memory_percent: Option<i64>,
    pub(crate) cores_percent: i64,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) mode: String,
}

impl Ask {
    /// `memory_mib` 0: not given; `memory_percent` None: not given. Absolute memory wins over the percentage.
    ///
    /// # Errors
    /// When a quantity is outside its range.
    pub fn new(
        vendor: &str,
        count: i64,
        memory_mib: i64,
        memory_percent: Option<i64>,
        cores_percent: i64,
    ) -> Result<Self, InvalidInput> {
        let count = in_range("count", count, 0, i64::from(i32::MAX))? as u32;
        let ask = Self {
            vendor: vendor.into(),
            count,
            memory_mib,
            memory_percent,
            cores_percent,
            mode: String::new(),
        };
        ask.validate()?;
        Ok(ask)
    }

    fn validate(&self) -> Result<(), InvalidInput> {
        in_range("count", i64::from(self.count), 0, i64::from(i32::MAX))?;
        in_range("memory_mib", self.memory_mib, 0, MAX_MEMORY_MIB)?;
        in_range("memory_percent", self.memory_percent.unwrap_or(0), 0, 100)?;
        in_range("cores_percent", self.cores_percent, 0, MAX_CORES_PERCENT).map(|_| ())
    }

    /// Only cards in this mode serve, and a node that has none says so once. Empty: any mode.
    #[must_use]
    pub fn with_mode(mut self, mode: &str) -> Self {
        self.mode = mode.into();
        self
    }

    /// The vendor word.
    pub fn vendor(&self) -> &Arc<str> {
        &self.vendor
    }
}

/// One container of a pod with its asks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ContainerAsk {
    pub(crate) name: String,
    pub(crate) kind: ContainerKind,
    pub(crate) asks: Vec<Ask>,
}

impl ContainerAsk {
    /// Asks of count 0 are dropped.
    ///
    /// # Errors
    /// When a vendor is asked twice.
    pub fn new(name: &str, kind: ContainerKind, asks: Vec<Ask>) -> Result<Self, InvalidInput> {
        let mut container = Self { name: name.into(), kind, asks };
        container.settle()?;
        Ok(container)
    }

    fn settle(&mut self) -> Result<(), InvalidInput> {
        for (index, ask) in self.asks.iter().enumerate() {
            ask.validate()?;
            if self.asks[..index].iter().any(|earlier| earlier.vendor == ask.vendor) {
                return Err(InvalidInput::VendorAskedTwice {
                    container: self.name.clone(),
                    vendor: ask.vendor.to_string(),
                });
            }
        }
        self.asks.retain(|ask| ask.count > 0);
        Ok(())
    }
}

/// Which cards of one vendor a pod accepts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CardConstraint {
    use_models: Option<Vec<String>>,
    avoid_models: Option<Vec<String>>,
    pub(crate) use_ids: Option<Vec<String>>,
    pub(crate) avoid_ids: Option<Vec<String>>,
    modes: Option<String>,
}

impl CardConstraint {
    /// None: no constraint. An empty list of wanted models or ids is a constraint that no card meets.
    pub fn new(
        use_models: Option<Vec<String>>,
        avoid_models: Option<Vec<String>>,
        use_ids: Option<Vec<String>>,
        avoid_ids: Option<Vec<String>>,
        modes: Option<String>,
    ) -> Self {
        let mut constraint = Self { use_models, avoid_models, use_ids, avoid_ids, modes };
        constraint.settle();
        constraint
    }

    fn settle(&mut self) {
        for model in self.use_models.iter_mut().chain(&mut self.avoid_models).flatten() {
            *model = model.to_lowercase();
        }
    }

    /// Whether the rules on models and modes admit a card; `model` in lower case.
    pub(crate) fn admits_model(&self, model: &str, mode: &str) -> bool {
        let named = |models: &Vec<String>| models.iter().any(|word| model.contains(word.as_str()));
        self.use_models.as_ref().is_none_or(named)
            && !self.avoid_models.as_ref().is_some_and(named)
            && self.modes.as_ref().is_none_or(|modes| modes.contains(mode))
    }

    /// Whether the rules on ids admit a card.
    pub(crate) fn admits_id(&self, id: &str) -> bool {
        let named = |ids: &Vec<String>| ids.iter().any(|word| word == id);
        self.use_ids.as_ref().is_none_or(named) && !self.avoid_ids.as_ref().is_some_and(named)
    }

    pub(crate) fn names_ids(&self) -> bool {
        self.use_ids.is_some() || self.avoid_ids.is_some()
    }

    /// Whether a card in `mode` may serve as far as the rule on modes goes.
    pub(crate) fn admits_mode(&self, mode: &str) -> bool {
        self.modes.as_ref().is_none_or(|modes| modes.contains(mode))
    }
}

/// Weights of slots, cores and memory in the score of a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Weights {
    pub(crate) slots: i64,
    pub(crate) cores: i64,
    pub(crate) memory: i64,
}

impl Weights {
    /// # Errors
    /// When one is negative or all are 0.
    pub fn new(slots: i64, cores: i64, memory: i64) -> Result<Self, InvalidInput> {
        if slots < 0 || cores < 0 || memory < 0 || (slots, cores, memory) == (0, 0, 0) {
            return Err(InvalidInput::Weights(slots, cores, memory));
        }
        Ok(Self { slots, cores, memory })
    }
}

impl Default for Weights {
    fn default() -> Self {
        Self { slots: 1, cores: 1, memory: 1 }
    }
}

/// A pod to place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PodAsk {
    pub(crate) uid: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) containers: Vec<ContainerAsk>,
    pub(crate) constraints: Vec<(String, CardConstraint)>,
    pub(crate) node_policy: NodePolicy,
    pub(crate) card_policy: CardPolicy,
    pub(crate) numa_bind: bool,
    pub(crate) weights: Weights,
    /// What it takes of its node beside cards.
    #[serde(default, skip_serializing_if = "HostAmount::is_nothing")]
    pub(crate) host: HostAmount,
}

impl PodAsk {
    /// A pod with the default policies: fullest node, emptiest cards.
    ///
    /// # Errors
    /// When an init container stands behind an app container.
    pub fn new(
        uid: &str,
        namespace: &str,
        name: &str,
        containers: Vec<ContainerAsk>,
    ) -> Result<Self, InvalidInput> {
        let pod = Self {
            uid: uid.into(),
            namespace: namespace.into(),
            name: name.into(),
            containers,
            constraints: Vec::new(),
            node_policy: NodePolicy::parse("binpack"),
            card_policy: CardPolicy::parse("spread", false),
            numa_bind: false,
            weights: Weights::default(),
            host: HostAmount::default(),
        };
        pod.validate_order()?;
        Ok(pod)
    }

    fn validate_order(&self) -> Result<(), InvalidInput> {
        let containers = &self.containers;
        let apps_from = containers.iter().position(|container| container.kind == ContainerKind::App);
        let late = apps_from.and_then(|first| {
            containers[first..].iter().find(|container| container.kind != ContainerKind::App)
        });
        match late {
            Some(late) => Err(InvalidInput::InitAfterApp { container: late.name.clone() }),
            None => Ok(()),
        }
    }

    /// Brings a pod that was read field by field into the form that the constructors give.
    ///
    /// # Errors
    /// As those.
    pub(crate) fn settle(&mut self) -> Result<(), InvalidInput> {
        for container in &mut self.containers {
            container.settle()?;
        }
        self.validate_order()?;
        for (_, constraint) in &mut self.constraints {
            constraint.settle();
        }
        self.card_policy = CardPolicy::parse(self.card_policy.text(), self.numa_bind);
        self.weights = Weights::new(self.weights.slots, self.weights.cores, self.weights.memory)?;
        self.host = HostAmount::new(self.host.cpu_milli, self.host.memory_mib)?;
        Ok(())
    }

    /// Sets the policies by their words; unknown words mean binpack for nodes and spread for cards.
    #[must_use]
    pub fn with_policies(mut self, node_policy: &str, card_policy: &str, numa_bind: bool) -> Self {
        self.node_policy = NodePolicy::parse(node_policy);
        self.card_policy = CardPolicy::parse(card_policy, numa_bind);
        self.numa_bind = numa_bind;
        self
    }

    /// Adds the rules on the cards of one vendor.
    #[must_use]
    pub fn with_constraint(mut self, vendor: &str, constraint: CardConstraint) -> Self {
        self.constraints.retain(|(known, _)| known != vendor);
        self.constraints.push((vendor.into(), constraint));
        self
    }

    /// Sets the weights of the score of cards.
    #[must_use]
    pub fn with_weights(mut self, weights: Weights) -> Self {
        self.weights = weights;
        self
    }

    /// Says what the pod takes of its node beside cards.
    #[must_use]
    pub fn with_host(mut self, host: HostAmount) -> Self {
        self.host = host;
        self
    }

    /// Whether a policy of the pod looks at fragmentation.
    pub(crate) fn looks_at_fragmentation(&self) -> bool {
        self.node_policy == NodePolicy::Fgd || self.card_policy.fgd
    }

    /// Whether another pod asks for the same: the engine then chooses the same for both.
    pub(crate) fn asks_as(&self, other: &Self) -> bool {
        let Self {
            uid: _,
            namespace: _,
            name: _,
            containers,
            constraints,
            node_policy,
            card_policy,
            numa_bind,
            weights,
            host,
        } = self;
        let asks = |containers: &[ContainerAsk], others: &[ContainerAsk]| {
            containers.len() == others.len()
                && containers
                    .iter()
                    .zip(others)
                    .all(|(one, other)| (one.kind, &one.asks) == (other.kind, &other.asks))
        };
        asks(containers, &other.containers)
            && (constraints, node_policy, card_policy)
                == (&other.constraints, &other.node_policy, &other.card_policy)
            && (numa_bind, weights, host) == (&other.numa_bind, &other.weights, &other.host)
    }

    /// The pod's UID.
    pub fn uid(&self) -> &str {
        &self.uid
    }

    /// The pod's namespace.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The pod's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How many containers the pod has.
    pub fn container_count(&self) -> usize {
        self.containers.len()
    }
}
