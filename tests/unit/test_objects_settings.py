"""The settings of the object store."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from trace_etl.objects.s3_store import S3Store
from trace_etl.sink.settings import SinkSettings


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    for name in ("DISPATCHER_URL", "TLS_CA", "SERVICE_TOKEN_FILE", "QUEUE_DSN", "DATA_DSN"):
        monkeypatch.setenv(f"TRACE_{name}", "x")
    monkeypatch.setenv("TRACE_OBJECTS_URL", tmp_path.as_uri())
    return monkeypatch


def test_the_object_store_is_named_by_its_url(
    environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert SinkSettings().objects_url == tmp_path.as_uri()


@pytest.mark.parametrize("has_url", [True, False])
@pytest.mark.parametrize("name", ["TRACE_OBJECT_SCHEME", "TRACE_OBJECTS_ROOT"])
def test_a_removed_setting_is_an_error_that_names_its_replacement(
    environment: pytest.MonkeyPatch, name: str, has_url: bool
) -> None:
    environment.setenv(name, "file")
    if not has_url:
        environment.delenv("TRACE_OBJECTS_URL")
    with pytest.raises(ValidationError, match=f"{name} is no longer.*TRACE_OBJECTS_URL"):
        SinkSettings()


def test_the_endpoint_of_other_aws_clients_is_used_unless_another_one_is_set(
    environment: pytest.MonkeyPatch,
) -> None:
    environment.setenv("TRACE_OBJECTS_URL", "s3://bucket/prefix")
    environment.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9000")
    store = SinkSettings().open_objects()
    assert isinstance(store, S3Store)
    assert store.options.endpoint == "http://127.0.0.1:9000"
    environment.setenv("TRACE_S3_ENDPOINT", "https://minio.example")
    store = SinkSettings().open_objects()
    assert isinstance(store, S3Store)
    assert store.options.endpoint == "https://minio.example"
