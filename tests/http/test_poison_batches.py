"""Batches that must never be written: each is dead-lettered with its line, and the sink goes on."""

import io
import json
import os
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq

from support.data import buffered
from support.data.buffered import Producer, SinkSetup
from support.lifecycle.lifecycle import Attempt
from trace_etl.model.storage import hot_table
from trace_etl.queues.queue import dead_letter_queue
from trace_etl.sink.sink import QUEUE

SCHEMA = """[{name: id, type: string, nullable: false}, {name: n, type: long}, {name: i, type: int},
  {name: x, type: double}, {name: b, type: boolean}, {name: raw, type: binary},
  {name: day, type: date}, {name: at, type: timestamp}, {name: amount, type: "decimal(10,2)"},
  {name: doc, type: json}, {name: tags, type: array<string>}, {name: need, type: long, nullable: false}]"""
PARQUET = "application/vnd.apache.parquet"
STREAM = "application/vnd.apache.arrow.stream"
GOOD = {
    "id": "job:10143:123",
    "n": -(2**63),
    "i": 7,
    "x": 1.5,
    "b": True,
    "raw": "0x00ff",
    "day": "2025-12-27",
    "at": "2025-12-27T12:00:00.5+01:00",
    "amount": "12345678.90",
    "doc": {"msg": "…", "n": 1.10, "deep": [1, {"a": None}]},
    "tags": ["a", None, "c"],
    "need": 1,
}
ARROW_SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("n", pa.int64()),
        ("x", pa.float64()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        ("amount", pa.decimal128(10, 2)),
        ("doc", pa.string()),
        ("tags", pa.list_(pa.string())),
        ("need", pa.int32()),
    ]
)


def line(**fields: Any) -> bytes:
    return json.dumps({"id": "p", "need": 1, **fields}).encode()


def raw(text: str) -> bytes:
    return f'{{"id": "p", "need": 1, {text}}}'.encode()


def arrow_table(rows: list[dict[str, Any]], schema: Any = ARROW_SCHEMA) -> Any:
    return pa.Table.from_pylist([{"id": "p", "need": 1, **row} for row in rows], schema=schema)


def parquet(rows: list[dict[str, Any]], schema: Any = ARROW_SCHEMA) -> bytes:
    sink = io.BytesIO()
    pq.write_table(arrow_table(rows, schema), sink, compression="zstd")
    return sink.getvalue()


def parquet_with_bytes_as_text() -> bytes:
    table = arrow_table([{}])
    ids = pa.array([b"\xff\xfe"]).view(pa.string())
    sink = io.BytesIO()
    pq.write_table(table.set_column(table.column_names.index("id"), "id", ids), sink)
    return sink.getvalue()


def stream(rows: list[dict[str, Any]], schema: Any = ARROW_SCHEMA) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_table(arrow_table(rows, schema))
    return sink.getvalue().to_pybytes()


def with_type(name: str, kind: Any) -> Any:
    return ARROW_SCHEMA.set(ARROW_SCHEMA.get_field_index(name), pa.field(name, kind))


def bomb() -> bytes:
    """A file of a few kilobytes whose rows need more than the sink allows."""
    sink = io.BytesIO()
    value = "x" * 2_000_000
    table = pa.table({"id": [f"{n}" for n in range(200)], "need": [1] * 200, "doc": [value] * 200})
    pq.write_table(table, sink, compression="zstd", use_dictionary=False)
    return sink.getvalue()


