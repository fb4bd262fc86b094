//! `hami-engine`, as the Python package installs it.

use std::ffi::OsString;
use std::io::{stderr, stdout, IsTerminal};

use pyo3::prelude::*;

/// Runs `hami-engine` with these arguments, the program's name left out, and returns its exit status.
#[pyfunction]
#[pyo3(signature = (arguments))]
pub(crate) fn run_command(py: Python<'_>, arguments: Vec<OsString>) -> u8 {
    py.detach(|| {
        let show_progress = stderr().is_terminal();
        replay::run(arguments, &mut stdout().lock(), &mut stderr().lock(), show_progress)
    })
}
