"""Credentials from STS allow an attempt's prefixes and nothing else, on a server that evaluates policies."""

import asyncio
import json
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from support.services.ministack import REGION, AwsError, AwsKey, Ministack
from trace_etl.aws.sts import StsExchanger
from trace_etl.model.errors import Unavailable
from trace_etl.policy.object_scope import ObjectScope, PolicyTooLong

READ, WRITE = "cold/datasets/d/v/t/1/", "scratch/org/task/1/"
OUTSIDE = ("cold/datasets/d/v/t/10/a", "cold/datasets/d/v/t/1", "scratch/org/task/2/a", "a")
DENIED = {"AccessDenied", "403", "AccessDeniedException"}


@dataclass(frozen=True)
class Role:
    """A role that may do everything in one bucket, and the only user that may assume it."""

    server: Ministack
    bucket: str
    arn: str
    exchanger: StsExchanger

    def mint(self, *, can_list: bool = False, life: timedelta = timedelta(minutes=5)) -> AwsKey:
        scope = ObjectScope.parse([f"s3://{self.bucket}/{READ}"], [f"s3://{self.bucket}/{WRITE}"])
        end = datetime.now(UTC) + life
        made = asyncio.run(
            self.exchanger.exchange(
                scope, session_name=secrets.token_hex(8), ends_at=end, can_list=can_list
            )
        )
        assert made is not None
        assert (made.region, made.endpoint_url) == (REGION, self.server.url)
        return AwsKey(made.access_key_id, made.secret_access_key, made.session_token)

    def s3(self, operation: str, key: AwsKey | None = None, **parameters: Any) -> Any:
        return self.server.call("s3", operation, key=key, Bucket=self.bucket, **parameters)


@pytest.fixture
def role(aws: Ministack, monkeypatch: pytest.MonkeyPatch) -> Role:
    bucket, name = aws.make_bucket(), f"role-{secrets.token_hex(6)}"
    user = aws.make_user({"Effect": "Allow", "Action": "sts:AssumeRole", "Resource": "*"})
    trust = {"Effect": "Allow", "Principal": {"AWS": "*"}, "Action": "sts:AssumeRole"}
    made = aws.call(
        "iam",
        "create_role",
        RoleName=name,
        AssumeRolePolicyDocument=json.dumps({"Version": "2012-10-17", "Statement": [trust]}),
    )
    everything = {"Effect": "Allow", "Action": ["s3:*", "sts:*"], "Resource": "*"}
    aws.call(
        "iam",
        "put_role_policy",
        RoleName=name,
        PolicyName="p",
        PolicyDocument=json.dumps({"Version": "2012-10-17", "Statement": [everything]}),
    )
    for variable, value in user.environment.items():
        monkeypatch.setenv(variable, value)
    monkeypatch.delenv("AWS_SESSION_TOKEN", raising=False)
    arn = made["Role"]["Arn"]
    exchanger = StsExchanger(arn, region=REGION, sts_url=aws.url, s3_url=aws.url)
    ready = Role(aws, bucket, arn, exchanger)
    for key in (f"{READ}a", f"{WRITE}a", *OUTSIDE):
        ready.s3("put_object", Key=key, Body=key.encode())
    return ready


def refused(call: Callable[[], Any]) -> None:
    with pytest.raises(AwsError) as error:
        call()
    assert error.value.code in DENIED, error.value


