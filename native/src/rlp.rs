//! Encode columns as RLP items.

use crate::columns::{Builder, Column, Held, Pair};
use crate::hex::{append_bytes, append_number, strip_prefix};
use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

const STRING: u8 = 0x80;
const LIST: u8 = 0xC0;

/// Append the head of a string or a list of this many bytes.
#[inline]
pub fn append_head(size: usize, kind: u8, out: &mut Vec<u8>) {
    if size < 56 {
        out.push(kind + size as u8);
    } else {
        let length = (size as u64).to_be_bytes();
        let zeros = length.iter().take_while(|byte| **byte == 0).count();
        out.push(kind + 55 + (8 - zeros) as u8);
        out.extend_from_slice(&length[zeros..]);
    }
}

pub fn append_list_head(size: usize, out: &mut Vec<u8>) {
    append_head(size, LIST, out);
}

/// Append a string.
#[inline]
pub fn append_string(value: &[u8], out: &mut Vec<u8>) {
    if !(value.len() == 1 && value[0] < STRING) {
        append_head(value.len(), STRING, out);
    }
    out.extend_from_slice(value);
}

fn encode_texts<'py>(
    py: Python<'py>,
    texts: &Bound<'py, PyAny>,
    optional: bool,
    parse: impl Fn(&[u8], &mut Vec<u8>) -> Option<()> + Send + Sync,
) -> PyResult<Pair<'py>> {
    let held = Held::new(texts)?;
    let column = held.column()?;
    let built = py.detach(|| {
        let mut out = Builder::new(column.len(), column.size() / 2 + column.len());
        let mut value = Vec::new();
        for row in 0..column.len() {
            value.clear();
            if !column.is_null(row) {
                parse(strip_prefix(column.row(row))?, &mut value)?;
            } else if !optional {
                return None;
            }
            append_string(&value, &mut out.data);
            out.end_row()?;
        }
        Some(out)
    });
    Ok(built.map(|out| out.to_python(py)))
}

/// Encode numbers of any size; null is zero if `optional`.
#[pyfunction]
pub fn encode_quantities<'py>(py: Python<'py>, texts: &Bound<'py, PyAny>, optional: bool) -> PyResult<Pair<'py>> {
    encode_texts(py, texts, optional, append_number)
}

/// Encode bytes of any length; null is the empty string if `optional`.
#[pyfunction]
pub fn encode_data<'py>(py: Python<'py>, texts: &Bound<'py, PyAny>, optional: bool) -> PyResult<Pair<'py>> {
    encode_texts(py, texts, optional, append_bytes)
}

/// Encode values of one length.
#[pyfunction]
pub fn encode_hashes<'py>(py: Python<'py>, texts: &Bound<'py, PyAny>, length: usize) -> PyResult<Pair<'py>> {
    encode_texts(py, texts, false, move |digits, out| {
        (digits.len() == 2 * length).then_some(())?;
        append_bytes(digits, out)
    })
}

/// A column, or a value for every row.
enum Part {
    Column(Held),
    Constant(Vec<u8>),
}

enum View<'a> {
    Column(Column<'a>),
    Constant(&'a [u8]),
}

impl<'a> View<'a> {
    #[inline]
    fn row(&self, row: usize) -> &'a [u8] {
        match self {
            View::Column(column) => column.row(row),
            View::Constant(value) => value,
        }
    }
}

/// Encode one list per row from its encoded items, one column each, after a prefix of the row.
#[pyfunction]
pub fn encode_records<'py>(
    py: Python<'py>,
    prefix: &Bound<'py, PyAny>,
    items: Vec<Bound<'py, PyAny>>,
    count: usize,
) -> PyResult<Pair<'py>> {
    let parts = std::iter::once(prefix).chain(&items).map(read_part).collect::<PyResult<Vec<_>>>()?;
    let views = parts.iter().map(|part| make_view(part, count)).collect::<PyResult<Vec<_>>>()?;
    let built = py.detach(|| {
        let bytes = views.iter().map(|view| match view {
            View::Column(column) => column.size(),
            View::Constant(value) => value.len() * count,
        });
        let mut out = Builder::new(count, bytes.sum::<usize>() + 4 * count);
        let (prefix, items) = views.split_first()?;
        for row in 0..count {
            out.data.extend_from_slice(prefix.row(row));
            append_list_head(items.iter().map(|item| item.row(row).len()).sum(), &mut out.data);
            for item in items {
                out.data.extend_from_slice(item.row(row));
            }
            out.end_row()?;
        }
        Some(out)
    });
    Ok(built.map(|out| out.to_python(py)))
}

fn read_part(part: &Bound<'_, PyAny>) -> PyResult<Part> {
    match part.cast::<PyBytes>() {
        Ok(value) => Ok(Part::Constant(value.as_bytes().to_vec())),
        Err(_) => Ok(Part::Column(Held::new(part)?)),
    }
}

fn make_view(part: &Part, count: usize) -> PyResult<View<'_>> {
    match part {
        Part::Constant(value) => Ok(View::Constant(value)),
        Part::Column(held) => {
            let column = held.column()?;
            if column.len() == count {
                Ok(View::Column(column))
            } else {
                Err(PyValueError::new_err("columns of different lengths"))
            }
        }
    }
}

/// Encode one list per row; `borders` (64-bit) are the borders of its consecutive encoded items.
#[pyfunction]
pub fn encode_lists<'py>(
    py: Python<'py>,
    items: &Bound<'py, PyAny>,
    borders: &Bound<'py, PyAny>,
) -> PyResult<Pair<'py>> {
    let held = Held::new(items)?;
    let column = held.column()?;
    let borders = read_numbers(borders)?;
    let built = py.detach(|| {
        let mut out = Builder::new(borders.len(), column.size() + 4 * borders.len());
        for pair in borders.windows(2) {
            let (from, to) = (usize::try_from(pair[0]).ok()?, usize::try_from(pair[1]).ok()?);
            (from <= to && to <= column.len()).then_some(())?;
            let payload = column.rows(from, to);
            append_list_head(payload.len(), &mut out.data);
            out.data.extend_from_slice(payload);
            out.end_row()?;
        }
        Some(out)
    });
    Ok(built.map(|out| out.to_python(py)))
}

/// Read a buffer of 64-bit integers.
pub fn read_numbers(buffer: &Bound<'_, PyAny>) -> PyResult<Vec<i64>> {
    let held = Some(PyUntypedBuffer::get(buffer)?);
    let bytes = crate::columns::view(&held);
    Ok(bytes.chunks_exact(8).map(|chunk| i64::from_le_bytes(chunk.try_into().unwrap())).collect())
}
