"""`trace verify` and `trace certify` against a running Dispatcher, a chain, and damaged files."""

import json
import shutil
from collections.abc import Generator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import Result
from typer.testing import CliRunner

from support.chain.faulty_node import Calls, FaultyNode
from support.dags.rollouts import RolloutDag
from support.lifecycle.lifecycle import Attempt, Bench, bench, run_concurrently
from support.services.dispatcher import Live, Secrets, live
from support.services.postgres import Templates, copied
from support.waiting import eventually
from trace_etl.api.task.payload import Storage
from trace_etl.cli.main import app
from trace_etl.devtools.devchain import DevChain
from trace_etl.devtools.devchain.rpc.server import start_server
from trace_etl.lite import connection
from trace_etl.lite.home import Home
from trace_etl.objects.opening import open_store
from trace_etl.spark.evm.fetch import RangeReader, RpcSource
from trace_etl.spark.evm.tables import SCHEMAS, build_table
from trace_etl.spark.io.parquet import open_parquet_file
from trace_etl.spark.io.writers import OutputFile, mark_success

PARTITIONS = 3


@dataclass(frozen=True)
class Proven:
    """A stack with one dataset of three partitions, read from a chain."""

    home: Path
    bench: Bench
    dataset: str
    rpc_url: str
    liar: FaultyNode
    """An endpoint that drops logs. It was asked first for the first partition."""
    directory: Path
    """Scratch space."""

    def trace(self, *words: str) -> Result:
        return CliRunner().invoke(app, [*words, "--home", str(self.home)])

    def report(self, *words: str) -> tuple[int, dict[str, Any]]:
        result = self.trace("verify", *words, "--json")
        return result.exit_code, json.loads(result.stdout)

    def problems(self, *words: str) -> list[tuple[str | None, str]]:
        code, report = self.report(*words)
        assert (code, report["is_valid"]) == ((1, False) if report["problems"] else (0, True))
        return [(p["partition_key"], p["check"]) for p in report["problems"]]

    def files(self) -> list[Path]:
        return sorted((self.home / "objects").rglob("out_*.parquet"))

    def certificates(self, dataset: str) -> list[dict[str, Any]]:
        reply = self.bench.user.get(f"/v1/datasets/{dataset}/certificates")
        assert reply.status_code == 200, reply.text
        return reply.json()["items"]


def publish(
    made: Bench, attempt: Attempt, *urls: str, rows: int | None = None, is_compaction: bool = False
) -> None:
    """Write the logs of the attempt's blocks as an operator does, and commit them.

    `rows` is how many rows of each batch are written; None: all. A compaction verifies nothing itself.
    """
    start, end = attempt.scope["start"], attempt.scope["end"]
    storage = Storage.model_validate(attempt.output["storage_ref"])
    store = open_store(made.live.cfg.objects_url)
    target = OutputFile(store, storage, f"out_{start}_{end}.parquet")
    with RangeReader(RpcSource(urls), ("logs",)) as reader:
        chain_id = reader.chain_id()
        with open_parquet_file(store, target.key, SCHEMAS["logs"]) as file:
            for chunk in reader.chunks(start, end):
                file.write(build_table("logs", chunk, chain_id)[:rows])
            written = file.finish()
        verified = None if is_compaction else reader.verified()
        mark_success(target, written, SCHEMAS["logs"], verified)
    published = {
        "dataset_uuid": attempt.output["dataset_uuid"],
        "dataset_version": attempt.output["dataset_version"],
        "storage_ref": attempt.output["storage_ref"],
        "range_start": start,
        "range_end": end,
    }
    reply = made.complete(attempt, datasets_published=[published], events=[attempt.event()])
    assert reply.status_code == 200, reply.text


def make_home(running: Live, secrets: Secrets, home: Path) -> None:
    (home / "keys").mkdir()
    (home / "keys" / "user").symlink_to(secrets.directory / "user")
    described = connection.describe(
        Home(home), api=running.cfg.api_port, internal=1, query=1, pid=1
    )
    token = secrets.directory / "user.jwt"
    fields = {**vars(described), "ca": str(secrets.ca), "user_token": str(token)}
    connection.write(home / "connection.json", connection.StackConnection(**fields))


