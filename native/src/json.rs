//! Parse JSON-RPC answers into columns of a given shape.
//!
//! Accepts the JSON that nodes send: texts without escapes, integers, flags, unknown fields anywhere.
//! Everything else, such as a text where the shape has a number or a field that occurs twice, is `None`.

use crate::columns::{Builder, as_bytes, view};
use memchr::memchr;
use pyo3::IntoPyObjectExt;
use pyo3::buffer::PyUntypedBuffer;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyTuple};

const MAX_DEPTH: usize = 64;

/// The type of a value: texts, integers, flags, or lists and records of them.
#[pyclass(frozen)]
pub struct Shape(Kind);

enum Kind {
    Text,
    Integer,
    Flag,
    List(Box<Kind>),
    Record(Vec<(Vec<u8>, Kind)>),
}

#[pymethods]
impl Shape {
    /// Read `"text"`, `"integer"`, `"flag"`, `("list", shape)` or `("record", [(name, shape), …])`.
    #[new]
    fn new(description: &Bound<'_, PyAny>) -> PyResult<Self> {
        Ok(Self(read_kind(description)?))
    }
}

fn read_kind(description: &Bound<'_, PyAny>) -> PyResult<Kind> {
    if let Ok(name) = description.extract::<String>() {
        return match name.as_str() {
            "text" => Ok(Kind::Text),
            "integer" => Ok(Kind::Integer),
            "flag" => Ok(Kind::Flag),
            _ => Err(pyo3::exceptions::PyValueError::new_err(format!("unknown shape {name}"))),
        };
    }
    let (name, inner): (String, Bound<'_, PyAny>) = description.extract()?;
    if name == "list" {
        return Ok(Kind::List(Box::new(read_kind(&inner)?)));
    }
    let fields: Vec<(String, Bound<'_, PyAny>)> = inner.extract()?;
    let fields = fields.into_iter().map(|(name, kind)| Ok((name.into_bytes(), read_kind(&kind)?)));
    Ok(Kind::Record(fields.collect::<PyResult<_>>()?))
}

/// Parse answers, a list of them or one, into a column of the records of `shape`.
///
/// A column is `(row count, validity or None, content)`. The content is `(offsets, bytes)` of texts,
/// the bytes of numbers, the bits of flags, `(offsets, column)` of lists, `[column, …]` of records.
#[pyfunction]
pub fn parse_answers<'py>(
    py: Python<'py>,
    body: &Bound<'py, PyAny>,
    shape: &Bound<'py, Shape>,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let held = Some(PyUntypedBuffer::get(body)?);
    let text = view(&held);
    let kind = &shape.get().0;
    let parsed = py.detach(|| {
        if std::str::from_utf8(text).is_err() {
            return None;
        }
        let mut parser = Parser { text, at: 0 };
        let mut column = Values::new(kind);
        match parser.peek()? {
            b'[' => parser.read_items(&mut column).map(|_| ())?,
            _ => parser.read_value(&mut column)?,
        }
        parser.skip_spaces();
        (parser.at == text.len()).then_some(column)
    });
    parsed.map(|column| column.to_python(py)).transpose()
}

/// A column under construction.
struct Values {
    count: usize,
    nulls: usize,
    /// One flag per row; empty as long as no row is null.
    valid: Vec<bool>,
    content: Content,
}

enum Content {
    Text(Builder),
    Integer(Vec<i64>),
    Flag(Vec<bool>),
    List(Vec<i32>, Box<Values>),
    Record(Fields),
}

struct Fields {
    names: Vec<Vec<u8>>,
    columns: Vec<Values>,
    /// The field at each place of the records that were read: records name their fields in one order.
    order: Vec<(Vec<u8>, Option<usize>)>,
}

impl Values {
    fn new(kind: &Kind) -> Self {
        let content = match kind {
            Kind::Text => Content::Text(Builder::new(0, 0)),
            Kind::Integer => Content::Integer(Vec::new()),
            Kind::Flag => Content::Flag(Vec::new()),
            Kind::List(item) => Content::List(vec![0], Box::new(Values::new(item))),
            Kind::Record(fields) => Content::Record(Fields {
                names: fields.iter().map(|(name, _)| name.clone()).collect(),
                columns: fields.iter().map(|(_, kind)| Values::new(kind)).collect(),
                order: Vec::new(),
            }),
        };
        Self { count: 0, nulls: 0, valid: Vec::new(), content }
    }

    #[inline]
    fn end_row(&mut self) {
        self.count += 1;
        if self.nulls > 0 {
            self.valid.push(true);
        }
    }

    fn push_null(&mut self) -> Option<()> {
        match &mut self.content {
            Content::Text(builder) => builder.end_row()?,
            Content::Integer(numbers) => numbers.push(0),
            Content::Flag(flags) => flags.push(false),
            Content::List(offsets, _) => offsets.push(*offsets.last()?),
            Content::Record(fields) => {
                for column in &mut fields.columns {
                    column.push_null()?;
                }
            }
        }
        if self.nulls == 0 {
            self.valid = vec![true; self.count];
        }
        self.nulls += 1;
        self.count += 1;
        self.valid.push(false);
        Some(())
    }

    fn to_python<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let validity = (self.nulls > 0).then(|| PyBytes::new(py, &pack_bits(&self.valid)));
        let content = match &self.content {
            Content::Text(builder) => builder.to_python(py).into_bound_py_any(py)?,
            Content::Integer(numbers) => PyBytes::new(py, as_bytes(numbers)).into_any(),
            Content::Flag(flags) => PyBytes::new(py, &pack_bits(flags)).into_any(),
            Content::List(offsets, items) => {
                (PyBytes::new(py, as_bytes(offsets)), items.to_python(py)?).into_bound_py_any(py)?
            }
            Content::Record(fields) => {
                let columns = fields.columns.iter().map(|column| column.to_python(py));
                PyList::new(py, columns.collect::<PyResult<Vec<_>>>()?)?.into_any()
            }
        };
        let parts = [self.count.into_bound_py_any(py)?, validity.into_bound_py_any(py)?, content];
        Ok(PyTuple::new(py, parts)?.into_any())
    }
}

