"""The object endpoints serve what a token grants to a running attempt, and nothing else."""

import random
import socket
import ssl
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import httpx
import jwt
import pytest

from support.lifecycle.lifecycle import Attempt, Bench, bench
from support.services.dispatcher import Secrets, live
from support.services.postgres import Templates, copied
from support.waiting import eventually
from trace_etl.lite.credentials import keys
from trace_etl.sandbox.broker.broker import AttemptIdentity, Broker, PlatformClients
from trace_etl.sdk.connection import BrokerConnection, CallFailed
from trace_etl.sdk.task import Task

ROOT = "/v1/task/objects/"


class Objects:
    """A client with the token and the lease of one attempt."""

    def __init__(self, bench: Bench, attempt: Attempt) -> None:
        self._http, self.attempt = bench.http, attempt
        self.s3 = jwt.decode(attempt.token, options={"verify_signature": False})["s3"]
        self.scratch: str = self.s3["scratch_prefix"]
        self.headers = {
            "X-Trace-Task-Capability": attempt.token,
            "X-Trace-Lease-Token": attempt.claimed["lease_token"],
        }

    def send(self, method: str, url: str, headers: Any = None, **options: Any) -> httpx.Response:
        path = ROOT + url.removeprefix("s3://")
        return self._http.request(
            method, path, headers={**self.headers, **(headers or {})}, **options
        )

    def list(self, prefix: str, **query: str) -> httpx.Response:
        query = {"prefix": prefix, **query}
        return self._http.get(ROOT, params=query, headers=self.headers)


@pytest.fixture
def consumer(shared: Bench) -> Objects:
    """An attempt whose input has one committed partition."""
    return consume(shared)


def consume(bench: Bench) -> Objects:
    dag = bench.dag()
    producer = bench.attempt(dag=dag)
    publication = bench.write_output(producer)
    assert bench.complete(producer, datasets_published=[publication]).status_code == 200
    bench.live.drain()
    (task_id,) = bench.waiting(dag, "after")
    return Objects(bench, bench.claimed(task_id))


def test_an_object_is_written_and_read_back_whole_and_in_ranges(consumer: Objects) -> None:
    content, url = random.Random(7).randbytes(3_000_001), f"{consumer.scratch}a/b.bin"
    assert consumer.send("PUT", url, content=content).status_code == 200
    whole = consumer.send("GET", url)
    assert (whole.status_code, whole.content) == (200, content)
    assert whole.headers["content-length"] == str(len(content))
    head = consumer.send("HEAD", url)
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-length"] == str(len(content))
    assert head.headers["etag"] == whole.headers["etag"]
    for text, part in (
        ("bytes=0-0", content[:1]),
        ("bytes=1000-1999", content[1000:2000]),
        ("bytes=2999999-", content[2999999:]),
        ("bytes=-5", content[-5:]),
        ("bytes=3000000-9999999", content[3000000:]),
    ):
        reply = consumer.send("GET", url, {"Range": text})
        assert (reply.status_code, reply.content) == (206, part), text
        assert reply.headers["content-range"].endswith("/3000001")
    for text in ("bytes=3000001-", "bytes=5-4", "bytes=-0"):
        assert consumer.send("GET", url, {"Range": text}).status_code == 416, text


def test_a_body_without_a_length_is_streamed(consumer: Objects) -> None:
    def chunks() -> Iterator[bytes]:
        for n in range(200):
            yield bytes([n]) * 40_000

    url = f"{consumer.scratch}chunked"
    assert consumer.send("PUT", url, content=chunks()).status_code == 200
    assert consumer.send("GET", url).content == b"".join(chunks())
    assert consumer.send("PUT", f"{consumer.scratch}empty", content=b"").status_code == 200
    assert consumer.send("GET", f"{consumer.scratch}empty").content == b""


