"""The service for published clients: a base URL and a key, the real server, and stand-ins for the providers."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.gateway import provider_settings
from tests.support.services import WebService, web_service
from tests.support.stand_ins import StandIns
from tests.support.upstreams import MisbehavingUpstream, misbehaving_upstream


@dataclass(frozen=True, slots=True)
class Scene:
    """The service and key for a client, and the upstream behind it."""

    service: WebService
    upstream: MisbehavingUpstream
    key: str

    def usage(self) -> list[dict[str, Any]]:
        logs: list[dict[str, Any]] = self.service.get("/v1/usage?limit=500", self.key)["logs"]
        return logs


@pytest.fixture(scope="module")
def own_sqlite_url(_sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A migrated SQLite database of this module's own."""
    path = tmp_path_factory.mktemp("clients") / "service.sqlite"
    shutil.copy(_sqlite_template, path)
    return f"sqlite:///{path}"


@pytest.fixture(scope="module")
def gateway(own_sqlite_url: str) -> Iterator[tuple[WebService, MisbehavingUpstream]]:
    """The service in front of stand-ins for all providers."""
    with (
        misbehaving_upstream(StandIns()) as upstream,
        web_service(own_sqlite_url, provider_settings(upstream.url), workers=1, threads=20) as service,
    ):
        yield service, upstream


@pytest.fixture
def scene(gateway: tuple[WebService, MisbehavingUpstream]) -> Scene:
    service, upstream = gateway
    return Scene(service, upstream, service.register()["apiKey"])
