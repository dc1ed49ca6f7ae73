//! As much JSON as the rule needs: numbers stay texts, so no digit is lost.

use std::collections::HashMap;
use std::io::{Error, Result};

pub enum Value {
    Text(String),
    List(Vec<Value>),
    Map(HashMap<String, Value>),
}

static NOTHING: Value = Value::Text(String::new());

impl Value {
    /// The value of a key, or an empty text.
    pub fn get(&self, key: &str) -> &Value {
        match self {
            Value::Map(entries) => entries.get(key).unwrap_or(&NOTHING),
            _ => &NOTHING,
        }
    }

    /// A string, or the text of a number or literal.
    pub fn text(&self) -> &str {
        match self {
            Value::Text(text) => text,
            _ => "",
        }
    }

    pub fn items(&self) -> &[Value] {
        match self {
            Value::List(items) => items,
            _ => &[],
        }
    }
}

pub fn quote(text: &str) -> String {
    let escaped: String = text
        .chars()
        .map(|c| match c {
            '"' | '\\' => format!("\\{c}"),
            c if c < ' ' => format!("\\u{:04x}", c as u32),
            c => c.to_string(),
        })
        .collect();
    format!("\"{escaped}\"")
}

pub fn parse(text: &str) -> Result<Value> {
    let mut reader = Reader { text: text.as_bytes(), at: 0 };
    reader.value()
}

struct Reader<'a> {
    text: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn value(&mut self) -> Result<Value> {
        match self.peek()? {
            b'{' => self.map(),
            b'[' => self.list(),
            b'"' => Ok(Value::Text(self.string()?)),
            _ => Ok(Value::Text(self.literal())),
        }
    }

    fn map(&mut self) -> Result<Value> {
        let mut entries = HashMap::new();
        self.at += 1;
        while self.peek()? != b'}' {
            let key = self.string()?;
            self.expect(b':')?;
            entries.insert(key, self.value()?);
            if self.peek()? == b',' {
                self.at += 1;
                self.peek()?;
            }
        }
        self.at += 1;
        Ok(Value::Map(entries))
    }

    fn list(&mut self) -> Result<Value> {
        let mut items = Vec::new();
        self.at += 1;
        while self.peek()? != b']' {
            items.push(self.value()?);
            if self.peek()? == b',' {
                self.at += 1;
            }
        }
        self.at += 1;
        Ok(Value::List(items))
    }

    fn string(&mut self) -> Result<String> {
        self.expect(b'"')?;
        let mut bytes = Vec::new();
        loop {
            match self.next()? {
                b'"' => break,
                b'\\' => self.escape(&mut bytes)?,
                byte => bytes.push(byte),
            }
        }
        String::from_utf8(bytes).map_err(Error::other)
    }

    fn escape(&mut self, bytes: &mut Vec<u8>) -> Result<()> {
        let replaced = match self.next()? {
            b'n' => b'\n',
            b't' => b'\t',
            b'r' => b'\r',
            b'u' => {
                let digits = self.text.get(self.at..self.at + 4).unwrap_or(b"?");
                let code = u32::from_str_radix(&String::from_utf8_lossy(digits), 16).map_err(Error::other)?;
                self.at += 4;
                bytes.extend(char::from_u32(code).unwrap_or('\u{fffd}').to_string().bytes());
                return Ok(());
            }
            byte => byte,
        };
        bytes.push(replaced);
        Ok(())
    }

    fn literal(&mut self) -> String {
        let start = self.at;
        while self.at < self.text.len() && !b",]} \n\r\t".contains(&self.text[self.at]) {
            self.at += 1;
        }
        String::from_utf8_lossy(&self.text[start..self.at]).into_owned()
    }

    fn peek(&mut self) -> Result<u8> {
        while self.at < self.text.len() && self.text[self.at].is_ascii_whitespace() {
            self.at += 1;
        }
        self.text.get(self.at).copied().ok_or_else(|| Error::other("the JSON ends too early"))
    }

    fn next(&mut self) -> Result<u8> {
        let byte = self.text.get(self.at).copied();
        self.at += 1;
        byte.ok_or_else(|| Error::other("the JSON ends too early"))
    }

    fn expect(&mut self, byte: u8) -> Result<()> {
        if self.peek()? != byte {
            return Err(Error::other(format!("expected {:?} at {}", byte as char, self.at)));
        }
        self.at += 1;
        Ok(())
    }
}
