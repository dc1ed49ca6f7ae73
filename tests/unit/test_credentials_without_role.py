"""A stack on S3 without a role refuses credentials with the name of the missing setting, and says what follows."""

import asyncio
from datetime import UTC, datetime
from pathlib import Path

import pytest

from trace_etl.cli.stack import lifecycle
from trace_etl.dispatcher.task_objects.credentials import MissingRole, ObjectEndpoints
from trace_etl.lite.processes import services
from trace_etl.lite.processes.record import ServiceRecord
from trace_etl.model.errors import Unavailable
from trace_etl.policy.object_scope import ObjectScope
from trace_etl.worker.settings import WorkerSettings

SCOPE = ObjectScope.parse(["s3://trace/scratch/a/"], ["s3://trace/scratch/a/"])


def test_a_store_with_its_own_access_control_needs_a_role() -> None:
    minted = MissingRole().exchange(
        SCOPE, session_name="task", ends_at=datetime.now(UTC), can_list=False
    )
    with pytest.raises(Unavailable, match="set TRACE_CREDENTIALS_ROLE_ARN"):
        asyncio.run(minted)


@pytest.mark.parametrize(
    ("url", "role", "master", "reason"),
    [
        ("file:///objects", None, "spark://10.0.0.5:7077", None),
        ("s3://bucket/trace", "arn:aws:iam::1:role/task", "local[2]", None),
        ("s3://bucket/trace", None, "local[2]", "TRACE_CREDENTIALS_ROLE_ARN is not set"),
        ("s3://bucket/trace", "arn:aws:iam::1:role/task", "spark://10.0.0.5:7077", "executors of"),
    ],
)
def test_operators_with_the_keys_of_the_stack_are_reported(
    url: str,
    role: str | None,
    master: str,
    reason: str | None,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    inherited = {"TRACE_SPARK_MASTER": master, "TRACE_CREDENTIALS_ROLE_ARN": role}
    given = {name: value for name, value in inherited.items() if value is not None}
    cfg = WorkerSettings(
        objects_url=url,
        credentials_role_arn=role,
        spark_master=master,
        spark_dir=tmp_path,
        dispatcher_url="https://127.0.0.1:9",
        tls_ca=tmp_path,
        worker_token_file=tmp_path,
        worker_id="test",
        queue_dsn="",
    )
    warning = services.warn_of_shared_keys(url, given)
    services_of_stack = [ServiceRecord("worker", isolation="landlock", warning=warning)]
    lifecycle.print_warnings(services_of_stack)
    printed = capsys.readouterr().err
    if reason is None:
        assert (printed, warning, cfg.shared_keys_reason) == ("", None, None)
    else:
        assert reason in printed and f"keys of the stack for {url}" in printed
        assert reason in (cfg.shared_keys_reason or "")


def test_the_object_endpoints_need_no_credentials() -> None:
    minted = ObjectEndpoints().exchange(
        SCOPE, session_name="task", ends_at=datetime.now(UTC), can_list=False
    )
    assert asyncio.run(minted) is None
