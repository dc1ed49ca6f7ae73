"""Build sampled partitions again, and compare the hashes of their rows."""

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from trace_etl.cli.client import StackClient, quote_segment
from trace_etl.cli.progress import show_counts

if TYPE_CHECKING:
    from trace_etl.api.proof.certificates import StoredCertificate
    from trace_etl.proof.checks import Problem

ReadCertificates = Callable[[], "Sequence[StoredCertificate]"]
_MAX_INTERVAL = 5.0
_REASON = "trace verify --rebuild-sample"


def compare_with_rebuild(
    client: StackClient,
    name: str,
    sample: "Sequence[StoredCertificate]",
    read_certificates: ReadCertificates,
    timeout: float,
) -> "list[Problem]":
    """Rebuild partitions through their own jobs, wait for the commits, and compare the rows."""
    from trace_etl.cli.tasks.watch import change_signals
    from trace_etl.proof.checks import Problem

    problems: list[Problem] = []
    waiting: dict[str, StoredCertificate] = {}
    path = f"/v1/datasets/{quote_segment(name)}/invalidations"
    for item in sample:
        key = item.partition_key
        body = {"partition_key": key, "rebuild": True, "reason": _REASON}
        if client.post(path, body)["rebuilding"]:
            waiting[key] = item
        else:
            problems.append(Problem(key, "rebuild", "no active job can build it again"))
    deadline = time.monotonic() + timeout
    count = len(waiting)
    with show_counts() as report, change_signals(client, max_interval=_MAX_INTERVAL) as signals:
        for _ in signals:
            report("rebuilt", count - len(waiting), count)
            for new in read_certificates():
                old = waiting.get(new.partition_key)
                if old is not None and (new.task_id, new.attempt) != (old.task_id, old.attempt):
                    problems += _compare(waiting.pop(new.partition_key), new)
            if not waiting or time.monotonic() >= deadline:
                break
    for key in waiting:
        text = f"was not built again within {timeout:.0f} s; `trace tasks` shows why"
        problems.append(Problem(key, "rebuild", text))
    return problems


def _compare(old: "StoredCertificate", new: "StoredCertificate") -> "list[Problem]":
    from trace_etl.proof.checks import Problem

    if old.content_hash is not None and old.content_hash == new.content_hash:
        return []
    key = old.partition_key
    if old.content_hash is None or new.content_hash is None:
        return [Problem(key, "rebuild", "has no content hash, so rows cannot be compared")]
    text = (
        f"{old.row_count} rows with {old.content_hash} became {new.row_count} rows with "
        f"{new.content_hash}, {_explain(old, new)}"
    )
    return [Problem(key, "rebuild", text)]


def _explain(old: "StoredCertificate", new: "StoredCertificate") -> str:
    if old.inputs != new.inputs:
        return "because its inputs have changed since it was made"
    if old.definition != new.definition:
        return "because the definition of its job has changed"
    return "from the same inputs and definition"