GOOD_LINE = line()
Case = tuple[bytes, dict[str, Any], str]
CASES: dict[str, Case] = {
    "bad UTF-8": (GOOD_LINE + b'\n{"id": "\xff\xfe", "need": 1}', {}, "line 2 is not UTF-8"),
    "byte order mark": (b"\xef\xbb\xbf" + GOOD_LINE, {}, "line 1 starts with a byte order mark"),
    "empty line": (GOOD_LINE + b"\n\n" + line(id="q"), {}, "line 2 is empty"),
    "no JSON": (b"hello", {}, "line 1 is not a JSON object"),
    "cut off": (GOOD_LINE + b"\n" + GOOD_LINE[:-5], {}, "line 2 is not a JSON object"),
    "a list": (b"[1, 2]", {}, "line 1 is not a JSON object"),
    "two objects in a line": (GOOD_LINE + line(id="q"), {}, "line 1 is not a JSON object"),
    "an object over two lines": (b'{"id": "p",\n"need": 1}', {}, "line 1 is not a JSON object"),
    "text after the object": (GOOD_LINE + b" x", {}, "line 1 is not a JSON object"),
    "comment": (GOOD_LINE + b" // x", {}, "line 1 is not a JSON object"),
    "trailing comma": (b'{"id": "p", "need": 1,}', {}, "line 1 is not a JSON object"),
    "NaN": (raw('"x": NaN'), {}, "line 1: NaN is not JSON"),
    "Infinity": (GOOD_LINE + b"\n" + raw('"x": Infinity'), {}, "line 2: Infinity is not JSON"),
    "-Infinity": (raw('"x": -Infinity'), {}, "line 1: -Infinity is not JSON"),
    "NaN in a document": (raw('"doc": {"a": NaN}'), {}, "line 1: NaN is not JSON"),
    "double too large": (raw('"x": 1e400'), {}, "line 1: 'x' must be double"),
    "long too large": (raw('"n": 9223372036854775808'), {}, "line 1: 'n' must be long"),
    "huge integer": (raw('"n": ' + "9" * 5000), {}, "line 1"),
    "int too large": (raw('"i": 2147483648'), {}, "line 1: 'i' must be int"),
    "fraction as long": (raw('"n": 1.0'), {}, "line 1: 'n' must be long, not 1.0"),
    "quoted fraction": (raw('"n": "1.0"'), {}, "line 1: 'n' must be long"),
    "number as string": (raw('"tags": ["a", 7]'), {}, "line 1: 'tags' must be array<string>"),
    "string as boolean": (raw('"b": "true"'), {}, "line 1: 'b' must be boolean"),
    "object as string": (b'{"id": {}, "need": 1}', {}, "line 1: 'id' must be string"),
    "null key": (b'{"id": null, "need": 1}', {}, "line 1: 'id' is missing or null"),
    "missing key": (b'{"need": 1}', {}, "line 1: 'id' is missing or null"),
    "null in a column that is not nullable": (line(need=None), {}, "line 1: 'need' is missing"),
    "missing column": (GOOD_LINE + b'\n{"id": "q"}', {}, "line 2: 'need' is missing or null"),
    "unknown column": (line(other=1), {}, "line 1: the schema has no column 'other'"),
    "duplicate name": (raw('"n": 1, "n": 2'), {}, "line 1: 'n' occurs twice"),
    "duplicate name, escaped": (raw('"n": 1, "\\u006e": 2'), {}, "line 1: 'n' occurs twice"),
    "duplicate name in a document": (
        raw('"doc": {"a": 1, "a": 2}'),
        {},
        "line 1: 'a' occurs twice",
    ),
    "nested too deeply": (
        raw('"doc": ' + "[" * 100_000 + "]" * 100_000),
        {},
        "line 1: the JSON is",
    ),
    "objects nested too deeply": (raw('"doc": ' + '{"a":' * 50_000), {}, "line 1: the JSON is"),
    "NUL in a text": (raw('"id2": 1, "tags": ["\\u0000"]'), {}, "line 1"),
    "NUL in the key": (line(id="a\x00"), {}, "line 1: 'id' must be string"),
    "NUL in a document": (line(doc={"a": "\x00"}), {}, "line 1: 'doc' has a NUL"),
    "half a surrogate pair": (raw('"doc": "\\ud800"'), {}, "line 1: 'doc' has half"),
    "number beyond a document": (raw('"doc": 1e999999'), {}, "line 1: 'doc': Postgres cannot"),
    "control character": (b'{"id": "a\x01", "need": 1}', {}, "line 1 is not a JSON object"),
    "binary without 0x": (line(raw="ff"), {}, "line 1: 'raw' must be binary"),
    "binary with spaces": (line(raw="0xff ff"), {}, "line 1: 'raw' must be binary"),
    "half a byte": (line(raw="0xf"), {}, "line 1: 'raw' must be binary"),
    "no such day": (line(day="2025-02-30"), {}, "line 1: 'day' must be date"),
    "date with a time": (line(day="2025-02-03T00:00:00Z"), {}, "line 1: 'day' must be date"),
    "year 10000": (line(day="10000-01-01"), {}, "line 1: 'day' must be date"),
    "timestamp without zone": (
        line(at="2025-12-27T12:00:00"),
        {},
        "line 1: 'at' must be timestamp",
    ),
    "timestamp as number": (line(at=1766836800), {}, "line 1: 'at' must be timestamp"),
    "no such hour": (line(at="2025-12-27T25:00:00Z"), {}, "line 1: 'at' must be timestamp"),
    "year 0": (line(at="0000-01-01T00:00:00Z"), {}, "line 1: 'at' must be timestamp"),
    "too many digits": (line(amount="123456789.00"), {}, "line 1: 'amount' must be decimal(10,2)"),
    "too many decimals": (line(amount=0.125), {}, "line 1: 'amount' must be decimal(10,2)"),
    "text as decimal": (line(amount="1,5"), {}, "line 1: 'amount' must be decimal(10,2)"),
    "foreign org_id": (line(org_id=str(uuid4())), {}, "line 1: 'org_id' is another organisation's"),
    "org_id of another type": (line(org_id=7), {}, "line 1: 'org_id' must be string"),
    "unknown content type": (GOOD_LINE, {"content_type": "text/csv"}, "content_type 'text/csv'"),
    "JSON as Parquet": (GOOD_LINE, {"content_type": PARQUET}, "not a readable Parquet file"),
    "Parquet as JSON": (parquet([{}]), {}, "line 1 is not a JSON object"),
    "wrong record_count": (
        GOOD_LINE,
        {"record_count": 2},
        "record_count is 2, but the batch has 1",
    ),
    "wrong batch_size_bytes": (GOOD_LINE, {"batch_size_bytes": 5}, "batch_size_bytes is 5, but"),
    "cut off Parquet": (parquet([{}])[:-20], {"content_type": PARQUET}, "not a readable Parquet"),
    "damaged Parquet": (
        parquet([{}])[:30] + b"\xff" * 40 + parquet([{}])[70:],
        {"content_type": PARQUET},
        "not a readable Parquet",
    ),
    "bytes as text in Parquet": (
        parquet_with_bytes_as_text(),
        {"content_type": PARQUET},
        "column 'id': Invalid UTF8 sequence at string index 0",
    ),
    "cut off Arrow": (stream([{}])[:-100], {"content_type": STREAM}, "not a readable Arrow stream"),
    "no Arrow": (b"\x00" * 64, {"content_type": STREAM}, ""),
    "Arrow stream as file": (
        stream([{}]),
        {"content_type": "application/vnd.apache.arrow.file"},
        "not a readable Arrow file",
    ),
    "Parquet with a null key": (
        parquet([{}, {"id": None}]),
        {"content_type": PARQUET},
        "line 2: 'id' is missing or null",
    ),
    "Parquet with NUL": (
        parquet([{}, {"id": "a\x00"}]),
        {"content_type": PARQUET},
        "line 2: 'id' has a NUL",
    ),
    "Parquet with NUL in an array": (
        parquet([{"tags": ["a", "b"]}, {"tags": ["\x00"]}]),
        {"content_type": PARQUET},
        "line 2: 'tags' has a NUL",
    ),
    "Parquet of another type": (
        parquet([{"n": "7"}], with_type("n", pa.string())),
        {"content_type": PARQUET},
        "line 1: 'n' must be long, not string",
    ),
    "Parquet with an unknown column": (
        parquet([{}], ARROW_SCHEMA.append(pa.field("other", pa.int64()))),
        {"content_type": PARQUET},
        "line 1: the schema has no column 'other'",
    ),
    "Parquet without zone": (
        parquet([{}], with_type("at", pa.timestamp("us"))),
        {"content_type": PARQUET},
        "line 1: 'at' must be timestamp, not timestamp[us]",
    ),
    "Parquet with nanoseconds": (
        parquet([{}, {"at": 1}], with_type("at", pa.timestamp("ns", "UTC"))),
        {"content_type": PARQUET},
        "line 2: 'at' must be timestamp",
    ),
    "Parquet with too many digits": (
        parquet(
            [{}, {"amount": Decimal("123456789.5")}], with_type("amount", pa.decimal128(20, 2))
        ),
        {"content_type": PARQUET},
        "line 2: 'amount' must be decimal(10,2)",
    ),
    "Arrow with a day before the year 1": (
        stream([{}, {"day": -800_000}]),
        {"content_type": STREAM},
        "line 2: 'day' is outside the years 1 to 9999",
    ),
    "Arrow with no document": (
        stream([{}, {"doc": "{"}]),
        {"content_type": STREAM},
        "line 2: 'doc': Postgres cannot store",
    ),
    "Arrow with a foreign org_id": (
        stream([{"org_id": str(uuid4())}], ARROW_SCHEMA.append(pa.field("org_id", pa.string()))),
        {"content_type": STREAM},
        "line 1: 'org_id' is another organisation's",
    ),
}


