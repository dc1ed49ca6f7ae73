"""The partition of a publication: its range, its key, or the scope of its task."""

import json
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from support.lifecycle.lifecycle import Attempt, Bench

_DAG = """
name: {name}
jobs:
  - {{name: request, activation: source, source: {{kind: manual}}, outputs: [ranges]}}
  - name: regions
    operator: sql
    inputs: [{{from: {{job: request}}}}]
    outputs: [region]
    config: {{sql: "SELECT 1 FROM ranges"}}
  - name: sales
    operator: sql
    inputs: [{{from: {{job: regions}}}}]
    outputs: [sale]
    config: {{sql: "SELECT 1 FROM region"}}
  - name: totals
    operator: sql
    inputs: [{{from: {{job: sales}}}}]
    outputs: [total]
    config: {{sql: "SELECT 1 FROM sale"}}
publish:
  - {{name: {name}_sales, from: {{job: sales}}}}
"""


class Regions:
    """A DAG whose jobs `sales` and `totals` have one partition per region."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.name = f"t_{uuid4().hex[:12]}"
        self.published = f"{self.name}_sales"
        text = _DAG.format(name=self.name)
        assert bench.user.post("/v1/dags", json={"text": text}).status_code == 200
        body = {"dag": self.name, "job": "request", "start": 0, "end": 9}
        assert bench.user.post("/v1/triggers", json=body).status_code == 200
        bench.live.drain()
        self.producer = self.claim("regions", "0-9")

    def announce(self, *keys: str) -> None:
        events = [self.producer.event(partition_key=key) for key in keys]
        reply = self.bench.events(self.producer, *events)
        assert reply.status_code == 200, reply.text
        self.bench.live.drain()

    def queued(self, job: str) -> dict[str, str]:
        query = {"dag": self.name, "job": job, "status": "Queued", "limit": 1000}
        items = self.bench.user.get("/v1/tasks", params=query).json()["items"]
        return {item["partition_key"]: item["task_id"] for item in items}

    def claim(self, job: str, key: str) -> Attempt:
        return self.bench.claimed(self.queued(job)[key])

    def complete(self, attempt: Attempt, **fields: Any) -> None:
        published = publication(self.bench, attempt, **fields)
        reply = self.bench.complete(attempt, datasets_published=[published])
        assert reply.status_code == 200, reply.text
        self.bench.live.drain()

    def invalidate(self, key: str) -> None:
        path = f"/v1/datasets/{self.published}/invalidations"
        reply = self.bench.user.post(path, json={"partition_key": key})
        assert reply.status_code == 200, reply.text
        self.bench.live.drain()

    def make(self, job: str, *keys: str) -> None:
        for key in keys:
            self.complete(self.claim(job, key))


def publication(bench: Bench, attempt: Attempt, rows: int = 3, **fields: Any) -> dict[str, Any]:
    """Write the attempt's output. Returns a publication that says nothing about its scope."""
    published = bench.write_output(attempt, rows)
    return {k: v for k, v in published.items() if not k.startswith("range_")} | fields


def keys_of(bench: Bench, version: str) -> list[tuple[str, int | None, int | None]]:
    query = "SELECT * FROM partitions WHERE dataset_version = %s ORDER BY partition_key"
    found = bench.rows(query, version)
    return [(row["partition_key"], row["range_start"], row["range_end"]) for row in found]


@pytest.fixture(scope="module")
def regions(shared: Bench) -> Regions:
    """Sales of three regions, and their totals."""
    made = Regions(shared)
    made.announce("eu", "us", "asia/east")
    made.make("sales", "eu", "us", "asia/east")
    made.make("totals", "eu", "us", "asia/east")
    return made


def test_publications_without_a_range_get_the_blocks_of_their_tasks(shared: Bench) -> None:
    first, second = (shared.claimed(task_id) for task_id in shared.tasks(2))
    for attempt, rows in ((first, 1), (second, 2)):
        published = publication(shared, attempt, rows)
        assert shared.complete(attempt, datasets_published=[published]).status_code == 200
    version = first.output["dataset_version"]
    assert keys_of(shared, version) == [("0-9", 0, 9), ("10-19", 10, 19)]
    rows = shared.rows("SELECT row_count FROM partitions WHERE dataset_version = %s", version)
    assert sorted(row["row_count"] for row in rows) == [1, 2]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"partition_key": "0-9"}, ("0-9", 0, 9)),
        ({"partition_key": "2-7"}, ("2-7", 2, 7)),
        ({"partition_key": "0-9", "range_start": 0, "range_end": 9}, ("0-9", 0, 9)),
        ({"partition_key": "0-8", "range_start": 0, "range_end": 9}, 422),
        ({"partition_key": ""}, 422),
        ({"partition_key": "eu"}, 403),
        ({"partition_key": "00-09"}, 403),
        ({"partition_key": "9-0"}, 403),
        ({"partition_key": "10-19"}, 403),
    ],
)
def test_a_publication_with_a_key_is_inside_the_blocks_of_its_task(
    shared: Bench, fields: dict[str, Any], expected: tuple[str, int, int] | int
) -> None:
    attempt = shared.attempt()
    reply = shared.complete(attempt, datasets_published=[publication(shared, attempt, **fields)])
    if isinstance(expected, int):
        assert reply.status_code == expected, reply.text
        assert shared.status(attempt.task_id) == "Running"
    else:
        assert reply.status_code == 200, reply.text
        assert keys_of(shared, attempt.output["dataset_version"]) == [expected]