def test_a_conditional_put_creates_and_never_replaces(consumer: Objects) -> None:
    url, once = f"{consumer.scratch}once", {"If-None-Match": "*"}
    assert consumer.send("PUT", url, once, content=b"first").status_code == 200
    again = consumer.send("PUT", url, once, content=b"second")
    assert (again.status_code, again.json()["code"]) == (412, "precondition_failed")
    assert consumer.send("GET", url).content == b"first"
    assert consumer.send("PUT", url, content=b"third").status_code == 200
    assert consumer.send("GET", url).content == b"third"
    assert consumer.send("PUT", url, {"If-None-Match": '"x"'}, content=b"").status_code == 422


def test_a_put_with_an_etag_replaces_only_the_object_that_has_it(consumer: Objects) -> None:
    url = f"{consumer.scratch}swapped"
    missing = consumer.send("PUT", url, {"If-Match": "*"}, content=b"x")
    assert (missing.status_code, missing.json()["code"]) == (412, "precondition_failed")
    assert "does not exist" in missing.json()["detail"]
    assert consumer.send("PUT", url, {"If-Match": '"1-2-3"'}, content=b"x").status_code == 412
    first = consumer.send("PUT", url, content=b"first").headers["etag"]
    assert consumer.send("HEAD", url).headers["etag"] == first
    second = consumer.send("PUT", url, {"If-Match": first}, content=b"second")
    assert second.status_code == 200 and second.headers["etag"] != first
    late = consumer.send("PUT", url, {"If-Match": first}, content=b"third")
    assert late.status_code == 412 and second.headers["etag"] in late.json()["detail"]
    assert consumer.send("GET", url).content == b"second"
    assert consumer.send("PUT", url, {"If-Match": "*"}, content=b"fourth").status_code == 200
    for headers in (
        {"If-Match": "1-2-3"},
        {"If-Match": f"W/{first}"},
        {"If-Match": f"{first}, {first}"},
        {"If-Match": first, "If-None-Match": "*"},
        {"If-Unmodified-Since": "Wed, 18 Nov 2026 00:00:00 GMT"},
    ):
        refused = consumer.send("PUT", url, headers, content=b"fifth")
        (fault,) = refused.json()["errors"]
        assert refused.status_code == 422 and fault["field"].lower() in map(str.lower, headers)
    assert consumer.send("GET", url).content == b"fourth"


def test_of_many_concurrent_swaps_of_one_object_one_succeeds(consumer: Objects) -> None:
    url = f"{consumer.scratch}raced"
    first = consumer.send("PUT", url, content=b"first").headers["etag"]
    swap = {"If-Match": first}
    with ThreadPoolExecutor(8) as threads:
        replies = list(
            threads.map(
                lambda n: consumer.send("PUT", url, swap, content=str(n).encode()), range(8)
            )
        )
    assert sorted(r.status_code for r in replies) == [200] + [412] * 7
    (winner,) = (str(n) for n, r in enumerate(replies) if r.status_code == 200)
    assert consumer.send("GET", url).text == winner


def test_names_that_cannot_be_written_are_refused_without_a_path_of_the_server(
    shared: Bench, consumer: Objects
) -> None:
    assert consumer.send("PUT", f"{consumer.scratch}file", content=b"x").status_code == 200
    assert consumer.send("PUT", f"{consumer.scratch}folder/x", content=b"x").status_code == 200
    for name in ("file/below", "folder", "n" * 300):
        reply = consumer.send("PUT", consumer.scratch + name, content=b"x")
        assert (reply.status_code, reply.json()["code"]) == (422, "invalid"), reply.text
        assert str(shared.live.objects) not in reply.text


