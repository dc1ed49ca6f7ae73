//! Parse columns of hexadecimal text.

use crate::columns::{Builder, Held, Pair, as_bytes};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

const WRONG: u8 = 0xFF;
const DIGITS: [u8; 256] = {
    let mut table = [WRONG; 256];
    let mut n = 0;
    while n < 16 {
        table[b"0123456789abcdef"[n] as usize] = n as u8;
        table[b"0123456789ABCDEF"[n] as usize] = n as u8;
        n += 1;
    }
    table
};

/// The digits after `0x`.
#[inline]
pub fn strip_prefix(text: &[u8]) -> Option<&[u8]> {
    text.strip_prefix(b"0x")
}

/// Append the bytes of an even number of digits.
#[inline]
pub fn append_bytes(digits: &[u8], out: &mut Vec<u8>) -> Option<()> {
    if digits.len() % 2 == 1 {
        return None;
    }
    let mut wrong = 0;
    out.extend(digits.chunks_exact(2).map(|pair| {
        let (high, low) = (DIGITS[pair[0] as usize], DIGITS[pair[1] as usize]);
        wrong |= high | low;
        high << 4 | low & 15
    }));
    (wrong < 16).then_some(())
}

/// Append a number as big-endian bytes without leading zeros; zero has none.
#[inline]
pub fn append_number(digits: &[u8], out: &mut Vec<u8>) -> Option<()> {
    let zeros = digits.iter().take_while(|digit| **digit == b'0').count();
    let digits = if digits.is_empty() { return None } else { &digits[zeros..] };
    if digits.len() % 2 == 1 {
        let first = DIGITS[digits[0] as usize];
        if first == WRONG {
            return None;
        }
        out.push(first);
        return append_bytes(&digits[1..], out);
    }
    append_bytes(digits, out)
}

/// Parse `0x…` of any even length; null becomes empty.
#[pyfunction]
pub fn decode_hex<'py>(py: Python<'py>, texts: &Bound<'py, PyAny>, optional: bool) -> PyResult<Pair<'py>> {
    let held = Held::new(texts)?;
    let column = held.column()?;
    let built = py.detach(|| {
        let mut out = Builder::new(column.len(), column.size() / 2);
        for row in 0..column.len() {
            if !column.is_null(row) {
                append_bytes(strip_prefix(column.row(row))?, &mut out.data)?;
            } else if !optional {
                return None;
            }
            out.end_row()?;
        }
        Some(out)
    });
    Ok(built.map(|out| out.to_python(py)))
}

/// Parse quantities of up to 63 bits; null becomes 0.
#[pyfunction]
pub fn decode_integers<'py>(
    py: Python<'py>,
    texts: &Bound<'py, PyAny>,
    optional: bool,
) -> PyResult<Option<Bound<'py, PyBytes>>> {
    let held = Held::new(texts)?;
    let column = held.column()?;
    let parsed = py.detach(|| {
        let mut numbers = Vec::with_capacity(column.len());
        for row in 0..column.len() {
            if column.is_null(row) {
                if !optional {
                    return None;
                }
                numbers.push(0);
            } else {
                numbers.push(parse_integer(strip_prefix(column.row(row))?)?);
            }
        }
        Some(numbers)
    });
    Ok(parsed.map(|numbers| PyBytes::new(py, as_bytes(&numbers))))
}

fn parse_integer(digits: &[u8]) -> Option<i64> {
    if digits.is_empty() || digits.len() > 16 {
        return None;
    }
    let mut number = 0u64;
    for digit in digits {
        let value = DIGITS[*digit as usize];
        if value == WRONG {
            return None;
        }
        number = number << 4 | u64::from(value);
    }
    i64::try_from(number).ok()
}
