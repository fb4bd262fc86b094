//! Cards that are cut into instances.

use std::sync::Arc;

use placement::{BoundClaim, MigInstance, MigPlacement};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::enter::invalid;

/// Start and size, in memory slices.
pub(crate) type Place = (i64, i64);

/// A kind of instance that a card in MIG mode offers.
#[pyclass(frozen, module = "hami_engine")]
#[derive(Clone)]
pub(crate) struct MigProfile(pub(crate) placement::MigProfile);

#[pymethods]
impl MigProfile {
    /// `placements`: start and size of each place an instance may have, within 64 memory slices.
    #[new]
    #[pyo3(signature = (*, name, memory_mib, cores_percent, slice_count, placements))]
    fn new(
        name: &str,
        memory_mib: i64,
        cores_percent: i64,
        slice_count: i64,
        placements: Vec<Place>,
    ) -> PyResult<Self> {
        let placements = placements.into_iter().map(|(start, size)| MigPlacement::new(start, size));
        let placements = placements.collect::<Result<_, _>>().map_err(invalid)?;
        placement::MigProfile::new(name, memory_mib, cores_percent, slice_count, placements)
            .map(Self)
            .map_err(invalid)
    }

    #[getter]
    fn name(&self) -> &str {
        self.0.name()
    }

    #[getter]
    fn memory_mib(&self) -> i64 {
        self.0.memory_mib()
    }

    #[getter]
    fn cores_percent(&self) -> i64 {
        self.0.cores_percent()
    }

    #[getter]
    fn slice_count(&self) -> i64 {
        self.0.slice_count()
    }

    #[getter]
    fn placements(&self) -> Vec<Place> {
        self.0.placements().iter().map(|placement| write_place(*placement)).collect()
    }
}

pub(crate) fn write_place(placement: MigPlacement) -> Place {
    (i64::from(placement.start()), i64::from(placement.size()))
}

/// The instance that a profile and a place name together; None when neither is given.
pub(crate) fn read_instance(profile: &str, place: Option<Place>) -> PyResult<Option<MigInstance>> {
    match place {
        None if profile.is_empty() => Ok(None),
        Some((start, size)) if !profile.is_empty() => {
            let placement = MigPlacement::new(start, size).map_err(invalid)?;
            Ok(Some(MigInstance { profile: profile.into(), placement }))
        }
        _ => Err(PyValueError::new_err(
            "profile and placement name an instance together; give both or neither",
        )),
    }
}

/// An instance that a pod claims beyond its slices; without profile and placement one that nobody can find.
#[pyclass(frozen, module = "hami_engine")]
pub(crate) struct MigClaim(pub(crate) BoundClaim);

#[pymethods]
impl MigClaim {
    #[new]
    #[pyo3(signature = (*, card_id, profile="", placement=None))]
    fn new(card_id: String, profile: &str, placement: Option<Place>) -> PyResult<Self> {
        Ok(Self(BoundClaim { card_id, instance: read_instance(profile, placement)?.map(Arc::new) }))
    }
}
