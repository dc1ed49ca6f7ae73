"""The examples and checks of data on the whole stack."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from support.chain.chain_rows import expected
from support.services.whole_stack import (
    DATASETS,
    LAST_BLOCK,
    QUICKSTART,
    Stack,
    connect,
)
from support.waiting import eventually
from trace_etl.api.task.payload import Storage
from trace_etl.cli.client import RequestRejected
from trace_etl.devtools.devchain.chain.devchain import DevChain

NOTEBOOK = Path(__file__).parents[2] / "examples" / "notebook" / "explore.ipynb"
ERC20 = Path(__file__).parents[2] / "examples" / "erc20" / "dag.yaml"
TRANSFER = bytes.fromhex("ddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef")


def test_the_first_ranges_pass_through_the_dag_while_others_wait(calm: Stack) -> None:
    begins = {
        job: sorted(t["started_at"] for t in calm.tasks("calm") if t["job"] == job)
        for job in ("ingest", "receivers")
    }
    assert begins["receivers"][0] < begins["ingest"][-1]  # jobs take turns
    assert all(calm.rows("calm", dataset) for dataset in DATASETS)


def test_the_example_notebook_runs_in_a_jupyter_kernel(
    calm: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    import nbformat  # every test process would import Jupyter with this module
    from nbclient import NotebookClient

    notebook = nbformat.read(NOTEBOOK, as_version=4)
    names = next(cell for cell in notebook.cells if cell.cell_type == "code")
    assert 'BLOCKS, RECEIVERS = "blocks", "receivers"' in names.source
    names.source = 'BLOCKS, RECEIVERS = "calm_blocks", "calm_receivers"'
    monkeypatch.setenv("TRACE_HOME", str(calm.home))
    monkeypatch.setenv(
        "POLARS_FMT_MAX_ROWS", "1000"
    )  # other tests of this stack have many datasets
    NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    shown = [
        output["data"]["text/plain"]
        for cell in notebook.cells
        for output in cell.get("outputs", [])
        if output.output_type == "execute_result"
    ]
    assert "Gas that all transactions" in shown[1] and "calm_blocks" in shown[0]
    assert shown[3] == str(LAST_BLOCK + 1), "rows of all batches"
    assert "399" in shown[4]


def test_committed_files_are_named_after_their_range(calm: Stack) -> None:
    names = {path.name for path in (calm.home / "objects").rglob("*.parquet")}
    assert {f"logs_{n * 50}_{n * 50 + 49}.parquet" for n in range(8)} <= names


def test_an_invalid_range_and_an_unknown_job_are_refused_with_a_reason(calm: Stack) -> None:
    backwards = calm.trace("trigger", "calm", "request", "--range", "10-5")
    assert backwards.returncode != 0
    assert "must not be less than start" in backwards.stderr
    unknown = calm.trace("trigger", "calm", "unknown", "--range", "0-5")
    assert unknown.returncode != 0
    assert "unknown" in unknown.stderr


def test_an_unreachable_node_fails_the_task_with_a_clear_reason(
    stack: Stack, tmp_path: Path
) -> None:
    text = QUICKSTART.read_text().replace("name: quickstart", "name: lost", 1)
    text = text.split("\npublish:\n")[0].replace("{rpc: default}", "{rpc: nowhere}")
    file = tmp_path / "lost.yaml"
    file.write_text(text)
    assert stack.trace("deploy", "--no-check", str(file)).returncode == 0
    stack.json("trigger", "lost", "request", "--range", "0-99")

    def failed() -> list[dict[str, Any]]:
        return [t for t in stack.tasks("lost") if t["job"] == "ingest" and t["error_message"]]

    eventually(failed, "the ingest fails")
    assert "nowhere" in failed()[0]["error_message"]


CHECKED = """
name: checked
jobs:
  - {name: request, source: {kind: manual}, outputs: [ranges]}
  - name: split
    operator: range_splitter
    inputs: [{from: {job: request}}]
    outputs: [ranges]
    config: {size: 10}
  - name: ingest
    operator: cryo_ingest
    inputs: [{from: {job: split}}]
    outputs: [blocks]
    config: {rpc: default}
  - name: check
    operator: integrity_check
    inputs: [{from: {job: ingest}}]
    outputs: [findings]
    config: {table: blocks}
publish:
  - {name: checked_blocks, from: {job: ingest}}
