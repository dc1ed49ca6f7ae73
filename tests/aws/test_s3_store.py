"""The S3 store, on a real server: what every backend promises, and what only S3 needs."""

import threading
from collections.abc import Generator
from contextlib import contextmanager
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest

from support.data.store_contract import StoreContract
from support.services.ministack import REGION, AwsKey, Ministack, make_options
from trace_etl.objects.errors import ObjectMissing, StorageError, StorageRefused
from trace_etl.objects.s3_options import S3Options
from trace_etl.objects.s3_store import S3Store

_MINUTE = timedelta(minutes=1)
OPEN_POLICY = {"Effect": "Allow", "Action": "s3:*", "Resource": "*"}


@pytest.fixture(scope="module")
def key(aws: Ministack) -> AwsKey:
    return aws.make_user(OPEN_POLICY)


@pytest.fixture
def bucket(aws: Ministack) -> str:
    return aws.make_bucket()


@pytest.fixture
def options(aws: Ministack, key: AwsKey, tmp_path: Path) -> S3Options:
    return make_options(aws, key, tmp_path)


@pytest.fixture(params=["data/", "", "data/{org_id}/"])
def store(bucket: str, options: S3Options, request: pytest.FixtureRequest) -> S3Store:
    return S3Store(bucket, request.param, options)


@pytest.fixture
def root(store: S3Store) -> str:
    return f"{store.org_root(UUID(int=7))}/"


class TestS3Store(StoreContract):
    def test_a_discarded_upload_leaves_no_parts(
        self, aws: Ministack, store: S3Store, root: str
    ) -> None:
        with pytest.raises(RuntimeError), store.open_writer(f"{root}x") as writer:
            writer.stream.write(b"x" * 40_000_000)
            raise RuntimeError
        assert not aws.call("s3", "list_multipart_uploads", Bucket=store.bucket).get("Uploads")

    def test_a_signed_url_reads_one_object(self, store: S3Store, root: str) -> None:
        store.put(f"{root}a", b"1")
        store.put(f"{root}b", b"2")
        urls = store.read_urls([f"{root}b", f"{root}a"], life=_MINUTE)
        assert [httpx.get(url).text for url in urls] == ["2", "1"]
        assert httpx.get(urls[0].replace(f"{root}b", f"{root}a")).status_code == 403
        assert httpx.put(urls[0], content=b"3").status_code == 403
        assert store.options.credentials_file is not None
        secret = store.options.read_credentials()["secret_access_key"]
        assert secret not in str(urls) and secret not in repr(store)


def test_each_organisation_can_have_a_bucket(
    aws: Ministack, options: S3Options, key: AwsKey
) -> None:
    org_id = uuid4()
    place = {"LocationConstraint": REGION}
    aws.call("s3", "create_bucket", Bucket=f"t-{org_id}", CreateBucketConfiguration=place)
    store = S3Store("t-{org_id}", "x/", options)
    store.put(f"t-{org_id}/x/a", b"1")
    [made] = aws.call("s3", "list_objects_v2", Bucket=f"t-{org_id}")["Contents"]
    assert made["Key"] == "x/a"


@pytest.mark.parametrize("encryption", ["AES256", "aws:kms"])
def test_objects_are_encrypted_as_configured(
    aws: Ministack, bucket: str, key: AwsKey, tmp_path: Path, encryption: str
) -> None:
    kms = encryption == "aws:kms"
    key_id = aws.call("kms", "create_key")["KeyMetadata"]["KeyId"] if kms else None
    options = make_options(aws, key, tmp_path, encryption=encryption, kms_key_id=key_id)
    store = S3Store(bucket, "", options)
    store.put(f"{bucket}/put", b"1")
    with store.open_writer(f"{bucket}/parts") as writer:
        writer.stream.write(b"x" * 20_000_000)
        writer.commit()
    for name in ("put", "parts"):
        head = aws.call("s3", "head_object", Bucket=bucket, Key=name)
        assert (head["ServerSideEncryption"], head.get("SSEKMSKeyId")) == (encryption, key_id)


