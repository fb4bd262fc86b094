//! The Python face of the placement engine: converts values, maps errors, and nothing else.
use pyo3::prelude::*;

#[pymodule]
fn _engine(_module: &Bound<'_, PyModule>) -> PyResult<()> {
    Ok(())
}
