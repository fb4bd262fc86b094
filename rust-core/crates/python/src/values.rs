//! What goes into the engine.

use placement::{BoundShare, CardSpec, ContainerKind, HostAmount, PlacedShare, Weights};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::enter::invalid;
use crate::mig::{read_instance, write_place, MigProfile, Place};

fn read_kind(word: &str) -> PyResult<ContainerKind> {
    match word {
        "init" => Ok(ContainerKind::Init),
        "sidecar" => Ok(ContainerKind::Sidecar),
        "app" => Ok(ContainerKind::App),
        _ => Err(PyValueError::new_err(format!("kind is {word:?}; it must be 'init', 'sidecar' or 'app'"))),
    }
}

fn write_kind(kind: ContainerKind) -> &'static str {
    match kind {
        ContainerKind::Init => "init",
        ContainerKind::Sidecar => "sidecar",
        ContainerKind::App => "app",
    }
}

/// One card as its node registered it.
#[pyclass(frozen, module = "hami_engine")]
pub(crate) struct Card(pub(crate) CardSpec);

#[pymethods]
impl Card {
    #[new]
    #[pyo3(signature = (*, id, vendor, model, index, slots, memory_mib, cores_percent, numa=0, mode="", healthy=true, cordoned=false, mig_profiles=Vec::new(), group=None))]
    #[allow(clippy::too_many_arguments, reason = "keywords of a value")]
    fn new(
        id: String,
        vendor: String,
        model: String,
        index: u32,
        slots: i32,
        memory_mib: i64,
        cores_percent: i32,
        numa: i32,
        mode: &str,
        healthy: bool,
        cordoned: bool,
        mig_profiles: Vec<PyRef<'_, MigProfile>>,
        group: Option<String>,
    ) -> PyResult<Self> {
        let mode = mode.into();
        let spec = CardSpec {
            id,
            vendor,
            model,
            index,
            slots,
            memory_mib,
            cores_percent,
            numa,
            mode,
            healthy,
            cordoned,
            mig_profiles: mig_profiles.iter().map(|profile| profile.0.clone()).collect(),
            group,
        };
        spec.validate().map_err(invalid)?;
        Ok(Self(spec))
    }
}

/// What one container asks of one vendor, per card.
#[pyclass(frozen, module = "hami_engine")]
pub(crate) struct Ask(pub(crate) placement::Ask);

#[pymethods]
impl Ask {
    #[new]
    #[pyo3(signature = (*, vendor, count, memory_mib=0, memory_percent=None, cores_percent=0, mode=""))]
    fn new(
        vendor: &str,
        count: i64,
        memory_mib: i64,
        memory_percent: Option<i64>,
        cores_percent: i64,
        mode: &str,
    ) -> PyResult<Self> {
        placement::Ask::new(vendor, count, memory_mib, memory_percent, cores_percent)
            .map(|ask| Self(ask.with_mode(mode)))
            .map_err(invalid)
    }
}

/// One container with its asks.
#[pyclass(frozen, module = "hami_engine")]
pub(crate) struct ContainerAsk(placement::ContainerAsk);

#[pymethods]
impl ContainerAsk {
    #[new]
    #[pyo3(signature = (*, name, kind, asks=Vec::new()))]
    fn new(name: &str, kind: &str, asks: Vec<PyRef<'_, Ask>>) -> PyResult<Self> {
        let asks = asks.into_iter().map(|ask| ask.0.clone()).collect();
        placement::ContainerAsk::new(name, read_kind(kind)?, asks).map(Self).map_err(invalid)
    }
}

/// Which cards of a vendor a pod accepts.
#[pyclass(frozen, module = "hami_engine")]
pub(crate) struct CardConstraint(pub(crate) placement::CardConstraint);

#[pymethods]
impl CardConstraint {
    #[new]
    #[pyo3(signature = (*, use_models=None, avoid_models=None, use_ids=None, avoid_ids=None, modes=None))]
    fn new(
        use_models: Option<Vec<String>>,
        avoid_models: Option<Vec<String>>,
        use_ids: Option<Vec<String>>,
        avoid_ids: Option<Vec<String>>,
        modes: Option<String>,
    ) -> Self {
        Self(placement::CardConstraint::new(use_models, avoid_models, use_ids, avoid_ids, modes))
    }
}

/// A pod to place.
#[pyclass(frozen, module = "hami_engine")]
pub(crate) struct PodAsk(pub(crate) placement::PodAsk);