def test_a_changed_credentials_file_is_read_again(
    aws: Ministack, bucket: str, key: AwsKey, tmp_path: Path
) -> None:
    options = make_options(aws, key, tmp_path)
    assert options.credentials_file is not None
    before = options.read_credentials()
    options.credentials_file.write_text(
        "[default]\naws_access_key_id=a\naws_secret_access_key=b%c\n"
    )
    after = options.read_credentials()
    assert before["access_key_id"] == key.access_key
    assert (after["access_key_id"], after["secret_access_key"]) == ("a", "b%c")
    assert after["expires_at"] is not None


def test_errors_name_the_setting_and_no_key(
    aws: Ministack, bucket: str, key: AwsKey, tmp_path: Path
) -> None:
    def refuse(kind: type[StorageError], name: str = bucket, **options: Any) -> str:
        user = options.pop("key", key)
        store = S3Store(name, "", make_options(aws, user, tmp_path, **options))
        with pytest.raises(kind) as read:
            store.get(f"{name}/x")
        with pytest.raises(kind) as written:
            store.put(f"{name}/x", b"")
        texts = [_show(error.value) for error in (read, written)]
        for secret in (user.access_key, user.secret_key, "StringToSign", "X-Amz"):
            assert not any(secret in text for text in texts)
        return texts[1]

    assert "create it or correct TRACE_OBJECTS_URL" in refuse(StorageRefused, "no-such-bucket")
    wrong = AwsKey(key.access_key, "x" * 40)
    assert "secret key does not belong" in refuse(StorageRefused, key=wrong)
    unknown = AwsKey("AKIAUNKNOWNUNKNOWN00", "x" * 40)
    assert "check AWS_ACCESS_KEY_ID" in refuse(StorageRefused, key=unknown)
    idle = aws.make_user({"Effect": "Allow", "Action": "s3:ListBucket", "Resource": "*"})
    assert "policy of the credentials does not allow it" in refuse(StorageRefused, key=idle)
    assert "set TRACE_S3_REGION" in refuse(StorageRefused, region="us-west-2")
    missing = tmp_path / "missing"
    assert "TRACE_S3_CREDENTIALS_FILE" in refuse(StorageRefused, credentials_file=missing)
    assert "[other]" in refuse(StorageRefused, profile="other")


def _show(error: BaseException) -> str:
    """The text of an error and of every error that a traceback would print with it."""
    assert error.__cause__ is None and (error.__context__ is None or error.__suppress_context__)
    return f"{error!r}"


def test_an_endpoint_that_is_down_or_is_not_s3_is_reported(
    aws: Ministack, key: AwsKey, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trace_etl.objects.s3_options._MAX_RETRIES", 1)
    down = make_options(aws, key, tmp_path, endpoint="http://127.0.0.1:9")
    with pytest.raises(
        StorageError, match=r"http://127.0.0.1:9 cannot be reached: check TRACE_S3_"
    ):
        S3Store("bucket", "", down).get("bucket/x")
    with _http_server(_NotS3) as url:
        other = make_options(aws, key, tmp_path, endpoint=url)
        with pytest.raises(StorageError, match="check TRACE_S3_ENDPOINT"):
            S3Store("bucket", "", other).get("bucket/x")


def test_a_request_that_a_failing_server_refused_is_repeated(
    aws: Ministack, bucket: str, key: AwsKey, tmp_path: Path
) -> None:
    """Two of three requests get a 503, as S3 answers when it is asked too often."""
    _Unsteady.count = 0
    with _http_server(_Unsteady) as url:
        store = S3Store(bucket, "", make_options(aws, key, tmp_path, endpoint=url))
        with pytest.raises(ObjectMissing):
            store.get(f"{bucket}/x")
    assert _Unsteady.count == 3


@contextmanager
def _http_server(handler: type[BaseHTTPRequestHandler]) -> Generator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


class _NotS3(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"<html>hello</html>")

    def log_message(self, format: str, *args: Any) -> None:
        pass


class _Unsteady(_NotS3):
    count = 0

    def do_GET(self) -> None:
        type(self).count += 1
        status, code = (404, "NoSuchKey") if self.count % 3 == 0 else (503, "SlowDown")
        body = f"<Error><Code>{code}</Code></Error>".encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