def place(sinks: SinkSetup, batch: dict[str, Any]) -> Path:
    return sinks.bench.live.objects / batch["batch_uri"].removeprefix("s3://")


def read_all(sinks: SinkSetup, dataset: dict[str, Any]) -> list[dict[str, Any]]:
    return sinks.rows(dataset)


def linked(make: Callable[[Path, Path], None], target: Path) -> Callable[[Path], None]:
    def replace(path: Path) -> None:
        path.unlink()
        make(target, path)

    return replace


def publish_links(sinks: SinkSetup, attempt: Attempt, target: Path) -> dict[str, str]:
    """Publish files, then replace them by links and a directory. Returns the ids by case."""
    target.write_bytes(GOOD_LINE)
    changes: dict[str, Callable[[Path], None]] = {
        "symbolic link": linked(lambda to, path: path.symlink_to(to), target),
        "hard link": linked(lambda to, path: os.link(to, path), target),
        "directory": linked(lambda _, path: path.mkdir(), target),
    }
    ids: dict[str, str] = {}
    for name, change in changes.items():
        ids[name] = sinks.publish(attempt, GOOD_LINE)
        newest = sinks.batches(sinks_name(sinks, attempt))[0]
        change(place(sinks, newest))
    return ids


def sinks_name(sinks: SinkSetup, attempt: Attempt) -> str:
    query = "SELECT buffer_name FROM datasets WHERE dataset_uuid = %s"
    return sinks.bench.rows(query, attempt.output["dataset_uuid"])[0]["buffer_name"]