def test_objects_of_a_prefix_are_listed(consumer: Objects) -> None:
    for name in ("b", "a/1", "a/2"):
        consumer.send("PUT", f"{consumer.scratch}{name}", content=name.encode())
    names = [item["url"] for item in consumer.list(consumer.scratch).json()["items"]]
    assert names == [f"{consumer.scratch}{name}" for name in ("a/1", "a/2", "b")]
    rest = consumer.list(consumer.scratch, after=names[0]).json()
    assert ([item["url"] for item in rest["items"]], rest["next"]) == (names[1:], None)
    (read,) = consumer.s3["read_prefixes"]
    assert {i["url"].rpartition("/")[2] for i in consumer.list(read).json()["items"]} >= {
        "_SUCCESS"
    }
    assert consumer.list(consumer.s3["export_prefix"]).json()["items"] == []
    for prefix in ("s3://trace/cold/", "s3://trace/scratch/", read.rsplit("/", 3)[0] + "/"):
        assert consumer.list(prefix).status_code == 403, prefix
    for prefix in ("", "s3://trace/", f"{read}../", "s3://trace/*"):
        assert consumer.list(prefix).status_code == 422, prefix


def test_inputs_can_only_be_read_and_outputs_only_be_written(consumer: Objects) -> None:
    (read,), (write,) = consumer.s3["read_prefixes"], consumer.s3["write_prefixes"]
    export = consumer.s3["export_prefix"]
    assert consumer.send("GET", f"{read}_SUCCESS").status_code == 200
    assert consumer.send("PUT", f"{read}_SUCCESS", content=b"x").status_code == 403
    for prefix in (write, export):
        assert consumer.send("PUT", f"{prefix}a", content=b"x").status_code == 200
        assert consumer.send("GET", f"{prefix}a").status_code == 403
    assert consumer.send("GET", f"{read}missing").status_code == 404
    assert consumer.send("DELETE", f"{write}a").status_code == 405


def test_prefixes_of_others_are_refused(shared: Bench, consumer: Objects) -> None:
    other = Objects(shared, shared.attempt())
    claims = jwt.decode(consumer.attempt.token, options={"verify_signature": False})
    (read,) = consumer.s3["read_prefixes"]
    own_org = claims["org_id"]
    for url in (
        f"{other.scratch}a",
        other.s3["write_prefixes"][0] + "a",
        consumer.scratch.replace("/1/", "/2/") + "a",
        consumer.scratch.replace("/1/", "/10/") + "a",
        consumer.scratch.replace(own_org, str(uuid4())) + "a",
        consumer.scratch[:-1] + "x/a",
        read.rsplit("/", 4)[0] + f"/{uuid4()}/{uuid4()}/1/_SUCCESS",
        read.replace("s3://trace/", "s3://other/") + "_SUCCESS",
    ):
        assert consumer.send("GET", url).status_code == 403, url
        assert consumer.send("PUT", url, content=b"x").status_code == 403, url


@pytest.mark.parametrize(
    "name",
    [
        "..%2f..%2fa",
        "%2e%2e/a",
        "a%00",
        "a%0a",
        "a//b",
        "./a",
        "a%2f%2e%2e%2f%2e%2e",
        "*",
        "a%3fb",
        "%EF%BC%8E%EF%BC%8E/a",
        "%ff",
        "a%23b",
        "a" * 1100,
        "%252e%252e/a",
        "a%5c..%5cb",
    ],
)
def test_hostile_names_are_refused(shared: Bench, consumer: Objects, name: str) -> None:
    """httpx would resolve dots itself, so the request is written by hand."""
    path = ROOT + consumer.scratch.removeprefix("s3://") + name
    lines = [f"PUT {path} HTTP/1.1", "Host: x", "Content-Length: 1", "Connection: close"]
    lines += [f"{key}: {value}" for key, value in consumer.headers.items()]
    context = ssl.create_default_context(cafile=str(shared.live.secrets.ca))
    address = ("127.0.0.1", shared.live.cfg.internal_port)
    with (
        socket.create_connection(address, timeout=30) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as sock,
    ):
        sock.sendall("\r\n".join([*lines, "", "x"]).encode())
        status = sock.recv(1000).split(b" ")[1]
    assert status in (b"422", b"403"), status
    assert consumer.list(consumer.scratch).json()["items"] == []


