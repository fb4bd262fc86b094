//! The one way to the engine's state.

use std::sync::{Mutex, MutexGuard, TryLockError};

use placement::InvalidInput;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;

/// The state behind its lock. The lock is never held while a thread waits for the interpreter.
pub(crate) struct Guarded(Mutex<placement::Cluster>);

impl Guarded {
    pub(crate) fn new(cluster: placement::Cluster) -> Self {
        Self(Mutex::new(cluster))
    }

    /// Runs a short step with the interpreter attached, or detached where another thread holds the state.
    pub(crate) fn short<T: Send>(
        &self,
        py: Python<'_>,
        step: impl FnOnce(&mut placement::Cluster) -> T + Send,
    ) -> PyResult<T> {
        match self.0.try_lock() {
            Ok(mut cluster) => Ok(step(&mut cluster)),
            Err(TryLockError::WouldBlock) => self.long(py, step),
            Err(TryLockError::Poisoned(_)) => Err(broken()),
        }
    }

    /// Runs a long step with the interpreter detached.
    pub(crate) fn long<T: Send>(
        &self,
        py: Python<'_>,
        step: impl FnOnce(&mut placement::Cluster) -> T + Send,
    ) -> PyResult<T> {
        py.detach(|| {
            self.0.lock().map(|mut cluster: MutexGuard<'_, placement::Cluster>| step(&mut cluster)).ok()
        })
        .ok_or_else(broken)
    }
}

fn broken() -> PyErr {
    PyRuntimeError::new_err(
        "an earlier call into the engine failed midway, so its state cannot be trusted; build a new Cluster from the ledger",
    )
}

/// A value that cannot enter the engine.
pub(crate) fn invalid(error: InvalidInput) -> PyErr {
    PyValueError::new_err(error.to_string())
}
