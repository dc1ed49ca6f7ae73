"""Secrets by organisation, and references to them in URLs."""

from pathlib import Path
from uuid import UUID, uuid4

import pytest

from trace_etl.secret_store import SecretMissing, SecretStore, expand_url, pick_variables
from trace_etl.worker.masking import SecretMask

OWN = UUID(int=1)
OTHER = uuid4()


@pytest.fixture
def store(tmp_path: Path) -> SecretStore:
    for place, text in ((tmp_path, "own value\n"), (tmp_path / "orgs" / str(OTHER), "other value")):
        place.mkdir(parents=True, exist_ok=True)
        (place / "key").write_text(text)
    environment = {"TRACE_SECRET_from_shell": "from the shell", "HOME": "/root"}
    return SecretStore(tmp_path, OWN, pick_variables(environment))


def test_each_organisation_has_its_own_secrets(store: SecretStore) -> None:
    assert store.resolve(OWN, ["key"]) == {"key": "own value"}
    assert store.resolve(OTHER, ["key"]) == {"key": "other value"}
    with pytest.raises(SecretMissing, match="'key' is missing"):
        store.resolve(uuid4(), ["key"])


def test_variables_belong_to_the_own_organisation(store: SecretStore) -> None:
    assert store.resolve(OWN, ["from_shell"]) == {"from_shell": "from the shell"}
    assert store.find_missing(OTHER, ["from_shell"]) == ["from_shell"]


def test_a_file_wins_over_a_variable(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("in the file")
    store = SecretStore(tmp_path, OWN, {"TRACE_SECRET_key": "in the environment"})
    assert store.resolve(OWN, ["key"]) == {"key": "in the file"}


@pytest.mark.parametrize("content", [b"", b"\n\n", b"abc", b"\xff\xfe\xfd\xfc\xfb", b"a\0bcdef"])
def test_an_unusable_secret_is_refused_without_its_value(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "key").write_bytes(content)
    with pytest.raises(SecretMissing, match="'key'") as refused:
        SecretStore(tmp_path, OWN).resolve(OWN, ["key"])
    assert "abc" not in str(refused.value) and "bcdef" not in str(refused.value)


def test_the_representation_of_a_secret_hides_its_value(store: SecretStore) -> None:
    assert "from the shell" not in repr(store)


def test_a_url_gets_its_secrets_escaped() -> None:
    url = "https://node/v3/${secret:key}?token=${secret:other}"
    assert expand_url(url, {"key": "a/b", "other": "c d"}) == "https://node/v3/a%2Fb?token=c%20d"


def test_a_secret_can_be_a_whole_url() -> None:
    assert expand_url("${secret:url}", {"url": "https://node/v3/k"}) == "https://node/v3/k"


def test_a_url_with_an_unnamed_secret_is_refused() -> None:
    with pytest.raises(SecretMissing, match="'key', which the job does not name"):
        expand_url("https://node/${secret:key}", {"other": "value"})


def test_a_mask_hides_a_secret_in_urls_and_json() -> None:
    mask = SecretMask()
    mask.hide('se"cr/et value')
    shown = mask.mask('{"a": "se\\"cr/et value"} http://x/se%22cr%2Fet%20value se"cr/et value')
    assert shown == '{"a": "***"} http://x/*** ***'
