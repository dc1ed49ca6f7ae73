//! Kernels over Arrow columns. Each has a twin in Python that defines its result.
//!
//! A kernel returns `None` for input that is not plain and valid. Its caller then runs the twin, which
//! finds the fault and names it, so that errors are the same with and without this module.

mod blooms;
mod columns;
mod hashes;
mod hex;
mod json;
mod rlp;
mod trie;

use pyo3::prelude::*;

/// Counts changes of the kernels. `trace_etl.proof.native` uses no package with another number.
const INTERFACE: u32 = 2;

#[pymodule]
fn trace_etl_native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("INTERFACE", INTERFACE)?;
    module.add_class::<json::Shape>()?;
    module.add_function(wrap_pyfunction!(json::parse_answers, module)?)?;
    module.add_function(wrap_pyfunction!(hex::decode_hex, module)?)?;
    module.add_function(wrap_pyfunction!(hex::decode_integers, module)?)?;
    module.add_function(wrap_pyfunction!(rlp::encode_quantities, module)?)?;
    module.add_function(wrap_pyfunction!(rlp::encode_data, module)?)?;
    module.add_function(wrap_pyfunction!(rlp::encode_hashes, module)?)?;
    module.add_function(wrap_pyfunction!(rlp::encode_records, module)?)?;
    module.add_function(wrap_pyfunction!(rlp::encode_lists, module)?)?;
    module.add_function(wrap_pyfunction!(hashes::keccak_rows, module)?)?;
    module.add_function(wrap_pyfunction!(hashes::sha256_rows, module)?)?;
    module.add_function(wrap_pyfunction!(blooms::compute_blooms, module)?)?;
    module.add_function(wrap_pyfunction!(trie::compute_roots, module)?)?;
    Ok(())
}
