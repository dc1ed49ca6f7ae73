"""Keys and tokens of the local stack."""

import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import jwt

from trace_etl.http.user_tokens import UserKeys
from trace_etl.lite.credentials import keys


def user_token(directory: Path, *, now: datetime | None = None) -> tuple[Path, Path]:
    (directory / "user").mkdir(exist_ok=True)
    key = keys.ensure_user_key(directory / "user")
    keys.ensure_user_token(directory / "user.jwt", key, now=now)
    return directory / "user.jwt", key


def test_the_services_accept_the_local_users_token(tmp_path: Path) -> None:
    token, _ = user_token(tmp_path)
    user = UserKeys(tmp_path / "user" / "public").verify(token.read_text().strip())
    assert (str(user.org_id), user.name) == (keys.LOCAL_ORG, "local")


def test_the_token_has_a_key_id_and_an_expiry(tmp_path: Path) -> None:
    token, key = user_token(tmp_path)
    text = token.read_text().strip()
    assert jwt.get_unverified_header(text) == {"alg": "ES256", "typ": "JWT", "kid": key.stem}
    claims = jwt.decode(text, options={"verify_signature": False})
    assert claims["exp"] - claims["iat"] == timedelta(days=365).total_seconds()


def test_a_second_start_keeps_keys_and_tokens(tmp_path: Path) -> None:
    token, key = user_token(tmp_path)
    before = token.read_text()
    keys.ensure_task_key(tmp_path)
    keys.ensure_worker_token(tmp_path / "worker")
    worker, task_keys = (tmp_path / "worker").read_text(), sorted(tmp_path.glob("task-*.pem"))
    assert user_token(tmp_path) == (token, key)
    keys.ensure_task_key(tmp_path)
    keys.ensure_worker_token(tmp_path / "worker")
    assert token.read_text() == before
    assert (tmp_path / "worker").read_text() == worker
    assert sorted(tmp_path.glob("task-*.pem")) == task_keys
    assert len(task_keys) == 1


def test_an_expiring_token_is_renewed(tmp_path: Path) -> None:
    token, key = user_token(tmp_path, now=datetime.now(UTC) - timedelta(days=300))
    before = token.read_text()
    keys.ensure_user_token(token, key)
    assert token.read_text() != before


def test_a_token_of_a_lost_key_is_replaced(tmp_path: Path) -> None:
    token, key = user_token(tmp_path)
    before = token.read_text()
    key.unlink()
    user_token(tmp_path)
    assert token.read_text() != before
    assert UserKeys(tmp_path / "user" / "public").verify(token.read_text().strip()).name == "local"


def test_only_the_owner_can_read_secrets(tmp_path: Path) -> None:
    token, key = user_token(tmp_path)
    keys.ensure_worker_token(tmp_path / "worker")
    for path in (token, key, tmp_path / "worker"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len((tmp_path / "worker").read_text().strip()) >= 40
