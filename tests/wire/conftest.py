"""One real server for all attacks of a test process; afterwards no secret was exposed and nothing crashed."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.gateway import KEYS, provider_settings
from tests.support.services import web_service
from tests.support.upstreams import MisbehavingUpstream, misbehaving_upstream
from tests.support.waiting import wait_until
from tests.support.wire import Wire, holds_connections

THREADS = 20
"""Few, so that attacks can exhaust them quickly."""

MASTER_KEY = "mk_canaryOfTheMasterKey0123456789abcdefghijklm"
_SECRETS = {
    "secret_key": "canary-of-the-secret-key-0123456789",
    "code_peppers": "p1:" + base64.b64encode(b"canary of the code peppers 01234").decode(),
    "encryption_keys": "k1:" + base64.b64encode(b"canary of the encryption keys 01").decode(),
    "bootstrap_master_key": MASTER_KEY,
    "canary_of_the_environment": "canary-of-the-environment",
}
# Longer than any test, so that idle connections do not time out.
_OPTIONS = {"gunicorn_cmd_args": "--keep-alive 600"}


@pytest.fixture(scope="session")
def upstream() -> Iterator[MisbehavingUpstream]:
    with misbehaving_upstream() as server:
        yield server


@pytest.fixture(scope="session")
def wire(
    _sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory, upstream: MisbehavingUpstream
) -> Iterator[Wire]:
    database = tmp_path_factory.mktemp("canary-of-the-database") / "wire.sqlite"
    shutil.copy(_sqlite_template, database)
    settings = provider_settings(upstream.url, **_SECRETS, **_OPTIONS)
    with web_service(f"sqlite:///{database}", settings, workers=1, threads=THREADS) as service:
        made = service.register()
        attacked = Wire(service, made["apiKey"])
        yield attacked
        assert attacked.is_well()
        log = service.log.read_text(errors="replace")
        received = attacked.received.decode("latin-1")
    secrets = [*_SECRETS.values(), *(value.split(":")[-1] for value in _SECRETS.values()), *KEYS.values()]
    for secret in [*secrets, "canary-of-the-database", "canary of the"]:
        assert secret not in received
        assert secret not in log
    assert made["apiKey"] not in log
    assert made["claimCode"] not in log
    _, _, traceback = log.partition("Traceback")
    assert not traceback, traceback[:5_000]
    assert "request_failed" not in [json.loads(line).get("event") for line in log.splitlines() if line[:1] == "{"]


@pytest.fixture(autouse=True)
def _idle_server(wire: Wire, upstream: MisbehavingUpstream) -> Iterator[None]:
    """Leave the server without connections: those of a test would change what it evicts or sheds in the next one."""
    yield
    upstream.over.set()
    wait_until(lambda: not holds_connections(wire.service), what="a server without connections")
    upstream.over.clear()