"""


def partitions(stack: Stack, dataset: str) -> dict[str, dict[str, Any]]:
    """Return the committed partitions by key."""
    return {
        part["partition_key"]: part for part in stack.json("dataset", dataset)["partition_list"]
    }


def parquet_of(stack: Stack, partition: dict[str, Any]) -> Path:
    ref = Storage.model_validate(partition["storage_ref"])
    directory = stack.home / "objects" / ref.bucket / ref.prefix
    [file] = directory.glob("*.parquet")
    return file


def write_wrong_hash(file: Path, number: int) -> None:
    """Rewrite a valid file with a block hash that the chain does not have."""
    table = pq.ParquetFile(file).read()
    wrong = [
        bytes(32) if block == number else right
        for block, right in zip(
            table["block_number"].to_pylist(), table["block_hash"].to_pylist(), strict=True
        )
    ]
    column = table.column_names.index("block_hash")
    kind = table.schema.field(column)
    pq.write_table(table.set_column(column, kind, pa.array(wrong, kind.type)), file)


def findings(stack: Stack) -> list[list[dict[str, Any]]]:
    """Return what each check wrote, in the order of their creation."""
    checks = [task for task in stack.tasks("checked") if task["job"] == "check"]
    found: list[list[dict[str, Any]]] = []
    for check in sorted(checks, key=lambda task: task["created_at"]):
        [file] = (stack.home / "objects").rglob(f"{check['task_id']}/*/*.parquet")
        found.append(pq.ParquetFile(file).read().to_pylist())
    return found


def all_done(stack: Stack, dag: str, **wanted: int) -> bool:
    """Whether each of these jobs has that many tasks, and all tasks of the DAG are completed."""
    tasks = stack.tasks(dag)
    assert not [t for t in tasks if t["error_message"]]
    counts = {job: len([t for t in tasks if t["job"] == job]) for job in wanted}
    return counts == wanted and all(t["status"] == "Completed" for t in tasks)


def test_a_tampered_file_is_found_and_only_its_partition_is_rebuilt(
    stack: Stack, tmp_path: Path
) -> None:
    file = tmp_path / "checked.yaml"
    file.write_text(CHECKED)
    assert stack.trace("deploy", "--no-check", str(file)).returncode == 0
    stack.json("trigger", "checked", "request", "--range", "0-29")
    eventually(lambda: all_done(stack, "checked", ingest=3, check=3))
    assert findings(stack) == [[], [], []]

    before = partitions(stack, "checked_blocks")
    write_wrong_hash(parquet_of(stack, before["10-19"]), 13)
    words = ("--partition", "10-19", "--reason", "check again")  # the changed file is checked again
    stack.json("invalidate", "checked_blocks", *words)
    eventually(lambda: all_done(stack, "checked", ingest=4, check=5))

    wrong = {"block_number": 13, "problem": "other rows", "expected_rows": 1, "found_rows": 1}
    assert findings(stack)[3:] == [[wrong], []]  # the check of the rebuilt rows finds nothing
    recorded = stack.json("invalidations", "--dataset", "checked_blocks")["items"]
    reason = "integrity_check: block 13 differs from the chain; being rebuilt"
    [defect] = [one for one in recorded if one["reason"] == reason]
    assert (defect["partition_key"], defect["tasks"], defect["processed"]) == ("10-19", 1, 1)

    after = partitions(stack, "checked_blocks")
    assert after.keys() == before.keys() and len(after) == 3
    assert [key for key in after if after[key] != before[key]] == ["10-19"]
    for part in after.values():
        rows = pq.ParquetFile(parquet_of(stack, part)).read().to_pylist()
        assert rows == expected(stack.chain, part["start"], part["end"])["blocks"]


def test_history_waits_for_finality_and_has_no_block_that_a_reorganisation_replaced(
    stack: Stack, tmp_path: Path
) -> None:
    stack.deploy("final", tmp_path)
    head = stack.chain.head
    first = head - 64 - 40
    stack.json("trigger", "final", "request", "--range", f"{first}-{head}")

    def ingest_tasks() -> list[dict[str, Any]]:
        return [t for t in stack.tasks("final") if t["job"] == "ingest"]

    def waits() -> bool:
        tasks = [t for t in ingest_tasks() if t["error_code"] == "not_final" and t["retry_at"]]
        return bool(tasks) and all("is not final yet" in t["error_message"] for t in tasks)

    eventually(waits, "blocks that are not final wait, with the reason")
    assert stack.node.reorg(10) == head - 9
    stack.node.mine(64)  # now the replaced blocks are final
    eventually(lambda: all(t["status"] == "Completed" for t in ingest_tasks()))
    with connect(stack.home) as client:
        sql = "SELECT block_number, block_hash FROM final_blocks ORDER BY 1"
        found = client.query(sql)["rows"]
    wanted = expected(stack.chain, first, head)["blocks"]
    assert found == [[row["block_number"], "0x" + row["block_hash"].hex()] for row in wanted]


PROVISIONAL = """
name: early
jobs:
  - {name: request, source: {kind: manual}, outputs: [ranges]}
  - {name: split, operator: range_splitter, inputs: [{from: {job: request}}], outputs: [ranges],
     config: {size: 20}}
  - {name: ingest, operator: cryo_ingest, inputs: [{from: {job: split}}], outputs: [blocks],
     config: {finality: provisional}}
  - {name: derived, operator: sql, inputs: [{from: {job: ingest}}], outputs: [hashes],
     config: {sql: "SELECT block_number, block_hash FROM blocks"}}