def test_partitions_with_keys_stay_separate_in_the_commit_and_in_the_pins(
    regions: Regions,
) -> None:
    bench = regions.bench
    (version,) = bench.rows(
        "SELECT dataset_version::text FROM publications JOIN datasets USING (dataset_uuid) "
        "WHERE name = %s",
        regions.published,
    )
    assert keys_of(bench, version["dataset_version"]) == [
        ("asia/east", None, None),
        ("eu", None, None),
        ("us", None, None),
    ]
    pins = bench.rows(
        "SELECT t.partition_key, l.input_key FROM partition_inputs l JOIN tasks t USING (task_id) "
        "WHERE l.input_version = %s ORDER BY 1",
        version["dataset_version"],
    )
    assert [tuple(row.values()) for row in pins] == [(k, k) for k in ("asia/east", "eu", "us")]


def test_a_task_with_a_key_reads_only_the_partition_with_its_key(shared: Bench) -> None:
    regions = Regions(shared)
    regions.announce("eu", "us", "asia")
    regions.make("sales", "eu", "us", "asia")
    attempt = regions.claim("totals", "us")
    (given,) = attempt.claimed["task"]["inputs"]
    assert [part["partition_key"] for part in given["partitions"]] == ["us"]
    assert shared.fetch(attempt.task_id).json()["task"]["inputs"] == [given]


def test_the_lineage_of_a_key_names_only_that_key(regions: Regions) -> None:
    user = regions.bench.user
    for key in ("eu", "asia/east"):
        reply = user.get(f"/v1/datasets/{regions.published}/lineage/{key}")
        assert reply.status_code == 200, reply.text
        below = [(item["job"], item["partition_key"]) for item in reply.json()["down"]]
        assert below == [("totals", key)]


def test_a_rewrite_of_one_key_runs_only_the_consumer_of_that_key(regions: Regions) -> None:
    regions.invalidate("us")
    assert list(regions.queued("totals")) == ["us"]
    regions.make("totals", "us")


def test_a_running_task_of_another_key_does_not_run_again(shared: Bench) -> None:
    regions = Regions(shared)
    regions.announce("eu", "us")
    regions.make("sales", "eu", "us")
    running = regions.claim("totals", "eu")
    regions.make("totals", "us")
    regions.invalidate("us")
    assert list(regions.queued("totals")) == ["us"]
    regions.complete(running)
    assert list(regions.queued("totals")) == ["us"]


def test_a_task_with_a_key_cannot_publish_another_partition(shared: Bench) -> None:
    regions = Regions(shared)
    regions.announce("eu")
    attempt = regions.claim("sales", "eu")
    for fields in ({"partition_key": "us"}, {"range_start": 0, "range_end": 9}):
        published = publication(shared, attempt, **fields)
        assert shared.complete(attempt, datasets_published=[published]).status_code == 403
    regions.complete(attempt, partition_key="eu")


def test_an_event_whose_key_is_a_range_has_that_range(shared: Bench) -> None:
    regions = Regions(shared)
    regions.announce("20-29", "020-29")
    plain, padded = (regions.claim("sales", key).scope for key in ("20-29", "020-29"))
    assert (plain["start"], plain["end"]) == (20, 29)
    assert (padded["start"], padded["end"]) == (None, None)


def test_a_publication_without_an_event_reaches_consumers_immediately(shared: Bench) -> None:
    dag = shared.dag()
    attempt = shared.attempt(dag=dag)
    published = publication(shared, attempt)
    for _ in range(2):  # a repeated completion announces nothing new
        assert shared.complete(attempt, datasets_published=[published]).status_code == 200
        shared.live.drain()
    assert len(shared.waiting(dag, "after")) == 1
    (event,) = shared.rows("SELECT * FROM events WHERE producer_task_id = %s", attempt.task_id)
    assert event["scope_key"] == "p:0-9"


