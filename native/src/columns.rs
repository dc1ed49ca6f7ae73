//! Arrow columns of texts or bytes, as Python passes them and as kernels return them.

use pyo3::buffer::PyUntypedBuffer;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// The buffers of a column, kept alive while a kernel reads them:
/// `(offsets, data or None, validity or None, first row, row count, bytes per offset)`.
pub struct Held {
    offsets: Option<PyUntypedBuffer>,
    data: Option<PyUntypedBuffer>,
    validity: Option<PyUntypedBuffer>,
    first: usize,
    count: usize,
    width: usize,
}

type Parts<'py> = (
    Option<Bound<'py, PyAny>>,
    Option<Bound<'py, PyAny>>,
    Option<Bound<'py, PyAny>>,
    usize,
    usize,
    usize,
);

impl Held {
    pub fn new(column: &Bound<'_, PyAny>) -> PyResult<Self> {
        let (offsets, data, validity, first, count, width): Parts<'_> = column.extract()?;
        let get = |buffer: Option<Bound<'_, PyAny>>| buffer.map(|b| PyUntypedBuffer::get(&b)).transpose();
        Ok(Self {
            offsets: get(offsets)?,
            data: get(data)?,
            validity: get(validity)?,
            first,
            count,
            width,
        })
    }

    /// The column, with borders that are checked against its data.
    pub fn column(&self) -> PyResult<Column<'_>> {
        let offsets = view(&self.offsets);
        let end = (self.first + self.count + 1) * self.width;
        let offsets = match self.count {
            0 => &[],
            _ => offsets
                .get(self.first * self.width..end)
                .ok_or_else(|| PyValueError::new_err("a column with too few offsets"))?,
        };
        let column = Column {
            offsets,
            data: view(&self.data),
            validity: self.validity.as_ref().map(|_| view(&self.validity)),
            first: self.first,
            count: self.count,
            width: self.width,
        };
        column.check()?;
        Ok(column)
    }
}

/// The bytes of a buffer. Arrow buffers are not written after they are shared.
pub fn view(buffer: &Option<PyUntypedBuffer>) -> &[u8] {
    match buffer {
        Some(buffer) if buffer.len_bytes() > 0 && buffer.is_c_contiguous() => unsafe {
            std::slice::from_raw_parts(buffer.buf_ptr().cast::<u8>(), buffer.len_bytes())
        },
        _ => &[],
    }
}

#[derive(Clone, Copy)]
pub struct Column<'a> {
    offsets: &'a [u8],
    data: &'a [u8],
    validity: Option<&'a [u8]>,
    first: usize,
    count: usize,
    width: usize,
}

impl<'a> Column<'a> {
    pub fn len(&self) -> usize {
        self.count
    }

    /// The number of bytes of all rows together.
    pub fn size(&self) -> usize {
        if self.count == 0 { 0 } else { self.border(self.count) - self.border(0) }
    }

    pub fn is_null(&self, row: usize) -> bool {
        let bit = self.first + row;
        self.validity.is_some_and(|bits| bits[bit / 8] >> (bit % 8) & 1 == 0)
    }

    /// The bytes of a row; those of a null are arbitrary.
    #[inline]
    pub fn row(&self, row: usize) -> &'a [u8] {
        &self.data[self.border(row)..self.border(row + 1)]
    }

    /// The bytes of consecutive rows.
    pub fn rows(&self, from: usize, to: usize) -> &'a [u8] {
        if self.count == 0 { &[] } else { &self.data[self.border(from)..self.border(to)] }
    }

    #[inline]
    fn border(&self, index: usize) -> usize {
        let at = index * self.width;
        if self.width == 4 {
            i32::from_le_bytes(self.offsets[at..at + 4].try_into().unwrap()) as usize
        } else {
            i64::from_le_bytes(self.offsets[at..at + 8].try_into().unwrap()) as usize
        }
    }

    fn check(&self) -> PyResult<()> {
        let is_valid = matches!(self.width, 4 | 8)
            && (self.count == 0
                || (0..self.count).all(|row| self.border(row) <= self.border(row + 1))
                    && self.border(self.count) <= self.data.len())
            && self.validity.is_none_or(|bits| bits.len() * 8 >= self.first + self.count);
        if is_valid { Ok(()) } else { Err(PyValueError::new_err("a column with wrong offsets")) }
    }
}

/// A column under construction: 32-bit offsets and bytes.
pub struct Builder {
    pub offsets: Vec<i32>,
    pub data: Vec<u8>,
}

impl Builder {
    pub fn new(rows: usize, bytes: usize) -> Self {
        let mut offsets = Vec::with_capacity(rows + 1);
        offsets.push(0);
        Self { offsets, data: Vec::with_capacity(bytes) }
    }

    /// End a row after its bytes were appended; None if the column grew too large.
    #[inline]
    pub fn end_row(&mut self) -> Option<()> {
        self.offsets.push(i32::try_from(self.data.len()).ok()?);
        Some(())
    }

    pub fn to_python<'py>(&self, py: Python<'py>) -> (Bound<'py, PyBytes>, Bound<'py, PyBytes>) {
        (PyBytes::new(py, as_bytes(&self.offsets)), PyBytes::new(py, &self.data))
    }
}

pub type Pair<'py> = Option<(Bound<'py, PyBytes>, Bound<'py, PyBytes>)>;

/// Numbers as the bytes of an Arrow buffer, which is little-endian like all machines we support.
pub fn as_bytes<T>(values: &[T]) -> &[u8] {
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), std::mem::size_of_val(values)) }
}