@pytest.fixture(scope="module")
def proven(
    templates: Templates, secrets: Secrets, tmp_path_factory: pytest.TempPathFactory
) -> Generator[Proven]:
    home, scratch = tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("copies")
    chain = DevChain(seed=5, length=40, initial=40)
    with (
        start_server(chain, "127.0.0.1", 0) as node,
        FaultyNode(node.url, after=drop_logs) as liar,
        copied(templates) as dsns,
        live(secrets, dsns, home / "objects") as running,
        bench(running) as made,
    ):
        make_home(running, secrets, home)
        dag = made.dag()
        for n, task_id in enumerate(made.tasks(PARTITIONS, dag=dag)):
            publish(made, made.claimed(task_id), *([] if n else [liar.url]), node.url)
        yield Proven(home, made, dag.published, node.url, liar, scratch)


def drop_logs(calls: Calls, items: Calls) -> Calls:
    for call, item in zip(calls, items, strict=True):
        if call["method"] == "eth_getBlockReceipts":
            for receipt in item["result"]:
                receipt["logs"] = []
    return items


def flip_byte(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


def test_a_sound_dataset_is_valid_also_against_its_chain(proven: Proven) -> None:
    code, report = proven.report(proven.dataset, "--against", proven.rpc_url, "--sample", "3")
    assert (code, report["problems"]) == (0, [])
    assert (report["partitions"], report["files"]) == (PARTITIONS, PARTITIONS)
    assert report["rows"] > 0
    assert proven.problems(proven.dataset, "--range", "5-25") == []
    result = proven.trace("verify", proven.dataset)
    assert result.exit_code == 0 and "is valid: 3 partitions" in result.stdout


def test_rejected_answers_are_named_and_counted(proven: Proven) -> None:
    code, report = proven.report(proven.dataset)
    assert code == 0  # the rows are those of another endpoint
    [first, *_] = report["rejected"]
    assert (first["partition_key"], first["endpoint"]) == ("0-9", proven.liar.label)
    assert (
        first["field"] in ("logsBloom", "receiptsRoot") and first["expected"] != first["received"]
    )
    assert {item["endpoint"] for item in report["rejected"]} == {proven.liar.label}
    count = len(report["rejected"])
    shown = proven.trace("verify", proven.dataset).stdout
    assert f"{proven.liar.label} ({count})" in shown
    metrics = proven.bench.user.get("/metrics").text
    assert f'trace_rejected_answers_total{{outcome="corrected"}} {count:.1f}' in metrics


def list_positions(file: Path) -> dict[str, int]:
    """A position in each kind of content of a Parquet file."""
    metadata, size = pq.read_metadata(file), file.stat().st_size
    group = metadata.row_group(0)
    first, last = group.column(0), group.column(group.num_columns - 1)
    pages_end = last.data_page_offset + last.total_compressed_size
    footer = size - 8 - metadata.serialized_size
    assert 4 < first.data_page_offset < pages_end <= footer
    return {
        "magic bytes": 0,
        "header of the first page": 4,
        "header of a data page": first.data_page_offset,
        "rows": (first.data_page_offset + pages_end) // 2,
        "page index": footer - 1,
        "footer": footer,
        "middle of the footer": (footer + size) // 2,
        "length of the footer": size - 8,
        "last byte": size - 1,
    }


def test_a_changed_byte_anywhere_in_any_file_is_found(proven: Proven) -> None:
    for file, key in zip(proven.files(), ("0-9", "10-19", "20-29"), strict=True):
        original = file.read_bytes()
        for content, position in list_positions(file).items():
            flip_byte(file, position)
            found = proven.problems(proven.dataset, "--range", key)
            assert (key, "file") in found and {key for key, _ in found} == {key}, content
            file.write_bytes(original)
    assert proven.problems(proven.dataset) == []


def test_missing_and_additional_files_and_gaps_are_named(proven: Proven) -> None:
    file = proven.files()[0]
    other = file.with_name("out_more.parquet")
    shutil.copy(file, other)
    file.rename(hidden := proven.directory / "hidden.parquet")
    _, report = proven.report(proven.dataset)
    texts = [p["problem"] for p in report["problems"]]
    assert any("out_0_9.parquet: the file is missing" in text for text in texts)
    assert any("out_more.parquet: the certificate does not list it" in text for text in texts)
    hidden.rename(file)
    other.unlink()
    assert proven.problems(proven.dataset, "--range", "0-35") == [(None, "coverage")]


def test_a_wrong_certificate_is_found_in_rows_links_and_on_the_chain(proven: Proven) -> None:
    """Change what Postgres holds, as a marker with false hashes would."""
    [row] = proven.bench.rows(
        "SELECT content_hash, verified FROM partitions WHERE partition_key = '20-29'"
    )
    [first] = proven.bench.rows("SELECT files FROM partitions WHERE partition_key = '0-9'")
    update = "UPDATE partitions SET content_hash = %s, verified = %s WHERE partition_key = '20-29'"
    wrong = {**row["verified"], "first_parent_hash": "0x" + "11" * 32}
    proven.bench.rows(update, "rows.v1:" + "0" * 64, json.dumps(wrong))
    found = proven.problems(proven.dataset, "--against", proven.rpc_url, "--sample", "3")
    assert sorted(found) == [("20-29", "chain"), ("20-29", "link"), ("20-29", "rows")]
    proven.bench.rows(update, row["content_hash"], json.dumps(row["verified"]))
    proven.bench.rows("UPDATE partitions SET files = NULL WHERE partition_key = '0-9'")
    assert proven.problems(proven.dataset, "--range", "0-9") == [("0-9", "certificate")]
    restore = "UPDATE partitions SET files = %s WHERE partition_key = '0-9'"
    proven.bench.rows(restore, json.dumps(first["files"]))
    assert proven.problems(proven.dataset) == []


def test_a_manifest_is_checked_offline_and_every_manipulation_is_found(proven: Proven) -> None:
    manifest, keys = proven.directory / "logs.jws", proven.directory / "keys.json"
    copy = proven.directory / "copy"
    done = proven.trace("certify", proven.dataset, "--output", str(manifest))
    assert done.exit_code == 0 and "3 partitions" in done.stdout
    keys.write_text(proven.trace("keys", "certificates").stdout)
    shutil.copytree(proven.home / "objects", copy)
    nowhere = ["--home", str(proven.directory / "no-stack")]

    def check(*words: str) -> Result:
        options = ["verify", "--manifest", str(manifest), "--key", str(keys), "--files", str(copy)]
        return CliRunner().invoke(app, [*options, *words, *nowhere])

    assert check().exit_code == 0

    damaged = sorted(copy.rglob("out_0_9.parquet"))[0]
    original = damaged.read_bytes()
    # The same rows in other bytes: the content hash matches, the file does not.
    pq.write_table(pq.read_table(damaged), damaged)
    report = json.loads(check("--json").stdout)
    assert [(p["partition_key"], p["check"]) for p in report["problems"]] == [("0-9", "file")]
    damaged.unlink()
    (copy / "out_900_909.parquet").write_bytes(original)
    texts = [p["problem"] for p in json.loads(check("--json").stdout)["problems"]]
    assert any("out_0_9.parquet: the file is missing" in text for text in texts)
    assert any("out_900_909.parquet: the manifest does not list it" in text for text in texts)
    (copy / "out_900_909.parquet").unlink()
    damaged.write_bytes(original)
    assert check().exit_code == 0

    text = manifest.read_text()
    head, body, signature = text.strip().split(".")
    for changed in (
        f"{head}.{body[:-8]}AAAA{body[-4:]}.{signature}",
        f"{head}.{body}.{signature[:-6]}AAAAAA",
        f"{head}.{body}.",
        "no manifest",
    ):
        manifest.write_text(changed)
        result = check()
        assert result.exit_code == 1 and str(manifest) in result.stderr, changed[-20:]
    manifest.write_text(text)
    keys.write_text('{"keys": []}')
    assert "not among the given keys" in check().stderr


def test_a_rebuilt_sample_must_have_the_same_rows(proven: Proven) -> None:
    def rebuild(rows: int | None) -> None:
        query = {"job": "work", "status": "Queued"}
        (task,) = eventually(
            lambda: proven.bench.user.get("/v1/tasks", params=query).json()["items"],
            "the rebuild is queued",
        )
        publish(proven.bench, proven.bench.claimed(task["task_id"]), proven.rpc_url, rows=rows)

    def verify() -> list[tuple[str | None, str]]:
        return proven.problems(proven.dataset, "--range", "0-9", "--rebuild-sample", "1")

    # The same rows, fewer rows, and the first ones again.
    for rows, checks in [(None, []), (1, ["rebuild"]), (None, ["rebuild"])]:
        before = proven.certificates(proven.dataset)
        problems, _ = run_concurrently([verify, partial(rebuild, rows)])
        assert [check for _, check in problems] == checks
        # The certificate is that of the replacement, and the others are unchanged.
        after = proven.certificates(proven.dataset)
        assert proven.problems(proven.dataset) == [] and after[1:] == before[1:]
        assert after[0]["storage_ref"] != before[0]["storage_ref"]
        chain = proven.problems(proven.dataset, "--against", proven.rpc_url, "--sample", "3")
        assert chain == ([] if rows is None else [("0-9", "chain")])


_COMPACTION = """
name: packed
jobs:
  - {name: request, source: {kind: manual}, outputs: [ranges]}
  - {name: split, operator: range_splitter, inputs: [{from: {job: request}}], outputs: [ranges],
     config: {size: 10}}
  - {name: work, operator: sql, inputs: [{from: {job: split}}], outputs: [out],
     config: {sql: "SELECT 1 FROM ranges"}}
  - {name: wide, operator: range_aggregator, inputs: [{from: {job: work}}], outputs: [ranges],
     config: {size: 20}}
  - {name: compact, operator: parquet_compact, outputs: [out], config: {size: 20},
     inputs: [{from: {job: wide}}, {from: {job: work}}]}
publish:
  - {name: packed_small, from: {job: work}}
  - {name: packed_large, from: {job: compact}}
"""


def list_queued(made: Bench, dag: str, job: str) -> dict[str, str]:
    """The queued tasks of a job by partition."""
    made.live.drain()
    query = {"dag": dag, "job": job, "status": "Queued"}
    items = made.user.get("/v1/tasks", params=query).json()["items"]
    return {item["partition_key"]: item["task_id"] for item in items}


def test_a_compaction_has_a_certificate_that_its_files_and_the_chain_match(proven: Proven) -> None:
    made = proven.bench
    assert made.user.post("/v1/dags", json={"text": _COMPACTION}).status_code == 200
    trigger = {"dag": "packed", "job": "request", "start": 0, "end": 19}
    assert made.user.post("/v1/triggers", json=trigger).status_code == 200
    for task_id in list_queued(made, "packed", "work").values():
        publish(made, made.claimed(task_id), proven.rpc_url)
    task_id = list_queued(made, "packed", "compact")["0-19"]
    publish(made, made.claimed(task_id), proven.rpc_url, is_compaction=True)

    against = ("--against", proven.rpc_url)
    code, report = proven.report("packed_large", *against)
    assert (code, report["problems"], report["partitions"]) == (0, [], 1)
    assert proven.report("packed_small", *against)[1]["rows"] == report["rows"] > 0
    [large] = proven.certificates("packed_large")
    first, second = proven.certificates("packed_small")
    for field, part in (("first_parent_hash", first), ("first_hash", first), ("last_hash", second)):
        assert large["verified"][field] == part["verified"][field]
    file = proven.home / "objects" / large["storage_ref"]["bucket"] / large["storage_ref"]["prefix"]
    flip_byte(file / large["files"][0]["name"], 1000)
    assert ("0-19", "file") in proven.problems("packed_large")
    assert proven.problems("packed_small") == []


def test_a_rollback_brings_back_the_certificates_and_the_files_that_match_them(
    proven: Proven,
) -> None:
    dag = RolloutDag(proven.bench)
    out = f"{dag.name}_out"

    def build(rows: int | None = None) -> list[dict[str, Any]]:
        for task_id in list_queued(proven.bench, dag.name, "work").values():
            publish(proven.bench, proven.bench.claimed(task_id), proven.rpc_url, rows=rows)
        dag.finish_all("after")
        dag.swap()
        assert proven.problems(out, "--range", "0-29") == []
        return proven.certificates(out)

    dag.deploy()
    assert proven.problems(out) == [(None, "coverage")]  # nothing to verify is not valid
    dag.trigger(0, 29)
    before = build()
    dag.deploy(column=2)
    assert proven.certificates(out) == before
    after = build(rows=1)
    assert not {c["content_hash"] for c in after} & {c["content_hash"] for c in before}
    assert dag.roll_back().status_code == 200
    assert proven.problems(out, "--against", proven.rpc_url) == []
    assert proven.certificates(out) == before
