//! Raise an alert for every transfer of at least `at_least` units.
//!
//!     mkdir -p target/native
//!     rustc -O -C target-feature=+crt-static -o target/native/bootstrap src/main.rs
//!
//! The standard library only: the platform is reached by HTTP over one Unix socket.

mod json;

use json::Value;
use std::io::{Error, Read, Result, Write};
use std::os::unix::net::UnixStream;
use std::time::{SystemTime, UNIX_EPOCH};
use std::{env, fs};

const SQL: &str = "SELECT block_number, transaction_hash, log_index, token, value_string \
                   FROM transfers WHERE value_f64 >= CAST(? AS DOUBLE)";

fn main() -> Result<()> {
    let event = json::parse(&fs::read_to_string(variable("TRACE_EVENT_FILE")?)?)?;
    let config = event.get("config");
    let query = format!(
        r#"{{"sql": {}, "params": [{}], "format": "json"}}"#,
        json::quote(SQL),
        json::quote(config.get("at_least").text())
    );
    let answer = json::parse(&call("POST", "/v1/task/query", &query)?)?;
    let rule = config.get("rule").text();
    let lines: Vec<String> = answer.get("rows").items().iter().map(|row| alert(rule, row)).collect();
    if lines.is_empty() {
        return Ok(());
    }
    publish(&event.get("outputs").items()[0], &lines)
}

/// One alert as a line of JSON. The same transfer has the same key, however often it is processed.
fn alert(rule: &str, row: &Value) -> String {
    let column = |n: usize| row.items()[n].text();
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64());
    format!(
        "{{\"dedupe_key\": {}, \"severity\": \"warning\", \"payload\": {{\"block\": {}, \"token\": {}, \"value\": {}}}, \"created_at\": {}}}\n",
        json::quote(&format!("{rule}:{}:{}", column(1), column(2))),
        column(0),
        json::quote(column(3)),
        json::quote(column(4)),
        json::quote(&timestamp(seconds as u64)),
    )
}

/// Write the alerts to an object of this attempt, and publish it to the buffered dataset.
fn publish(output: &Value, lines: &[String]) -> Result<()> {
    let storage = output.get("storage_ref");
    let key = format!("{}/{}batch-00000.jsonl", storage.get("bucket").text(), storage.get("prefix").text());
    let content = lines.concat();
    call("PUT", &format!("/v1/task/objects/{key}"), &content)?;
    let body = format!(
        r#"{{"dataset_uuid": {}, "dataset_version": {}, "batch_uri": {}, "record_count": {}, "batch_size_bytes": {}}}"#,
        json::quote(output.get("dataset_uuid").text()),
        json::quote(output.get("dataset_version").text()),
        json::quote(&format!("s3://{key}")),
        lines.len(),
        content.len(),
    );
    call("POST", "/v1/task/buffer-publish", &body).map(|_| ())
}

/// Send one request to the platform and return the body of the answer. HTTP/1.0 has no chunks.
fn call(method: &str, path: &str, body: &str) -> Result<String> {
    let mut socket = UnixStream::connect(variable("TRACE_SOCKET")?)?;
    let kind = if method == "PUT" { "application/octet-stream" } else { "application/json" };
    write!(
        socket,
        "{method} {path} HTTP/1.0\r\nHost: trace\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )?;
    let mut answer = String::new();
    socket.read_to_string(&mut answer)?;
    let (head, content) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    let status = head.split(' ').nth(1).unwrap_or("");
    if status.starts_with('2') {
        return Ok(content.to_string());
    }
    Err(Error::other(format!("{method} {path} answered {status}: {content}")))
}

fn variable(name: &str) -> Result<String> {
    env::var(name).map_err(|_| Error::other(format!("{name} is not set")))
}

/// The time as ISO 8601, in UTC: days to a date after Howard Hinnant's algorithm.
fn timestamp(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400 + 719_468, seconds % 86_400);
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let (day, month) = (day_of_year - (153 * shifted + 2) / 5 + 1, if shifted < 10 { shifted + 3 } else { shifted - 9 });
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    format!("{year}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", rest / 3600, rest / 60 % 60, rest % 60)
}
