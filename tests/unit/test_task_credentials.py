"""The file with the credentials of a task: written, renewed before they end, removed with the attempt."""

import itertools
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from trace_etl.api.task.credentials import Credentials, S3Credentials
from trace_etl.http.clients.dispatcher_client import Unreachable
from trace_etl.objects.s3_options import S3Options, read_profile
from trace_etl.worker.hosts.task_credentials import CredentialsMissing, TaskCredentials

NUMBERS = itertools.count()


def make(life: timedelta, *, on_s3: bool = True) -> Credentials:
    key = f"key-{next(NUMBERS)}"
    return Credentials(
        kind="s3" if on_s3 else "objects",
        expires_at=datetime.now(UTC) + life,
        read_prefixes=[],
        write_prefixes=[],
        scratch_prefix="s3://b/scratch/",
        export_prefix="s3://b/exports/",
        s3=S3Credentials(access_key_id=key, secret_access_key="secret", session_token="token")
        if on_s3
        else None,
    )


def read_key(file: Path) -> str:
    return read_profile(file, "default")["aws_access_key_id"]


def test_the_store_reads_the_file_again_when_its_credentials_end(tmp_path: Path) -> None:
    credentials = TaskCredentials(tmp_path / "s3-1", lambda: make(timedelta(seconds=20)))
    credentials.write()
    assert credentials.file.stat().st_mode & 0o777 == 0o600
    read = S3Options(credentials_file=credentials.file).read_credentials()
    assert read["access_key_id"] == read_key(credentials.file) and read.get("token") == "token"
    until = read["expires_at"]
    assert until is not None and until - datetime.now(UTC) <= timedelta(seconds=20)
    credentials.remove()
    assert list(tmp_path.iterdir()) == []


def test_credentials_are_renewed_when_half_of_their_life_is_over(tmp_path: Path) -> None:
    lives = iter([timedelta(hours=1), timedelta(), timedelta(hours=1)])
    credentials = TaskCredentials(tmp_path / "s3-1", lambda: make(next(lives)))
    credentials.write()
    first = read_key(credentials.file)
    credentials.renew()
    assert read_key(credentials.file) == first
    credentials.write()  # these have ended at once
    ended = read_key(credentials.file)
    credentials.renew()
    assert read_key(credentials.file) != ended


def test_an_outage_leaves_the_credentials_as_they_are(tmp_path: Path) -> None:
    answers = iter([make(timedelta())])

    def mint() -> Credentials:
        for answer in answers:
            return answer
        raise Unreachable("no answer")

    credentials = TaskCredentials(tmp_path / "s3-1", mint)
    credentials.write()
    before = read_key(credentials.file)
    credentials.renew()
    assert read_key(credentials.file) == before


def test_a_dispatcher_without_s3_is_reported(tmp_path: Path) -> None:
    credentials = TaskCredentials(tmp_path / "s3-1", lambda: make(timedelta(), on_s3=False))
    with pytest.raises(CredentialsMissing, match="no credentials of S3"):
        credentials.write()