def test_poison_batches_write_no_row_and_the_sink_goes_on(sinks: SinkSetup, tmp_path: Path) -> None:
    too_large: Case = (bomb(), {"content_type": PARQUET}, "the decoded rows have more than")
    cases = CASES | {"compressed bomb": too_large}
    name = f"alerts_{uuid4().hex[:12]}"
    producer = sinks.producer(name)
    dataset = producer.deploy("one", schema=SCHEMA)["one"]
    attempt = producer.attempt("one")
    ids = {case: sinks.publish(attempt, c, **fields) for case, (c, fields, _) in cases.items()}
    links = publish_links(sinks, attempt, tmp_path / "target")
    good = sinks.publish(attempt, [GOOD])
    sinks.drain()
    (row,) = read_all(sinks, dataset)
    assert (row["id"], row["n"], row["raw"]) == (GOOD["id"], GOOD["n"], b"\x00\xff")
    assert (row["day"], row["amount"]) == (date(2025, 12, 27), Decimal("12345678.90"))
    assert row["at"] == datetime(2025, 12, 27, 11, 0, 0, 500_000, tzinfo=UTC)
    assert (row["doc"], row["tags"]) == (GOOD["doc"], GOOD["tags"])
    reply = sinks.bench.user.get(f"/v1/datasets/{name}/batches", params={"limit": 200}).json()
    found = {batch["publish_id"]: batch for batch in reply["items"]}
    assert found[good]["state"] == "written"
    wrong = {
        case: found[ids[case]]["error_message"]
        for case, (_, _, message) in cases.items()
        if found[ids[case]]["state"] != "failed" or message not in found[ids[case]]["error_message"]
    }
    assert wrong == {}
    assert {case: found[i]["state"] for case, i in links.items()} == dict.fromkeys(links, "failed")
    dead = {m["publish_id"] for m in sinks.bench.messages(dead_letter_queue(QUEUE))}
    assert {*ids.values(), *links.values()} <= dead