def test_links_are_not_followed(shared: Bench, consumer: Objects) -> None:
    directory = shared.live.objects / consumer.scratch.removeprefix("s3://")
    directory.mkdir(parents=True)
    (directory / "link").symlink_to("/etc/hostname")
    (directory / "up").symlink_to("/etc")
    assert consumer.send("GET", f"{consumer.scratch}link").status_code == 404
    assert consumer.send("GET", f"{consumer.scratch}up/hostname").status_code == 404


def test_complete_output_cannot_change(consumer: Objects) -> None:
    (write,) = consumer.s3["write_prefixes"]
    assert consumer.send("PUT", f"{write}a.parquet", content=b"1").status_code == 200
    assert consumer.send("PUT", f"{write}_SUCCESS", content=b"{}").status_code == 200
    for name in ("a.parquet", "b.parquet", "_SUCCESS"):
        reply = consumer.send("PUT", f"{write}{name}", content=b"2")
        assert (reply.status_code, reply.json()["code"]) == (409, "conflict")
    assert consumer.send("PUT", f"{consumer.scratch}a", content=b"2").status_code == 200


def test_a_stale_attempt_neither_reads_nor_writes(shared: Bench, consumer: Objects) -> None:
    url = f"{consumer.scratch}a"
    (write,) = consumer.s3["write_prefixes"]
    assert consumer.send("PUT", url, content=b"1").status_code == 200
    foreign = {"X-Trace-Lease-Token": str(uuid4())}
    assert consumer.send("PUT", url, foreign, content=b"2").json()["reason"] == "stale_lease"
    assert consumer.send("GET", url, {"X-Trace-Lease-Token": "x"}).status_code == 401
    assert consumer.send("GET", url, {"X-Trace-Task-Capability": "x"}).status_code == 401
    assert shared.complete(consumer.attempt, "Failed").status_code == 200
    for method, target in (("GET", url), ("PUT", url), ("PUT", f"{write}a")):
        reply = consumer.send(method, target, content=b"2" if method == "PUT" else None)
        assert (reply.status_code, reply.json()["reason"]) == (409, "not_running")
    later = "UPDATE tasks SET retry_at = now() - interval '1 s' WHERE task_id = %s"
    shared.rows(later, consumer.attempt.task_id)
    shared.live.run(shared.live.service.retries.retry_once)
    second = Objects(shared, shared.claimed(consumer.attempt.task_id))
    reply = consumer.send("PUT", url, content=b"2")
    assert (reply.status_code, reply.json()["reason"]) == (409, "stale_attempt")
    assert second.scratch != consumer.scratch
    assert second.send("GET", url).status_code == 403
    stored = shared.live.objects / url.removeprefix("s3://")
    assert stored.read_bytes() == b"1"


def test_an_attempt_that_ends_during_an_upload_writes_nothing(
    shared: Bench, consumer: Objects
) -> None:
    directory = shared.live.objects / consumer.scratch.removeprefix("s3://")

    def chunks() -> Iterator[bytes]:
        yield b"1" * 100_000
        eventually(lambda: directory.exists() and any(directory.iterdir()), "a draft")
        assert shared.complete(consumer.attempt, "Failed").status_code == 200
        yield b"2" * 100_000

    reply = consumer.send("PUT", f"{consumer.scratch}a", content=chunks())
    assert (reply.status_code, reply.json()["reason"]) == (409, "not_running")
    assert list(directory.iterdir()) == []