#[pymethods]
impl PodAsk {
    #[new]
    #[pyo3(signature = (*, uid, namespace, name, containers, node_policy="binpack", card_policy="spread", numa_bind=false, constraints=None, weights=(1, 1, 1), host=(0, 0)))]
    #[allow(clippy::too_many_arguments, reason = "keywords of a value")]
    fn new(
        uid: &str,
        namespace: &str,
        name: &str,
        containers: Vec<PyRef<'_, ContainerAsk>>,
        node_policy: &str,
        card_policy: &str,
        numa_bind: bool,
        constraints: Option<Bound<'_, PyDict>>,
        weights: (i64, i64, i64),
        host: (i64, i64),
    ) -> PyResult<Self> {
        let containers = containers.into_iter().map(|container| container.0.clone()).collect();
        let mut pod = placement::PodAsk::new(uid, namespace, name, containers)
            .map_err(invalid)?
            .with_policies(node_policy, card_policy, numa_bind)
            .with_weights(Weights::new(weights.0, weights.1, weights.2).map_err(invalid)?)
            .with_host(HostAmount::new(host.0, host.1).map_err(invalid)?);
        for (vendor, constraint) in constraints.into_iter().flatten() {
            let constraint: PyRef<'_, CardConstraint> = constraint.extract()?;
            pod = pod.with_constraint(&vendor.extract::<String>()?, constraint.0.clone());
        }
        Ok(Self(pod))
    }
}

/// One card's share given to one container.
#[pyclass(frozen, eq, module = "hami_engine")]
#[derive(Clone, PartialEq)]
pub(crate) struct Slice {
    #[pyo3(get)]
    pub(crate) card_id: String,
    #[pyo3(get)]
    pub(crate) vendor: String,
    #[pyo3(get)]
    pub(crate) memory_mib: i64,
    #[pyo3(get)]
    pub(crate) cores_percent: i64,
    /// Of a card in MIG mode; empty elsewhere.
    #[pyo3(get)]
    pub(crate) profile: String,
    /// Start and size of the instance; None elsewhere.
    #[pyo3(get)]
    pub(crate) placement: Option<Place>,
}

#[pymethods]
impl Slice {
    #[new]
    #[pyo3(signature = (*, card_id, vendor, memory_mib, cores_percent, profile="", placement=None))]
    fn new(
        card_id: String,
        vendor: String,
        memory_mib: i64,
        cores_percent: i64,
        profile: &str,
        placement: Option<Place>,
    ) -> PyResult<Self> {
        let slice = Self { card_id, vendor, memory_mib, cores_percent, profile: profile.into(), placement };
        slice.share()?;
        Ok(slice)
    }

    fn __repr__(&self) -> String {
        let Self { card_id, vendor, memory_mib, cores_percent, profile, placement } = self;
        let instance = match placement {
            Some(placement) => format!(", profile={profile:?}, placement={placement:?}"),
            None => String::new(),
        };
        format!("Slice(card_id={card_id:?}, vendor={vendor:?}, memory_mib={memory_mib}, cores_percent={cores_percent}{instance})")
    }
}

impl Slice {
    fn share(&self) -> PyResult<BoundShare> {
        let share = BoundShare::new(&self.card_id, &self.vendor, self.memory_mib, self.cores_percent);
        let share = share.map_err(invalid)?;
        Ok(match read_instance(&self.profile, self.placement)? {
            Some(instance) => share.on_instance(instance),
            None => share,
        })
    }
}

impl From<&PlacedShare> for Slice {
    fn from(share: &PlacedShare) -> Self {
        let instance = share.instance.as_ref();
        Self {
            card_id: share.card_id.to_string(),
            vendor: share.vendor.to_string(),
            memory_mib: share.memory_mib,
            cores_percent: share.cores_percent,
            profile: instance.map_or_else(String::new, |instance| instance.profile.clone()),
            placement: instance.map(|instance| write_place(instance.placement)),
        }
    }
}

/// The slices of one container.
#[pyclass(frozen, module = "hami_engine")]
pub(crate) struct ContainerSlices {
    kind: ContainerKind,
    slices: Vec<Slice>,
}

#[pymethods]
impl ContainerSlices {
    #[new]
    #[pyo3(signature = (*, kind, slices=Vec::new()))]
    fn new(kind: &str, slices: Vec<PyRef<'_, Slice>>) -> PyResult<Self> {
        let slices = slices.into_iter().map(|slice| slice.clone()).collect();
        Ok(Self { kind: read_kind(kind)?, slices })
    }

    #[getter]
    fn kind(&self) -> &'static str {
        write_kind(self.kind)
    }

    #[getter]
    fn slices(&self) -> Vec<Slice> {
        self.slices.clone()
    }
}

impl ContainerSlices {
    pub(crate) fn shares(&self) -> PyResult<(ContainerKind, Vec<BoundShare>)> {
        Ok((self.kind, self.slices.iter().map(Slice::share).collect::<PyResult<_>>()?))
    }
}