fn pack_bits(flags: &[bool]) -> Vec<u8> {
    flags
        .chunks(8)
        .map(|chunk| chunk.iter().enumerate().fold(0, |byte, (bit, flag)| byte | u8::from(*flag) << bit))
        .collect()
}

struct Parser<'a> {
    text: &'a [u8],
    at: usize,
}

impl<'a> Parser<'a> {
    fn skip_spaces(&mut self) {
        while let Some(b' ' | b'\n' | b'\r' | b'\t') = self.text.get(self.at) {
            self.at += 1;
        }
    }

    /// The next byte that is not a space.
    #[inline]
    fn peek(&mut self) -> Option<u8> {
        self.skip_spaces();
        self.text.get(self.at).copied()
    }

    #[inline]
    fn expect(&mut self, byte: u8) -> Option<()> {
        (self.peek()? == byte).then_some(())?;
        self.at += 1;
        Some(())
    }

    fn expect_word(&mut self, word: &[u8]) -> Option<()> {
        self.text[self.at..].starts_with(word).then_some(())?;
        self.at += word.len();
        Some(())
    }

    /// Read a text without escapes.
    #[inline]
    fn read_text(&mut self) -> Option<&'a [u8]> {
        self.expect(b'"')?;
        let rest = &self.text[self.at..];
        let text = &rest[..memchr(b'"', rest)?];
        // Bitwise, so that the compiler checks many bytes at once.
        let is_plain = text.iter().fold(true, |plain, byte| plain & (*byte >= b' ') & (*byte != b'\\'));
        is_plain.then_some(())?;
        self.at += text.len() + 1;
        Some(text)
    }

    fn read_value(&mut self, column: &mut Values) -> Option<()> {
        if self.peek()? == b'n' {
            self.expect_word(b"null")?;
            return column.push_null();
        }
        match &mut column.content {
            Content::Text(builder) => {
                builder.data.extend_from_slice(self.read_text()?);
                builder.end_row()?;
            }
            Content::Integer(numbers) => numbers.push(self.read_integer()?),
            Content::Flag(flags) => {
                let is_set = self.peek()? == b't';
                self.expect_word(if is_set { b"true" } else { b"false" })?;
                flags.push(is_set);
            }
            Content::List(offsets, items) => {
                self.read_items(items)?;
                offsets.push(i32::try_from(items.count).ok()?);
            }
            Content::Record(fields) => self.read_record(fields, column.count)?,
        }
        column.end_row();
        Some(())
    }

    fn read_items(&mut self, items: &mut Values) -> Option<()> {
        self.expect(b'[')?;
        if self.peek()? == b']' {
            self.at += 1;
            return Some(());
        }
        loop {
            self.read_value(items)?;
            if self.ends(b']')? {
                return Some(());
            }
        }
    }

    /// Read a comma, or the end of a list or a record.
    fn ends(&mut self, end: u8) -> Option<bool> {
        let byte = self.peek()?;
        self.at += 1;
        (byte == b',' || byte == end).then_some(byte == end)
    }

    fn read_record(&mut self, fields: &mut Fields, row: usize) -> Option<()> {
        self.expect(b'{')?;
        let mut is_empty = self.peek()? == b'}';
        self.at += usize::from(is_empty);
        let mut place = 0;
        while !is_empty {
            let name = self.read_text()?;
            self.expect(b':')?;
            match fields.find(name, place) {
                Some(index) => {
                    let column = &mut fields.columns[index];
                    (column.count == row).then_some(())?; // else the field occurs twice
                    self.read_value(column)?;
                }
                None => self.skip_value(0)?,
            }
            place += 1;
            is_empty = self.ends(b'}')?;
        }
        for column in fields.columns.iter_mut().filter(|column| column.count == row) {
            column.push_null()?;
        }
        Some(())
    }

    fn read_integer(&mut self) -> Option<i64> {
        let start = self.at;
        self.skip_number()?;
        let digits = std::str::from_utf8(&self.text[start..self.at]).ok()?;
        digits.parse().ok()
    }

    fn skip_number(&mut self) -> Option<()> {
        self.at += usize::from(self.text.get(self.at) == Some(&b'-'));
        let start = self.at;
        self.skip_digits()?;
        (self.text[start] != b'0' || self.at == start + 1).then_some(())?;
        if self.text.get(self.at) == Some(&b'.') {
            self.at += 1;
            self.skip_digits()?;
        }
        if let Some(b'e' | b'E') = self.text.get(self.at) {
            self.at += 1;
            self.at += usize::from(matches!(self.text.get(self.at), Some(b'+' | b'-')));
            self.skip_digits()?;
        }
        Some(())
    }

    fn skip_digits(&mut self) -> Option<()> {
        let count = self.text[self.at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        self.at += count;
        (count > 0).then_some(())
    }

    /// Skip the value of a field that the shape does not have.
    fn skip_value(&mut self, depth: usize) -> Option<()> {
        (depth < MAX_DEPTH).then_some(())?;
        match self.peek()? {
            b'"' => self.read_text().map(|_| ()),
            b'n' => self.expect_word(b"null"),
            b't' => self.expect_word(b"true"),
            b'f' => self.expect_word(b"false"),
            b'[' => self.skip_all(b']', depth, false),
            b'{' => self.skip_all(b'}', depth, true),
            _ => self.skip_number(),
        }
    }

    fn skip_all(&mut self, end: u8, depth: usize, is_record: bool) -> Option<()> {
        self.at += 1;
        if self.peek()? == end {
            self.at += 1;
            return Some(());
        }
        loop {
            if is_record {
                self.read_text()?;
                self.expect(b':')?;
            }
            self.skip_value(depth + 1)?;
            if self.ends(end)? {
                return Some(());
            }
        }
    }
}

impl Fields {
    /// The field of this name, guessed by its place in the record.
    #[inline]
    fn find(&mut self, name: &[u8], place: usize) -> Option<usize> {
        if let Some((known, index)) = self.order.get(place)
            && known == name
        {
            return *index;
        }
        let index = self.names.iter().position(|known| known == name);
        if place < self.order.len() {
            self.order[place] = (name.to_vec(), index);
        } else if place == self.order.len() && place < 256 {
            self.order.push((name.to_vec(), index));
        }
        index
    }
}