publish:
  - {name: early_blocks, from: {job: ingest}}
  - {name: early_hashes, from: {job: derived}}
"""


def test_provisional_blocks_are_confirmed_or_replaced_after_a_reorganisation(
    stack: Stack, tmp_path: Path
) -> None:
    file = tmp_path / "early.yaml"
    file.write_text(PROVISIONAL)
    assert stack.trace("deploy", "--no-check", str(file)).returncode == 0
    head = stack.chain.head
    final, first = head - 64, (head - 64) // 20 * 20 - 20
    stack.json("trigger", "early", "request", "--range", f"{first}-{head}")

    def marks() -> dict[str, bool]:
        with connect(stack.home) as client:
            items = client.get_all("/v1/datasets/early_blocks/certificates")["items"]
        return {item["partition_key"]: item["verified"]["provisional"] for item in items}

    def count(job: str, status: str) -> int:
        return len([t for t in stack.tasks("early") if (t["job"], t["status"]) == (job, status)])

    def changed(dataset: str, cursor: str) -> dict[str, tuple[str, str]]:
        items = stack.json("changes", dataset, "--since", cursor)["items"]
        return {i["partition_key"]: (i["kind"], i["reason"]) for i in items}

    keys = [f"{n}-{min(n + 19, head)}" for n in range(first, head + 1, 20)]
    wanted = {key: int(key.split("-")[1]) > final for key in keys}
    assert True in wanted.values() and False in wanted.values()
    eventually(lambda: count("derived", "Completed") == len(keys), "derived from early blocks")
    assert marks() == wanted
    cursors = {
        name: stack.json("changes", name, "--since", "now")["cursor"]
        for name in ("early_blocks", "early_hashes")
    }

    replaced = stack.node.reorg(30)
    stack.node.mine(64)  # now the replaced blocks are final
    eventually(lambda: not any(marks().values()), "all blocks are confirmed or replaced")
    orphaned = [key for key in keys if int(key.split("-")[1]) >= replaced]
    assert 1 < len(orphaned) < list(wanted.values()).count(True)
    eventually(lambda: count("derived", "Completed") == len(keys) + len(orphaned))
    assert count("ingest", "Completed") == len(keys) + list(wanted.values()).count(True)
    assert changed("early_blocks", cursors["early_blocks"]) == dict.fromkeys(
        orphaned, ("replaced", "reorganisation")
    )
    assert changed("early_hashes", cursors["early_hashes"]).keys() == {*orphaned}
    truth = expected(stack.chain, first, head)["blocks"]
    hashes = [[row["block_number"], "0x" + row["block_hash"].hex()] for row in truth]
    with connect(stack.home) as client:
        for name in cursors:
            sql = f"SELECT block_number, block_hash FROM {name} ORDER BY 1"
            assert client.query(sql)["rows"] == hashes, name
    verified = stack.json("verify", "early_blocks", "--against", stack.node.url)
    assert verified["partitions"] == len(keys)


def large_transfers(chain: DevChain, first: int, minimum: int) -> list[list[Any]]:
    """Return block, token and amount of the large ERC-20 transfers from a block on."""
    found: list[list[Any]] = []
    for log in expected(chain, first, chain.head)["logs"]:
        is_fungible = log["topic0"] == TRANSFER and log["topic2"] and not log["topic3"]
        if is_fungible and len(log["data"]) >= 32:
            amount = int.from_bytes(log["data"][:32], "big")
            if amount >= minimum:
                found.append([log["block_number"], "0x" + log["address"].hex(), str(amount)])
    return sorted(found)


def test_the_erc20_example_alerts_on_large_transfers_in_new_blocks(
    stack: Stack, tmp_path: Path
) -> None:
    # The development chain has no transfers as large as the example's threshold.
    text = ERC20.read_text().replace("value_f64 >= 1e24", "value_f64 >= 5e21")
    assert "5e21" in text
    file = tmp_path / "erc20.yaml"
    file.write_text(text)
    done = stack.trace("deploy", "--no-check", str(file))
    assert done.returncode == 0, done.stderr

    def alerts() -> list[list[Any]]:
        sql = "SELECT block_number, token, value_string FROM erc20_large_transfers ORDER BY ALL"
        with connect(stack.home) as stack_client:
            try:
                return stack_client.query(sql)["rows"]
            except RequestRejected:  # before the first alert
                return []

    eventually(lambda: any(t["job"] == "live_transfers" for t in stack.tasks("erc20")))
    first = stack.chain.head + 1
    stack.node.mine(8)
    wanted = large_transfers(stack.chain, first, 5 * 10**21)
    assert len(wanted) > 3
    eventually(lambda: [row for row in alerts() if row[0] >= first] == wanted)

    stack.node.reorg(4)  # after the reorganisation the alerts match the new chain
    again = large_transfers(stack.chain, first, 5 * 10**21)
    assert again != wanted
    eventually(lambda: [row for row in alerts() if row[0] >= first] == again)
