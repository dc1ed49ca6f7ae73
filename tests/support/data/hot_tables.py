"""Hot tables of a followed chain and a buffered dataset, and tasks that read them."""

import io
from collections.abc import Generator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from support.data.buffered import write_rows
from support.services.postgres import Templates, copied
from support.spark.following import catch_up, new_stream
from support.spark.spark_tasks import range_scope, select, task
from trace_etl.api.task.payload import Scope, TaskInput, TaskPayload
from trace_etl.data import buffers, connection, migrations
from trace_etl.model.storage import hot_table
from trace_etl.spark.io import hot_tables as hot
from trace_etl.spark.runner import SparkRunner

InputSpec = dict[str, Any]


@dataclass(frozen=True)
class HotTables:
    """A followed chain's logs and blocks, and a buffered dataset's `people` in three batches."""

    dsn: str
    inputs: dict[str, InputSpec]


@contextmanager
def hot_tables(templates: Templates, rpc_url: str) -> Generator[HotTables]:
    with copied(templates) as dsns:
        migrations.apply(dsns.data)
        stream = new_stream(dsns.data)
        with stream.attempt(1, rpc_url) as follower:
            catch_up(follower)
        inputs = {
            output.kind: _input(f"hot_{output.kind}", output.dataset_uuid, output.dataset_version)
            for output in stream.outputs
        }
        yield HotTables(dsns.data, {**inputs, "people": _people(dsns.data)})


def _people(dsn: str) -> InputSpec:
    dataset, version = uuid4(), uuid4()
    columns = (("id", "string", False), ("n", "long", True))
    shape = buffers.BufferTable(hot_table(dataset, version), version, columns, ("id",))
    batches = [[("ann", 1), ("bob", 1)], [("bob", 2), ("cid", None)], [("dan", 3)]]
    with connection.connect(dsn) as conn:
        for number, rows in enumerate(batches, 1):
            with connection.transaction(conn):
                write_rows(conn, shape, number, rows)
    return _input("people", dataset, version)


def _input(name: str, dataset: object, version: object) -> InputSpec:
    ids = {"dataset_uuid": str(dataset), "dataset_version": str(version)}
    return {"input_index": 0, "name": name, **ids}


def hot_tasks(inputs: dict[str, InputSpec], where: InputSpec) -> dict[str, TaskPayload]:
    """Return tasks by what they test. `append` writes a hot table that `read_appended` reads."""
    append = select(
        "SELECT block_number, block_hash, gas_used FROM hot_blocks",
        inputs["blocks"],
        scope=range_scope(0, 9),
    )
    [output] = append.outputs
    output = output.model_copy(update={"update_strategy": "append", "unique_key": ["block_number"]})
    again = _input("appended", output.dataset_uuid, output.dataset_version)
    return {
        "filtered": select(
            "SELECT * FROM hot_logs ORDER BY block_number, log_index",
            {**inputs["logs"], "where": where},
            scope=range_scope(5, 20),
        ),
        "newer": select(
            "SELECT * FROM hot_blocks ORDER BY block_number",
            inputs["blocks"],
            scope={"after": 30, "cursor": 33},
        ),
        "decoded": task(
            "erc20_transfers", {}, ["answer"], scope=range_scope(5, 20), inputs=[inputs["logs"]]
        ),
        "buffered": select(
            "SELECT id, n FROM people ORDER BY id",
            inputs["people"],
            scope={"after": 1, "cursor": 2},
        ),
        "append": append.model_copy(update={"outputs": [output]}),
        "read_appended": select(
            "SELECT * FROM appended ORDER BY block_number", again, scope=range_scope(3, 5)
        ),
    }


def filtered_plan(runner: SparkRunner, dsn: str, spec: InputSpec) -> str:
    """Return the plan of a read of a hot table with a filter."""
    output = io.StringIO()
    read = TaskInput.model_validate(spec)
    frame = hot.load(runner.session.get(), read, Scope(start=5, end=20), dsn).frame
    with redirect_stdout(output):
        frame.explain(extended=True)
    return output.getvalue()