def test_a_dataset_that_the_completion_announces_itself_gets_no_second_event(
    shared: Bench,
) -> None:
    attempt = shared.attempt()
    published = publication(shared, attempt)
    events = [attempt.event(cursor=9)]
    reply = shared.complete(attempt, datasets_published=[published], events=events)
    assert reply.status_code == 200, reply.text
    query = "SELECT scope_key FROM events WHERE producer_task_id = %s"
    assert shared.rows(query, attempt.task_id) == [{"scope_key": "c:9"}]


# --- the success marker -----------------------------------------------------------------------


def rewrite_marker(prefix: Path, **changes: Any) -> None:
    marker = json.loads((prefix / "_SUCCESS").read_text())
    files = changes.pop("file", None)
    if files is not None:
        marker["files"] = [marker["files"][0] | files]
    (prefix / "_SUCCESS").write_text(json.dumps(marker | changes))


def link_marker(prefix: Path, elsewhere: Path) -> None:
    (prefix / "_SUCCESS").unlink()
    (prefix / "_SUCCESS").symlink_to(elsewhere / "_SUCCESS")


def link_prefix(prefix: Path, elsewhere: Path) -> None:
    prefix.rename(prefix.with_name("moved"))
    prefix.symlink_to(elsewhere)


def link_file(prefix: Path, elsewhere: Path) -> None:
    (file,) = prefix.glob("*.parquet")
    (other,) = elsewhere.glob("*.parquet")
    file.unlink()
    file.symlink_to(other)


def rename_file(prefix: Path, suffix: str, content: bytes = b"a\n1\n2\n3\n4\n") -> None:
    (file,) = prefix.glob("*.parquet")
    other = file.with_suffix(suffix)
    other.write_bytes(content)
    changes = {"name": other.name, "bytes": len(content), "rows": 4}
    rewrite_marker(prefix, file=changes, bytes=len(content), rows=4)


def overwrite(prefix: Path, content: bytes) -> None:
    (file,) = prefix.glob("*.parquet")
    file.write_bytes(content)
    rewrite_marker(prefix, file={"bytes": len(content)}, bytes=len(content))


_FALSE_MARKERS = {
    "a file outside": lambda mine, _: rewrite_marker(mine, file={"name": "../2/out.parquet"}),
    "a parent": lambda mine, _: rewrite_marker(mine, file={"name": ".."}),
    "an absolute path": lambda mine, _: rewrite_marker(mine, file={"name": "/etc/passwd"}),
    "a NUL": lambda mine, _: rewrite_marker(mine, file={"name": "a\x00b"}),
    "a long name": lambda mine, _: rewrite_marker(mine, file={"name": "x" * 5000}),
    "a directory": lambda mine, _: (
        (mine / "dir").mkdir(),
        rewrite_marker(mine, file={"name": "dir"}),
    ),
    "a missing file": lambda mine, _: rewrite_marker(mine, file={"name": "missing.parquet"}),
    "a wrong size": lambda mine, _: rewrite_marker(mine, file={"bytes": 7}, bytes=7),
    "wrong rows of a file": lambda mine, _: rewrite_marker(mine, file={"rows": 4}, rows=4),
    "wrong rows in all": lambda mine, _: rewrite_marker(mine, rows=4),
    "wrong bytes in all": lambda mine, _: rewrite_marker(mine, bytes=4),
    "rows without files": lambda mine, _: rewrite_marker(mine, files=[]),
    "not Parquet": lambda mine, _: overwrite(mine, b"rows"),
    "text files": lambda mine, _: rename_file(mine, ".csv"),
    "a name without a suffix": lambda mine, _: rename_file(mine, ""),
    "a column without a type": lambda mine, _: rewrite_marker(mine, schema=[{"name": "a"}]),
    "a column without a name": lambda mine, _: rewrite_marker(mine, schema=[{"type": "int"}]),
    "a NUL in a column": lambda mine, _: rewrite_marker(
        mine, schema=[{"name": "a\x00b", "type": "int"}]
    ),
    "a NUL in a field": lambda mine, _: rewrite_marker(
        mine, schema=[{"name": "a", "type": "int", "\x00": ""}]
    ),
    "a deep type": lambda mine, _: rewrite_marker(
        mine, schema=[{"name": "a", "type": "array<" * 5000 + "int" + ">" * 5000}]
    ),
    "a hostile footer": lambda mine, _: overwrite(mine, b"\x1c" * 99 + b"\x63\0\0\0PAR1"),
    "a footer of 4 GB": lambda mine, _: overwrite(mine, b"\xff" * 4 + b"PAR1"),
    "a link to another marker": link_marker,
    "a link to another prefix": link_prefix,
    "a link to another file": link_file,
}


