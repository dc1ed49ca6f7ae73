//! Roots of tries that map rlp(0), rlp(1), … to values.

use crate::columns::{Column, Held};
use crate::hashes::keccak;
use crate::rlp::{append_list_head, append_string, read_numbers};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// The nibbles of an encoded index, and the row of its value.
struct Key {
    nibbles: Vec<u8>,
    row: usize,
}

/// Compute one root per block, one after the other; `counts` (64-bit) are the values of each block.
#[pyfunction]
pub fn compute_roots<'py>(
    py: Python<'py>,
    values: &Bound<'py, PyAny>,
    counts: &Bound<'py, PyAny>,
) -> PyResult<Option<Bound<'py, PyBytes>>> {
    let held = Held::new(values)?;
    let column = held.column()?;
    let counts = read_numbers(counts)?;
    let roots = py.detach(|| {
        let (mut roots, mut start) = (Vec::with_capacity(32 * counts.len()), 0);
        for count in counts {
            let end = start + usize::try_from(count).ok()?;
            (end <= column.len()).then_some(())?;
            roots.extend_from_slice(&compute_root(&column, start, end));
            start = end;
        }
        Some(roots)
    });
    Ok(roots.map(|roots| PyBytes::new(py, &roots)))
}

fn compute_root(values: &Column<'_>, start: usize, end: usize) -> [u8; 32] {
    if start == end {
        return keccak(&[0x80]);
    }
    let mut keys: Vec<Key> =
        (start..end).map(|row| Key { nibbles: split_index(row - start), row }).collect();
    keys.sort_by(|left, right| left.nibbles.cmp(&right.nibbles));
    keccak(&encode_node(&keys, 0, values))
}

/// Encode the node of sorted keys that share their first `depth` nibbles.
fn encode_node(keys: &[Key], depth: usize, values: &Column<'_>) -> Vec<u8> {
    let (first, last) = (&keys[0].nibbles, &keys[keys.len() - 1].nibbles);
    if keys.len() == 1 {
        let mut payload = encode_path(&first[depth..], true);
        append_string(values.row(keys[0].row), &mut payload);
        return encode_list(&payload);
    }
    // No key is a prefix of another, so the first and the last key differ somewhere.
    let shared = depth + first[depth..].iter().zip(&last[depth..]).take_while(|(a, b)| a == b).count();
    let mut slots = Vec::with_capacity(17 * 33);
    let mut rest = keys;
    for nibble in 0..16 {
        let size = rest.partition_point(|key| key.nibbles[shared] <= nibble);
        let (group, others) = rest.split_at(size);
        if group.is_empty() {
            slots.push(0x80);
        } else {
            append_reference(&encode_node(group, shared + 1, values), &mut slots);
        }
        rest = others;
    }
    slots.push(0x80);
    let branch = encode_list(&slots);
    if shared == depth {
        return branch;
    }
    let mut payload = encode_path(&first[depth..shared], false);
    append_reference(&branch, &mut payload);
    encode_list(&payload)
}

/// A node of less than 32 bytes is embedded in its parent, a longer one is referenced by its hash.
fn append_reference(node: &[u8], out: &mut Vec<u8>) {
    if node.len() < 32 {
        out.extend_from_slice(node);
    } else {
        append_string(&keccak(node), out);
    }
}

fn encode_list(payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(payload.len() + 9);
    append_list_head(payload.len(), &mut out);
    out.extend_from_slice(payload);
    out
}

fn encode_path(nibbles: &[u8], is_leaf: bool) -> Vec<u8> {
    let odd = nibbles.len() % 2;
    let flags = 2 * u8::from(is_leaf) + odd as u8;
    let mut bytes = vec![if odd == 1 { flags << 4 | nibbles[0] } else { flags << 4 }];
    bytes.extend(nibbles[odd..].chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]));
    let mut out = Vec::with_capacity(bytes.len() + 1);
    append_string(&bytes, &mut out);
    out
}

fn split_index(index: usize) -> Vec<u8> {
    let bytes = (index as u64).to_be_bytes();
    let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
    let mut key = Vec::with_capacity(9);
    append_string(&bytes[zeros..], &mut key);
    key.iter().flat_map(|byte| [byte >> 4, byte & 15]).collect()
}