def test_a_function_that_goes_on_after_its_lease_is_lost_changes_nothing(
    shared: Bench, consumer: Objects, tmp_path: Path
) -> None:
    """It uploads an object while it loses the lease, and tries all its other calls afterwards."""
    attempt, url = consumer.attempt, f"{consumer.scratch}a"
    lease = UUID(attempt.claimed["lease_token"])
    identity = AttemptIdentity(UUID(attempt.task_id), attempt.number, lease, lambda: attempt.token)
    clients = PlatformClients(shared.http, shared.http)
    broker = Broker(tmp_path / "broker.sock", clients, identity)
    task = Task(attempt.claimed["task"], BrokerConnection(str(broker.path)))
    directory = shared.live.objects / consumer.scratch.removeprefix("s3://")
    head = f"PUT {ROOT}{url.removeprefix('s3://')} HTTP/1.0\r\nContent-Length: 200000\r\n\r\n"
    with socket.socket(socket.AF_UNIX) as upload:
        upload.connect(str(broker.path))
        upload.sendall(head.encode() + b"1" * 100_000)
        eventually(lambda: directory.exists() and any(directory.iterdir()), "a draft")
        shared.let_lease_expire(attempt)
        assert shared.reap()
        upload.sendall(b"2" * 100_000)
        with upload.makefile("rb") as answer:
            assert b" 409 " in answer.readline()
    assert list(directory.iterdir()) == []
    calls: list[Callable[[], object]] = [
        lambda: task.put_object(url, b"late"),
        lambda: task.get_object(url),
        task.heartbeat,
        lambda: task.emit([]),
    ]
    for call in calls:
        with pytest.raises(CallFailed) as refused:
            call()
        assert refused.value.code == "lease_lost"
    assert list(directory.iterdir()) == []
    broker.close()


def test_a_client_that_disconnects_leaves_nothing(shared: Bench, consumer: Objects) -> None:
    class Broken(Exception):
        pass

    def chunks() -> Iterator[bytes]:
        yield b"1" * 100_000
        raise Broken

    with pytest.raises(Broken):
        consumer.send("PUT", f"{consumer.scratch}a", content=chunks())
    directory = shared.live.objects / consumer.scratch.removeprefix("s3://")
    eventually(
        lambda: not directory.exists() or not list(directory.iterdir()), "the part is deleted"
    )


def test_limits_expired_tokens_and_removed_keys_are_enforced(
    templates: Templates, secrets: Secrets, tmp_path_factory: pytest.TempPathFactory
) -> None:
    objects, key_files = tmp_path_factory.mktemp("objects"), tmp_path_factory.mktemp("keys")
    keys.ensure_task_key(key_files)
    with (
        copied(templates) as dsns,
        live(
            secrets,
            dsns,
            objects,
            max_object_bytes=100_000,
            max_attempt_bytes=1_000_000,
            task_keys_dir=key_files,
        ) as running,
        bench(running) as own,
    ):
        caller = consume(own)
        big, url = b"x" * 100_001, f"{caller.scratch}a"
        assert caller.send("PUT", url, content=big[:-1]).status_code == 200
        assert caller.send("PUT", f"{url}b", content=big).status_code == 413
        assert caller.send("PUT", f"{url}b", content=iter([big])).status_code == 413
        assert len(caller.list(caller.scratch).json()["items"]) == 1
        assert caller.send("GET", url).content == big[:-1]

        other = consume(own)
        replies = [other.send("PUT", f"{other.scratch}a", content=big[:-1]) for _ in range(10)]
        assert [reply.status_code for reply in replies] == [200] * 9 + [413]
        assert "raise TRACE_MAX_ATTEMPT_BYTES" in replies[-1].json()["detail"]
        assert other.send("PUT", f"{other.scratch}b", content=b"").status_code == 413
        assert caller.send("PUT", f"{url}c", content=b"x").status_code == 200

        (key_file,) = key_files.glob("*.pem")
        claims = jwt.decode(caller.attempt.token, options={"verify_signature": False})
        old = {**claims, "iat": claims["iat"] - 7200, "exp": claims["iat"] - 3600}
        expired = jwt.encode(old, key_file.read_text(), "ES256", {"kid": key_file.stem})
        assert caller.send("GET", url, {"X-Trace-Task-Capability": expired}).status_code == 401
        keys.rotate_task_key(key_files)
        assert caller.send("GET", url).status_code == 200
        key_file.unlink()
        assert caller.send("GET", url).status_code == 401
        assert caller.send("PUT", url, content=b"1").status_code == 401