def test_rows_of_every_format_are_stored_alike(sinks: SinkSetup) -> None:
    name = f"alerts_{uuid4().hex[:12]}"
    producer = sinks.producer(name)
    dataset = producer.deploy("one", schema=SCHEMA)["one"]
    attempt = producer.attempt("one")
    row = {
        "n": 5,
        "x": 0.1,
        "day": date(2025, 1, 2),
        "at": datetime(2025, 1, 2, 3, 4, 5, 600_000, UTC),
        "amount": Decimal("1.50"),
        "doc": '{"a": [1, 2]}',
        "tags": ["x", None],
    }
    text = {
        **row,
        "day": "2025-01-02",
        "at": "2025-01-02T03:04:05.6Z",
        "amount": 1.5,
        "doc": {"a": [1, 2]},
    }
    sinks.publish(attempt, line(**{**text, "id": "json"}))
    # Without a document, Arrow parses the lines. A quoted number is read line by line.
    flat = {name: value for name, value in text.items() if name != "doc"}
    sinks.publish(attempt, line(**{**flat, "n": "5", "id": "quoted"}))
    sinks.publish(attempt, parquet([{**row, "id": "parquet"}]), content_type=PARQUET)
    sinks.publish(attempt, stream([{**row, "id": "stream"}]), content_type=STREAM)
    sinks.drain()
    assert [b["state"] for b in sinks.batches(name)] == ["written"] * 4
    rows = read_all(sinks, dataset)
    assert [r["id"] for r in rows] == ["json", "parquet", "quoted", "stream"]
    stored = [{n: r[n] for n in (*row, "need")} for r in rows]
    expected = {**row, "doc": {"a": [1, 2]}, "need": 1}
    assert stored[0] == stored[1] == stored[3] == expected
    assert stored[2] == {**expected, "doc": None}


def deploy_shipped(producer: Producer) -> dict[str, Any]:
    text = producer.text("one", key="dedupe_key").replace(f", schema: {buffered.SCHEMA}", "")
    assert "schema" not in text
    reply = producer.bench.user.post("/v1/dags", json={"text": text})
    assert reply.status_code == 200, reply.text
    return next(d for d in reply.json()["datasets"] if d["job"] == "one")


def test_a_failed_batch_can_be_shown_replayed_and_dropped(sinks: SinkSetup) -> None:
    name = f"alerts_{uuid4().hex[:12]}"
    producer = sinks.producer(name)
    dataset = producer.deploy("one")["one"]
    attempt, user = producer.attempt("one"), sinks.bench.user
    ids = [sinks.publish(attempt, content) for content in (b"1", b"2", b'{"id": "a", "n": 1}')]
    sinks.drain()
    dead = user.get("/v1/batches", params={"state": "failed", "limit": 1000}).json()["items"]
    assert [b["publish_id"] for b in dead if b["dataset"] == name] == [ids[1], ids[0]]
    shown = user.get(f"/v1/batches/{ids[0]}").json()
    assert (shown["state"], shown["content_type"]) == ("failed", "application/jsonl")
    assert shown["error_message"].startswith("line 1 is not a JSON object")
    place(sinks, shown).write_bytes(b'{"id": "b", "n": 2}')
    assert user.post(f"/v1/batches/{ids[0]}/retry").status_code == 200
    sinks.bench.live.drain()
    sinks.drain()
    assert sinks.values(dataset) == [("a", 1), ("b", 2)]
    assert user.post(f"/v1/batches/{ids[1]}/drop").status_code == 200
    assert user.get(f"/v1/batches/{ids[1]}").status_code == 404
    for publish_id in (ids[0], ids[2]):
        refused = user.post(f"/v1/batches/{publish_id}/drop")
        assert (refused.status_code, refused.json()["code"]) == (409, "conflict")
    assert len(sinks.batches(name)) == 2


def test_the_sample_record_of_the_contract_is_stored(sinks: SinkSetup) -> None:
    """Two DAGs publish to the dataset that the platform declares, without its columns."""
    producer = sinks.producer("alert_events")
    (dataset,) = {
        dataset["dataset_uuid"]: dataset
        for made in (producer, sinks.producer("alert_events"))
        for dataset in [deploy_shipped(made)]
    }.values()
    record = {
        "org_id": "00000000-0000-0000-0000-000000000001",
        "dedupe_key": "job:10143:123",
        "severity": "warning",
        "payload": {"msg": "..."},
        "created_at": "2025-12-27T12:00:00Z",
    }
    sinks.publish(producer.attempt("one"), [record])
    sinks.drain()
    table = hot_table(UUID(dataset["dataset_uuid"]), UUID(dataset["dataset_version"]))
    with psycopg.connect(sinks.data_dsn) as conn:
        rows = conn.execute(f'SELECT payload, created_at, org_id FROM "{table}"').fetchall()
    created = datetime(2025, 12, 27, 12, tzinfo=UTC)
    assert rows == [(record["payload"], created, record["org_id"])]
