"""The local certificate authority: what it certifies, for how long, and when it is renewed."""

import socket
import ssl
import stat
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from trace_etl.lite.credentials import certificates

FILES = ("ca.pem", "ca.key", "server.pem", "server.key")


def contents(directory: Path) -> dict[str, bytes]:
    return {name: (directory / name).read_bytes() for name in FILES}


def perform_handshake(directory: Path, *, name: str, ca: Path | None = None) -> str:
    """A real TLS handshake between a server with our certificate and a client that trusts `ca`."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(directory / "server.pem", directory / "server.key")
    client = ssl.create_default_context(cafile=ca or directory / "ca.pem")
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    ours, theirs = socket.socketpair()

    def serve() -> None:
        with ours:
            try:
                server.wrap_socket(ours, server_side=True).close()
            except ssl.SSLError:
                return  # the client refused; its own error fails or passes the test

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with theirs, client.wrap_socket(theirs, server_hostname=name) as secured:
            return secured.version() or ""
    finally:
        thread.join()


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "::1"])
def test_a_client_that_trusts_the_authority_connects_to_this_machine(
    tmp_path: Path, name: str
) -> None:
    certificates.ensure(tmp_path)
    assert perform_handshake(tmp_path, name=name).startswith("TLS")


def test_the_certificate_is_not_valid_for_another_machine(tmp_path: Path) -> None:
    certificates.ensure(tmp_path)
    with pytest.raises(ssl.SSLCertVerificationError):
        perform_handshake(tmp_path, name="example.org")


def test_the_certificate_of_another_stack_is_not_trusted(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        certificates.ensure(tmp_path / name)
    with pytest.raises(ssl.SSLCertVerificationError):
        perform_handshake(tmp_path / "one", name="localhost", ca=tmp_path / "two" / "ca.pem")


def test_a_second_start_changes_nothing_and_only_the_owner_can_read(tmp_path: Path) -> None:
    certificates.ensure(tmp_path)
    before = contents(tmp_path)
    certificates.ensure(tmp_path)
    assert contents(tmp_path) == before
    assert {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in FILES} == {0o600}


def test_an_expiring_server_certificate_is_renewed_by_the_same_authority(
    tmp_path: Path,
) -> None:
    certificates.ensure(tmp_path, now=datetime.now(UTC) - timedelta(days=800))
    before = contents(tmp_path)
    certificates.ensure(tmp_path)
    after = contents(tmp_path)
    assert after["ca.pem"] == before["ca.pem"]
    assert after["server.pem"] != before["server.pem"]
    assert perform_handshake(tmp_path, name="localhost")


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", [None, b"", b"nonsense"])
def test_a_lost_or_damaged_file_is_recreated(
    tmp_path: Path, name: str, damage: bytes | None
) -> None:
    certificates.ensure(tmp_path)
    if damage is None:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_bytes(damage)
    certificates.ensure(tmp_path)
    assert perform_handshake(tmp_path, name="localhost")


def test_a_key_that_does_not_match_its_certificate_is_detected(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        certificates.ensure(tmp_path / name)
    (tmp_path / "one" / "server.key").write_bytes((tmp_path / "two" / "server.key").read_bytes())
    certificates.ensure(tmp_path / "one")
    assert perform_handshake(tmp_path / "one", name="localhost")
