"""The service that `./run` starts, for tests that use it as a newcomer does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.started import StartedService, started_service


@pytest.fixture
def started(tmp_path: Path) -> Iterator[StartedService]:
    with started_service(tmp_path) as service:
        yield service