@pytest.mark.parametrize("name", _FALSE_MARKERS)
def test_a_false_marker_is_refused_and_the_attempt_continues(shared: Bench, name: str) -> None:
    attempt, other = (shared.claimed(task_id) for task_id in shared.tasks(2))
    published = publication(shared, attempt)
    publication(shared, other)
    _FALSE_MARKERS[name](shared.prefix(attempt), shared.prefix(other))
    reply = shared.complete(attempt, datasets_published=[published], events=[attempt.event()])
    assert (reply.status_code, reply.json()["code"]) == (422, "invalid"), reply.text
    assert reply.json()["errors"][0]["field"] == "datasets_published.0.storage_ref"
    assert shared.status(attempt.task_id) == "Running"
    assert keys_of(shared, attempt.output["dataset_version"]) == []


# --- text files -------------------------------------------------------------------------------

_EXPORT = """
name: {name}
jobs:
  - {{name: request, activation: source, source: {{kind: manual}}, outputs: [ranges]}}
  - name: export
    operator: query
    inputs: [{{from: {{job: request}}}}]
    outputs: [file]
    config: {{sql: "SELECT 1 FROM ranges", format: {form}}}
"""


def export_attempt(bench: Bench, form: str) -> Attempt:
    name = f"t_{uuid4().hex[:12]}"
    text = _EXPORT.format(name=name, form=form)
    assert bench.user.post("/v1/dags", json={"text": text}).status_code == 200
    body = {"dag": name, "job": "request", "start": 0, "end": 9}
    assert bench.user.post("/v1/triggers", json=body).status_code == 200
    bench.live.drain()
    query = {"dag": name, "job": "export", "status": "Queued"}
    (task,) = bench.user.get("/v1/tasks", params=query).json()["items"]
    return bench.claimed(task["task_id"])


def write_text_output(
    bench: Bench, attempt: Attempt, content: bytes, rows: int, *, name: str
) -> dict[str, Any]:
    prefix = bench.prefix(attempt)
    prefix.mkdir(parents=True)
    (prefix / name).write_bytes(content)
    file = {"name": name, "rows": rows, "bytes": len(content)}
    marker = {"files": [file], "rows": rows, "bytes": len(content), "schema": []}
    (prefix / "_SUCCESS").write_text(json.dumps(marker))
    names = ("dataset_uuid", "dataset_version", "storage_ref")
    return {name: attempt.output[name] for name in names}


_LARGE = b'"a ""quoted""\nvalue",2\n' * 40_000  # longer than one read, and quotes cross its end
_TEXT_FILES = [
    ("csv", b'"a","b"\n1,2\n"x ""y""\nz",\n', 2),
    ("csv", b'"a","b"\r\n1,2\r\n3,4', 2),
    ("csv", b'"a\nb"\n', 0),
    ("csv", b'"a"\n\n\n', 2),
    ("csv", b"", 0),
    ("csv", b"a,b\n" + _LARGE, 40_000),
    ("json", b'{"a":"\\n"}\n{"a":"\\""}\n', 2),
    ("json", b'{"a":1}', 1),
    ("json", b"", 0),
    ("json", b'{"a":1}\n' * 50_000, 50_000),
]


@pytest.mark.parametrize(("form", "content", "rows"), _TEXT_FILES, ids=range(len(_TEXT_FILES)))
def test_the_rows_of_text_files_are_counted(
    shared: Bench, form: str, content: bytes, rows: int
) -> None:
    attempt = export_attempt(shared, form)
    assert attempt.output["storage_ref"]["glob"] == f"*.{form}"
    published = write_text_output(shared, attempt, content, rows + 1, name=f"file.{form}")
    reply = shared.complete(attempt, datasets_published=[published])
    assert reply.status_code == 422, reply.text
    assert f"has {rows} rows, but its marker says {rows + 1}" in reply.text
    (marker,) = shared.prefix(attempt).glob("_SUCCESS")
    rewrite_marker(marker.parent, file={"rows": rows}, rows=rows)
    # The pattern in the request is ignored: only the format of the job counts.
    published["storage_ref"] = {**published["storage_ref"], "glob": "*.parquet"}
    reply = shared.complete(attempt, datasets_published=[published])
    assert reply.status_code == 200, reply.text
    query = "SELECT row_count, storage_ref->>'glob' AS glob FROM partitions WHERE task_id = %s"
    assert shared.rows(query, attempt.task_id) == [{"row_count": rows, "glob": f"*.{form}"}]


def test_a_text_job_cannot_publish_a_file_of_another_format(shared: Bench) -> None:
    attempt = export_attempt(shared, "csv")
    published = write_text_output(shared, attempt, b"1\n2\n", 2, name="file.json")
    reply = shared.complete(attempt, datasets_published=[published])
    assert reply.status_code == 422
    assert "lists file.json, but files of this dataset are *.csv" in reply.text
