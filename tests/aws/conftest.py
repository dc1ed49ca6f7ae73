"""One server of S3, IAM and STS for all tests of this directory."""

from collections.abc import Generator

import pytest

from support.services import ministack
from support.services.ministack import Ministack


@pytest.fixture(scope="session")
def aws(tmp_path_factory: pytest.TempPathFactory) -> Generator[Ministack]:
    with ministack.running(tmp_path_factory.mktemp("ministack")) as server:
        yield server
