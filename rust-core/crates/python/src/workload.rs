//! Pods that are expected.

use placement::HostAmount;
use pyo3::prelude::*;

use crate::enter::invalid;
use crate::values::{Ask, CardConstraint};

/// One shape of requests with how often it comes.
#[pyclass(frozen, module = "hami_engine")]
pub(crate) struct WorkloadShape(pub(crate) placement::WorkloadShape);

#[pymethods]
impl WorkloadShape {
    /// `weight`: in proportion to the other shapes. `ask` None: pods without cards.
    #[new]
    #[pyo3(signature = (*, weight, ask=None, constraint=None, host=(0, 0)))]
    fn new(
        weight: i64,
        ask: Option<PyRef<'_, Ask>>,
        constraint: Option<PyRef<'_, CardConstraint>>,
        host: (i64, i64),
    ) -> PyResult<Self> {
        let ask = ask.map(|ask| ask.0.clone());
        let constraint = constraint.map(|constraint| constraint.0.clone());
        let host = HostAmount::new(host.0, host.1).map_err(invalid)?;
        placement::WorkloadShape::new(weight, ask, constraint, host).map(Self).map_err(invalid)
    }
}
