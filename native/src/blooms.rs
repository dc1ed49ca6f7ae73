//! The 2048-bit Bloom filters of logs.

use crate::columns::{Column, Held};
use crate::hashes::keccak;
use crate::hex::{append_bytes, strip_prefix};
use crate::rlp::read_numbers;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::sync::{Mutex, PoisonError};

const FILTER: usize = 256;
const LONGEST: usize = 32;
const SLOTS: usize = 1 << 16;

/// The bits of values that were hashed. Tokens, pools and accounts recur in many blocks.
static CACHE: Mutex<Vec<Slot>> = Mutex::new(Vec::new());

#[derive(Clone, Copy)]
struct Slot {
    /// The value, and its length in the last byte; an empty slot has a length that no value has.
    key: [u8; LONGEST + 1],
    bits: [u16; 3],
}

const EMPTY: Slot = Slot { key: [0xFF; LONGEST + 1], bits: [0; 3] };

/// Compute `count` filters of 256 bytes, one after the other, from the texts of logs.
///
/// Log `n` belongs to the filter `owners[n]` and has the topics from `borders[n]` to `borders[n + 1]`.
#[pyfunction]
pub fn compute_blooms<'py>(
    py: Python<'py>,
    addresses: &Bound<'py, PyAny>,
    topics: &Bound<'py, PyAny>,
    borders: &Bound<'py, PyAny>,
    owners: &Bound<'py, PyAny>,
    count: usize,
) -> PyResult<Option<Bound<'py, PyBytes>>> {
    let (held_addresses, held_topics) = (Held::new(addresses)?, Held::new(topics)?);
    let (addresses, topics) = (held_addresses.column()?, held_topics.column()?);
    let (borders, owners) = (read_numbers(borders)?, read_numbers(owners)?);
    let filters = py.detach(|| build_filters(&addresses, &topics, &borders, &owners, count));
    Ok(filters.map(|filters| PyBytes::new(py, &filters)))
}

fn build_filters(
    addresses: &Column<'_>,
    topics: &Column<'_>,
    borders: &[i64],
    owners: &[i64],
    count: usize,
) -> Option<Vec<u8>> {
    (owners.len() == addresses.len() && borders.len() == owners.len() + 1).then_some(())?;
    let mut filters = vec![0; count.checked_mul(FILTER)?];
    let mut value = Vec::with_capacity(LONGEST);
    let mut cache = CACHE.lock().unwrap_or_else(PoisonError::into_inner);
    cache.resize(SLOTS, EMPTY);
    for (row, owner) in owners.iter().enumerate() {
        let first = usize::try_from(*owner).ok()?.checked_mul(FILTER)?;
        let filter = filters.get_mut(first..first + FILTER)?;
        let (from, to) = (usize::try_from(borders[row]).ok()?, usize::try_from(borders[row + 1]).ok()?);
        (from <= to && to <= topics.len()).then_some(())?;
        add(addresses, row, filter, &mut value, &mut cache)?;
        for topic in from..to {
            add(topics, topic, filter, &mut value, &mut cache)?;
        }
    }
    Some(filters)
}

fn add(
    column: &Column<'_>,
    row: usize,
    filter: &mut [u8],
    value: &mut Vec<u8>,
    cache: &mut [Slot],
) -> Option<()> {
    (!column.is_null(row)).then_some(())?;
    value.clear();
    append_bytes(strip_prefix(column.row(row))?, value)?;
    for bit in find_bits(value, cache)? {
        filter[FILTER - 1 - usize::from(bit / 8)] |= 1 << (bit % 8);
    }
    Some(())
}

fn find_bits(value: &[u8], cache: &mut [Slot]) -> Option<[u16; 3]> {
    let mut key = [0; LONGEST + 1];
    key.get_mut(..value.len())?.copy_from_slice(value);
    (value.len() <= LONGEST).then_some(())?;
    key[LONGEST] = value.len() as u8;
    let slot = &mut cache[choose_slot(&key)];
    if slot.key != key {
        let digest = keccak(value);
        let bit = |at: usize| u16::from_be_bytes([digest[at], digest[at + 1]]) % 2048;
        *slot = Slot { key, bits: [bit(0), bit(2), bit(4)] };
    }
    Some(slot.bits)
}

fn choose_slot(key: &[u8; LONGEST + 1]) -> usize {
    let words = key.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap()));
    let mixed = words.fold(0u64, |sum, word| (sum.rotate_left(5) ^ word).wrapping_mul(0x517c_c1b7_2722_0a95));
    (mixed >> 48) as usize
}
