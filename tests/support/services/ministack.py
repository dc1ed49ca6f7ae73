"""A server of S3, IAM and STS on loopback: ministack, which evaluates policies."""

import base64
import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx

from trace_etl.lite.processes.ports import free_port
from trace_etl.objects.s3_options import S3Options

REGION = "eu-central-1"
_PROGRAMS = Path(sys.prefix) / "ministack" / "bin"
_BRIDGE = Path(__file__).with_name("botocore_bridge.py")
_START_SECONDS = 30.0


class AwsError(Exception):
    """The server refused a call; `code` is its error code, such as AccessDenied."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class AwsKey:
    """An access key, or temporary credentials if it has a token."""

    access_key: str
    secret_key: str
    session_token: str | None = None

    @property
    def environment(self) -> dict[str, str]:
        """The variables in which AWS clients look for it."""
        token = {"AWS_SESSION_TOKEN": self.session_token} if self.session_token else {}
        return {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            **token,
        }


class Ministack:
    """One running server. The root key skips every check: give the code under test a user's key."""

    def __init__(self, url: str, root: AwsKey, bridge: "subprocess.Popen[str]") -> None:
        self.url, self.root, self._bridge = url, root, bridge

    def call(
        self, service: str, operation: str, *, key: AwsKey | None = None, **parameters: Any
    ) -> Any:
        """Call an operation by its name in botocore, by default as root. Raises AwsError."""
        return self._send(service, operation, key or self.root, parameters, is_presigned=False)

    def presign(self, operation: str, *, key: AwsKey, **parameters: Any) -> str:
        """Return the presigned URL of an operation of S3."""
        return self._send("s3", operation, key, parameters, is_presigned=True)

    def make_bucket(self) -> str:
        """Create an empty bucket with a new name."""
        name = f"bucket-{secrets.token_hex(6)}"
        place = {"LocationConstraint": REGION}
        self.call("s3", "create_bucket", Bucket=name, CreateBucketConfiguration=place)
        return name

    def make_user(self, *statements: dict[str, Any]) -> AwsKey:
        """Create an IAM user with a policy of these statements, and return its key."""
        name = f"user-{secrets.token_hex(6)}"
        self.call("iam", "create_user", UserName=name)
        policy = json.dumps({"Version": "2012-10-17", "Statement": statements})
        self.call("iam", "put_user_policy", UserName=name, PolicyName="p", PolicyDocument=policy)
        made = self.call("iam", "create_access_key", UserName=name)["AccessKey"]
        return AwsKey(made["AccessKeyId"], made["SecretAccessKey"])

    def make_role(self) -> str:
        """Create a role that any user may assume and that may do everything on S3. Returns its ARN."""
        name = f"role-{secrets.token_hex(6)}"
        trust = {"Effect": "Allow", "Principal": {"AWS": "*"}, "Action": "sts:AssumeRole"}
        policy = {"Effect": "Allow", "Action": "s3:*", "Resource": "*"}
        made = self.call(
            "iam", "create_role", RoleName=name, AssumeRolePolicyDocument=_make_document(trust)
        )
        document = _make_document(policy)
        self.call("iam", "put_role_policy", RoleName=name, PolicyName="p", PolicyDocument=document)
        return str(made["Role"]["Arn"])

    def _send(
        self,
        service: str,
        operation: str,
        key: AwsKey,
        parameters: dict[str, Any],
        *,
        is_presigned: bool,
    ) -> Any:
        client = {
            "endpoint_url": self.url,
            "region_name": REGION,
            "aws_access_key_id": key.access_key,
            "aws_secret_access_key": key.secret_key,
            "aws_session_token": key.session_token,
        }
        call = {"service": service, "operation": operation, "client": client}
        call |= {"parameters": parameters, "is_presigned": is_presigned}
        assert self._bridge.stdin is not None and self._bridge.stdout is not None
        self._bridge.stdin.write(json.dumps(call, default=_encode) + "\n")
        self._bridge.stdin.flush()
        answer = json.loads(self._bridge.stdout.readline(), object_hook=_decode)
        if "error" in answer:
            raise AwsError(answer["error"], answer["message"])
        return answer["result"]


def make_options(aws: Ministack, key: AwsKey, directory: Path, **more: Any) -> S3Options:
    """Options with a credentials file of its own, so that no other test sees its key."""
    file = directory / f"credentials-{uuid4().hex}"
    file.write_text(
        f"[default]\naws_access_key_id = {key.access_key}\n"
        f"aws_secret_access_key = {key.secret_key}\n"
        + (f"aws_session_token = {key.session_token}\n" if key.session_token else "")
    )
    given = {"region": REGION, "endpoint": aws.url, "path_style": True, "credentials_file": file}
    return S3Options(**{**given, **more})


def _make_document(statement: dict[str, Any]) -> str:
    return json.dumps({"Version": "2012-10-17", "Statement": [statement]})


def _encode(value: bytes) -> dict[str, str]:
    return {"base64": base64.b64encode(value).decode()}


def _decode(value: dict[str, Any]) -> Any:
    return base64.b64decode(value["base64"]) if set(value) == {"base64"} else value


@contextmanager
def running(directory: Path) -> Generator[Ministack]:
    """Run a server on a free port, with a new root key. Its log is in the directory."""
    port, root = free_port(), AwsKey(f"AKIA{secrets.token_hex(8)}", secrets.token_hex(20))
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(directory),
        "TMPDIR": str(directory),
        "AUTH": "true",
        "BIND_HOST": "127.0.0.1",
        "GATEWAY_PORT": str(port),
        "SERVICES": "s3,iam,sts,kms",
        "IOT_MTLS_ENABLED": "false",  # it would listen on a fixed port
        "MINISTACK_REGION": REGION,
        **root.environment,
    }
    if not _PROGRAMS.exists():
        raise FileNotFoundError(f"{_PROGRAMS}: ministack is not installed; run `make test-s3`")
    with (
        (directory / "ministack.log").open("ab") as log,
        subprocess.Popen(
            [_PROGRAMS / "ministack"], env=environment, stdout=log, stderr=log, cwd=directory
        ) as server,
        subprocess.Popen(
            [_PROGRAMS / "python", _BRIDGE],
            env={"PATH": os.environ["PATH"], "HOME": str(directory)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as bridge,
    ):
        try:
            _wait_until_healthy(server, f"http://127.0.0.1:{port}")
            yield Ministack(f"http://127.0.0.1:{port}", root, bridge)
        finally:
            server.kill()
            bridge.kill()


def _wait_until_healthy(server: "subprocess.Popen[bytes]", url: str) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            httpx.get(f"{url}/_ministack/health", trust_env=False).raise_for_status()
            return
        except httpx.HTTPError:
            if server.poll() is not None or time.monotonic() > deadline:
                raise
        time.sleep(0.05)
