"""What a client is given: an address and a key. Behind it the real server, and an upstream that speaks its dialect."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.support.gateway import provider_settings
from tests.support.services import WebService, web_service
from tests.support.upstreams import MisbehavingUpstream, misbehaving_upstream


@dataclass(frozen=True, slots=True)
class Scene:
    """What a client needs, and what can be seen behind it."""

    service: WebService
    upstream: MisbehavingUpstream
    key: str

    def usage(self) -> list[dict[str, Any]]:
        logs: list[dict[str, Any]] = self.service.get("/v1/usage", self.key)["logs"]
        return logs

    def gateway(self, provider: str) -> str:
        return f"{self.service.url}/v1/gateway/{provider}"


@pytest.fixture
def scene(sqlite_url: str) -> Iterator[Scene]:
    with (
        misbehaving_upstream() as upstream,
        web_service(sqlite_url, provider_settings(upstream.url), workers=1, threads=20) as service,
    ):
        yield Scene(service, upstream, service.register()["apiKey"])
