//! The Python face of the placement engine: converts values, maps errors, and nothing else.

#![allow(clippy::needless_pass_by_value, reason = "arguments of Python calls arrive by value")]

mod answers;
mod change;
mod cluster;
mod command;
mod enter;
mod explanation;
mod family;
mod mig;
mod snapshot;
mod values;
mod workload;

use pyo3::prelude::*;

#[pymodule]
mod _engine {
    #[pymodule_export]
    use super::answers::{Placement, Rejection};
    #[pymodule_export]
    use super::change::Change;
    #[pymodule_export]
    use super::cluster::{CardUsage, Cluster, PodBooking};
    #[pymodule_export]
    use super::command::run_command;
    #[pymodule_export]
    use super::explanation::{
        list_reasons, policy_names, reasons_text, CardVerdict, Ceiling, Explanation, NodeVerdict,
        QuotaVerdict, ReasonInfo,
    };
    #[pymodule_export]
    use super::family::Family;
    #[pymodule_export]
    use super::mig::{MigClaim, MigProfile};
    #[pymodule_export]
    use super::values::{Ask, Card, CardConstraint, ContainerAsk, ContainerSlices, PodAsk, Slice};
    #[pymodule_export]
    use super::workload::WorkloadShape;
}
