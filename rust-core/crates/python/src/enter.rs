//! The one way to the engine's state.

use std::sync::{Mutex, MutexGuard, TryLockError};

use placement::snapshot::{Operation, Recording, Snapshot};
use placement::InvalidInput;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;

/// The state behind its lock. The lock is never held while a thread waits for the interpreter.
pub(crate) struct Guarded(Mutex<Kept>);

/// The state, and its last steps where they are wanted.
struct Kept {
    cluster: placement::Cluster,
    recording: Option<Recording>,
}

impl Guarded {
    pub(crate) fn new(cluster: placement::Cluster) -> Self {
        Self(Mutex::new(Kept { cluster, recording: None }))
    }

    /// Begins to record the last `most` steps, or ends it when that is 0.
    pub(crate) fn record(&self, py: Python<'_>, most: usize) -> PyResult<()> {
        self.long_kept(py, |kept| {
            kept.recording = (most > 0).then(|| Recording::begin(&kept.cluster, most));
        })
    }

    /// What is recorded. None: nothing is to be.
    pub(crate) fn recorded(&self, py: Python<'_>) -> PyResult<Option<Snapshot>> {
        self.long_kept(py, |kept| kept.recording.as_ref().map(Recording::snapshot))
    }

    /// Runs a short step that changes the state; `told` says what it was (None: nothing), where steps are
    /// recorded.
    pub(crate) fn change<T: Send>(
        &self,
        py: Python<'_>,
        step: impl FnOnce(&mut placement::Cluster) -> T + Send,
        told: impl FnOnce(&T) -> Option<Operation> + Send,
    ) -> PyResult<T> {
        self.short_kept(py, |kept| {
            let outcome = step(&mut kept.cluster);
            if let Some(recording) = &mut kept.recording {
                if let Some(operation) = told(&outcome) {
                    recording.add(operation, &kept.cluster);
                }
            }
            outcome
        })
    }

    /// Runs a short step with the interpreter attached, or detached where another thread holds the state.
    pub(crate) fn short<T: Send>(
        &self,
        py: Python<'_>,
        step: impl FnOnce(&mut placement::Cluster) -> T + Send,
    ) -> PyResult<T> {
        self.short_kept(py, |kept| step(&mut kept.cluster))
    }

    /// Runs a long step with the interpreter detached.
    pub(crate) fn long<T: Send>(
        &self,
        py: Python<'_>,
        step: impl FnOnce(&mut placement::Cluster) -> T + Send,
    ) -> PyResult<T> {
        self.long_kept(py, |kept| step(&mut kept.cluster))
    }

    fn short_kept<T: Send>(&self, py: Python<'_>, step: impl FnOnce(&mut Kept) -> T + Send) -> PyResult<T> {
        match self.0.try_lock() {
            Ok(mut kept) => Ok(step(&mut kept)),
            Err(TryLockError::WouldBlock) => self.long_kept(py, step),
            Err(TryLockError::Poisoned(_)) => Err(broken()),
        }
    }

    fn long_kept<T: Send>(&self, py: Python<'_>, step: impl FnOnce(&mut Kept) -> T + Send) -> PyResult<T> {
        py.detach(|| self.0.lock().map(|mut kept: MutexGuard<'_, Kept>| step(&mut kept)).ok())
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
