//! Hash the rows of columns.

use crate::columns::{Column, Held};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use sha2::{Digest, Sha256};
use sha3::Keccak256;

pub fn keccak(data: &[u8]) -> [u8; 32] {
    Keccak256::digest(data).into()
}

/// Return the Keccak-256 hashes of all rows, one after the other.
#[pyfunction]
pub fn keccak_rows<'py>(py: Python<'py>, values: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
    let held = Held::new(values)?;
    let column = held.column()?;
    let digests = py.detach(|| (0..column.len()).flat_map(|row| keccak(column.row(row))).collect::<Vec<u8>>());
    Ok(PyBytes::new(py, &digests))
}

/// Return the SHA-256 hashes of rows whose bytes are spread over columns, one after the other.
#[pyfunction]
pub fn sha256_rows<'py>(
    py: Python<'py>,
    columns: Vec<Bound<'py, PyAny>>,
    count: usize,
) -> PyResult<Bound<'py, PyBytes>> {
    let held = columns.iter().map(Held::new).collect::<PyResult<Vec<_>>>()?;
    let columns = held.iter().map(Held::column).collect::<PyResult<Vec<Column<'_>>>>()?;
    if columns.iter().any(|column| column.len() != count) {
        return Err(PyValueError::new_err("columns of different lengths"));
    }
    let digests = py.detach(|| {
        let (mut digests, mut bytes) = (Vec::with_capacity(32 * count), Vec::new());
        for row in 0..count {
            bytes.clear();
            for column in &columns {
                bytes.extend_from_slice(column.row(row));
            }
            digests.extend_from_slice(&Sha256::digest(&bytes));
        }
        digests
    });
    Ok(PyBytes::new(py, &digests))
}
