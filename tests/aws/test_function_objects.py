"""A function reads and writes objects on S3 with the same calls as on files, and within its scope."""

import json
import secrets as tokens
from collections.abc import Generator
from pathlib import Path
from uuid import UUID

import jwt
import pytest

from support.dispatcher import Secrets, live
from support.lifecycle import Attempt, Bench, bench
from support.ministack import REGION, Ministack
from support.postgres import Templates, copied
from trace_etl.sandbox.broker import AttemptIdentity, Broker, PlatformClients
from trace_etl.sdk.connection import BrokerConnection, CallFailed
from trace_etl.sdk.task import Task


@pytest.fixture(scope="module")
def stack(
    aws: Ministack, secrets: Secrets, templates: Templates, tmp_path_factory: pytest.TempPathFactory
) -> Generator[Bench]:
    """A Dispatcher whose objects are on S3, and whose role STS gives to attempts."""
    with pytest.MonkeyPatch.context() as patch, copied(templates) as dsns:
        for variable, value in _make_user(aws).items():
            patch.setenv(variable, value)
        patch.delenv("AWS_SESSION_TOKEN", raising=False)
        settings = {
            "objects_url": f"s3://{aws.make_bucket()}/data",
            "s3_endpoint": aws.url,
            "s3_region": REGION,
            "sts_endpoint": aws.url,
            "credentials_role_arn": _make_role(aws),
        }
        unused = tmp_path_factory.mktemp("unused")
        with live(secrets, dsns, unused, **settings) as running, bench(running) as made:
            yield made


def _make_user(aws: Ministack) -> dict[str, str]:
    actions = ["sts:AssumeRole", "s3:*"]
    return aws.make_user({"Effect": "Allow", "Action": actions, "Resource": "*"}).environment


def _make_role(aws: Ministack) -> str:
    name = f"role-{tokens.token_hex(6)}"
    trust = {"Effect": "Allow", "Principal": {"AWS": "*"}, "Action": "sts:AssumeRole"}
    policy = {"Effect": "Allow", "Action": "s3:*", "Resource": "*"}
    made = aws.call("iam", "create_role", RoleName=name, AssumeRolePolicyDocument=_document(trust))
    document = _document(policy)
    aws.call("iam", "put_role_policy", RoleName=name, PolicyName="p", PolicyDocument=document)
    return str(made["Role"]["Arn"])


def _document(statement: dict[str, object]) -> str:
    return json.dumps({"Version": "2012-10-17", "Statement": [statement]})


@pytest.fixture
def attempt(stack: Bench) -> Attempt:
    return stack.attempt()


@pytest.fixture
def task(stack: Bench, attempt: Attempt, tmp_path: Path) -> Generator[Task]:
    identity = AttemptIdentity(
        UUID(attempt.task_id),
        attempt.number,
        UUID(attempt.claimed["lease_token"]),
        lambda: attempt.token,
    )
    broker = Broker(tmp_path / "broker.sock", PlatformClients(stack.http, stack.http), identity)
    yield Task(attempt.claimed["task"], BrokerConnection(str(broker.path)))
    broker.close()


def test_a_function_uses_objects_on_s3_within_its_scope(
    stack: Bench, attempt: Attempt, task: Task
) -> None:
    other = stack.attempt()
    scope = jwt.decode(attempt.token, options={"verify_signature": False})["s3"]
    task.put_object(f"{task.scratch_url}a/b.txt", b"content")
    assert task.get_object(f"{task.scratch_url}a/b.txt") == b"content"
    task.put_object(f"{task.export_url}report.csv", b"1,2")
    _put_once(task, scope["write_prefixes"][0] + "rows.jsonl")
    with pytest.raises(CallFailed) as refused:
        _put_once(task, scope["write_prefixes"][0] + "rows.jsonl")
    assert refused.value.code == "precondition_failed"
    with pytest.raises(CallFailed, match="does not exist"):
        task.get_object(f"{task.scratch_url}a/missing.txt")
    foreign = jwt.decode(other.token, options={"verify_signature": False})["s3"]
    for url in (
        foreign["scratch_prefix"] + "a",
        foreign["write_prefixes"][0] + "a",
        task.scratch_url.replace("/1/", "/2/") + "a",
        task.scratch_url.replace("/1/", "/10/") + "a",
        "s3://other-bucket/data/a/b",
    ):
        with pytest.raises(CallFailed) as refused:
            task.put_object(url, b"x")
        assert refused.value.code in ("forbidden", "not_found"), url
        with pytest.raises(CallFailed) as refused:
            task.get_object(url)
        assert refused.value.code == "forbidden", url
    with pytest.raises(CallFailed):  # outputs and exports can only be written
        task.get_object(f"{task.export_url}report.csv")


def _put_once(task: Task, url: str) -> None:
    """Write an object as `publish` does."""
    task._put(url, b"{}", {"If-None-Match": "*"})


def test_an_attempt_that_has_ended_gets_no_credentials(
    stack: Bench, attempt: Attempt, task: Task
) -> None:
    assert stack.complete(attempt, "Failed", retryable=False).status_code == 200
    with pytest.raises(CallFailed) as refused:
        task.put_object(f"{task.scratch_url}late", b"x")
    assert refused.value.code == "lease_lost"