def test_objects_in_scope_can_be_used(role: Role) -> None:
    key = role.mint(can_list=True)
    assert role.s3("get_object", key, Key=f"{READ}a")["Body"] == f"{READ}a".encode()
    role.s3("put_object", key, Key=f"{WRITE}b", Body=b"new")
    upload = role.s3("create_multipart_upload", key, Key=f"{WRITE}c")["UploadId"]
    part = role.s3("upload_part", key, Key=f"{WRITE}c", UploadId=upload, PartNumber=1, Body=b"12")
    parts = {"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}
    role.s3(
        "complete_multipart_upload", key, Key=f"{WRITE}c", UploadId=upload, MultipartUpload=parts
    )
    listed = role.s3("list_objects_v2", key, Prefix=READ)
    assert [entry["Key"] for entry in listed["Contents"]] == [f"{READ}a"]
    url = role.server.presign("get_object", key=key, Bucket=role.bucket, Key=f"{READ}a")
    assert httpx.get(url, trust_env=False).status_code == 200


def test_every_action_outside_the_scope_is_denied(role: Role) -> None:
    key = role.mint(can_list=True)
    source = {"Bucket": role.bucket, "Key": OUTSIDE[0]}
    for name in OUTSIDE:
        refused(lambda name=name: role.s3("get_object", key, Key=name))
        refused(lambda name=name: role.s3("head_object", key, Key=name))
        refused(lambda name=name: role.s3("put_object", key, Key=name, Body=b"x"))
        refused(lambda name=name: role.s3("create_multipart_upload", key, Key=name))
        url = role.server.presign("get_object", key=key, Bucket=role.bucket, Key=name)
        assert httpx.get(url, trust_env=False).status_code == 403
        url = role.server.presign("put_object", key=key, Bucket=role.bucket, Key=name)
        assert httpx.put(url, content=b"x", trust_env=False).status_code == 403
    refused(lambda: role.s3("copy_object", key, Key=f"{WRITE}b", CopySource=source))
    refused(lambda: role.s3("copy_object", key, Key="a", CopySource={**source, "Key": f"{READ}a"}))
    refused(lambda: role.s3("put_object", key, Key=f"{READ}a", Body=b"x"))
    refused(lambda: role.s3("get_object", key, Key=f"{WRITE[:-2]}2/a"))
    refused(lambda: role.s3("delete_object", key, Key=f"{WRITE}a"))
    for prefix in ("", "cold/", READ[:-1], "scratch/org/task/"):
        refused(lambda prefix=prefix: role.s3("list_objects_v2", key, Prefix=prefix))
    refused(lambda: role.s3("list_objects_v2", key))
    refused(lambda: role.server.call("s3", "list_buckets", key=key))
    other = role.server.make_bucket()
    refused(
        lambda: role.server.call(
            "s3", "put_object", key=key, Bucket=other, Key=f"{WRITE}a", Body=b""
        )
    )
    for name in OUTSIDE:
        assert role.s3("get_object", Key=name)["Body"] == name.encode()


def test_credentials_that_were_not_requested_for_listing_list_nothing(role: Role) -> None:
    refused(lambda: role.s3("list_objects_v2", role.mint(), Prefix=READ))


def test_a_session_cannot_assume_the_role_again(role: Role) -> None:
    key = role.mint()
    refused(
        lambda: role.server.call(
            "sts", "assume_role", key=key, RoleArn=role.arn, RoleSessionName="wider"
        )
    )


def test_credentials_end_with_the_lease_although_a_session_lasts_longer(role: Role) -> None:
    key = role.mint(life=timedelta(seconds=-1))
    refused(lambda: role.s3("get_object", key, Key=f"{READ}a"))
    refused(lambda: role.s3("put_object", key, Key=f"{WRITE}a", Body=b""))


def test_too_many_prefixes_are_refused_before_sts_is_asked(role: Role) -> None:
    many = [f"s3://{role.bucket}/cold/{n:036}/" for n in range(60)]
    with pytest.raises(PolicyTooLong):
        asyncio.run(
            role.exchanger.exchange(
                ObjectScope.parse(many, []),
                session_name="s",
                ends_at=datetime.now(UTC),
                can_list=False,
            )
        )


def test_an_unknown_user_or_server_is_unavailable_and_shows_no_key(
    role: Role, monkeypatch: pytest.MonkeyPatch
) -> None:
    scope = ObjectScope.parse([f"s3://{role.bucket}/{READ}"], [])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong" * 8)
    for url in (role.server.url, "http://127.0.0.1:9"):
        exchanger = StsExchanger(role.arn, region=REGION, sts_url=url)
        with pytest.raises(Unavailable) as error:
            asyncio.run(
                exchanger.exchange(
                    scope, session_name="s", ends_at=datetime.now(UTC), can_list=False
                )
            )
        assert "wrong" not in str(error.value)
