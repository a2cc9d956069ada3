"""Fixtures of the whole suite: databases, nodes, applications, and a network restricted to loopback."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient
from flask_migrate import upgrade
from segno import encoder
from sqlalchemy import Engine, event

from app.adapters.evm.chain import EvmChain
from app.core.chains import ChainName
from app.extensions import db
from app.observability import counters
from app.state import Application
from app.status import migrations
from sandbox.evm import EvmNode
from solana_node import SolanaNode
from tests.support import status_writes
from tests.support.applications import ApplicationPool, close, make_app, settings_for
from tests.support.audits import audit
from tests.support.chains import evm_chain, running_node
from tests.support.servers import Postgres, postgres_server, redis_server
from tests.support.signers import SignerThread, start_signer
from tests.support.solana import running_solana
from tests.support.started import StartedService, started_service

_LOOPBACK = ("127.", "::1", "localhost", "0.0.0.0")  # noqa: S104 - compared, not bound


@pytest.fixture(autouse=True, scope="session")
def _wall() -> Iterator[None]:
    """Fail every connection that is not to loopback."""
    connect = socket.socket.connect

    def guarded(self: socket.socket, address: Any) -> None:
        if isinstance(address, tuple) and not str(address[0]).startswith(_LOOPBACK):
            raise AssertionError(f"a test tried to reach {address[0]}")
        connect(self, address)

    socket.socket.connect = guarded  # type: ignore[method-assign, assignment]
    yield
    socket.socket.connect = connect  # type: ignore[method-assign]


@pytest.fixture(autouse=True, scope="session")
def _only_state_machines_write_a_status() -> None:
    """Fail every statement of the application that writes a status past its state machine."""
    event.listen(Engine, "before_cursor_execute", status_writes.reject)
    event.listen(Engine, "before_cursor_execute", status_writes.note)


@pytest.fixture(autouse=True, scope="session")
def _no_settings_from_outside() -> None:
    """Remove the settings in the environment."""
    for name in ("NETWORK", "DATABASE_URL", "REDIS_URL", "BASE_URL", "PORT", "FAUCET_URL", "LOG_LEVEL"):
        os.environ.pop(name, None)


@pytest.fixture(autouse=True, scope="session")
def _few_series() -> None:
    """Clear metrics early: each job compares all series of its process, and in the service begins without any."""
    counters._MAX_SERIES = 200


@pytest.fixture(autouse=True, scope="session")
def _first_mask_of_qr_codes() -> None:
    """Draw QR codes with the first mask: choosing the best of eight takes a third of the time of claiming an agent."""
    apply = encoder.find_and_apply_best_mask
    encoder.find_and_apply_best_mask = lambda matrix, width, height, _mask: apply(matrix, width, height, 0)


def _migrate(url: str) -> None:
    app = make_app(settings_for(url))
    migrations.bind(app)
    with app.app_context():
        upgrade()
        db.engine.dispose()


@pytest.fixture(scope="session")
def _sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("template") / "template.sqlite"
    _migrate(f"sqlite:///{path}")
    return path


@pytest.fixture
def _sqlite_files() -> Iterator[list[Path]]:
    """Files of this test that are deleted when its applications are closed, before the system writes them to a disk."""
    files: list[Path] = []
    yield files
    for each in files:
        each.unlink(missing_ok=True)


@pytest.fixture
def sqlite_url(_sqlite_template: Path, tmp_path: Path, _sqlite_files: list[Path]) -> str:
    """A migrated SQLite database for this test."""
    path = tmp_path / "test.sqlite"
    shutil.copyfile(_sqlite_template, path)
    _sqlite_files.append(path)
    return f"sqlite:///{path}"


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A PostgreSQL server for this process."""
    with postgres_server() as server:
        yield server


_database_numbers = iter(range(1_000_000))


def _database_name(purpose: str) -> str:
    worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
    return f"purser_{worker}_{purpose}"


@pytest.fixture(scope="session")
def _postgres_template(postgres: Postgres) -> str:
    name = _database_name("template")
    _migrate(postgres.create_database(name))
    return name


@pytest.fixture(scope="session")
def _postgres_schema(postgres: Postgres, _postgres_template: str) -> str:
    return postgres.empty_database(_postgres_template)


@pytest.fixture(scope="session")
def _unused_databases() -> list[str]:
    """Names of empty databases with the schema of the template."""
    return []


@pytest.fixture
def postgres_url(
    postgres: Postgres, _postgres_template: str, _postgres_schema: str, _unused_databases: list[str]
) -> Iterator[str]:
    """A migrated PostgreSQL database without rows for this test."""
    if _unused_databases:
        name = _unused_databases.pop()
    else:
        name = _database_name(str(next(_database_numbers)))
        postgres.create_database(name, template=_postgres_template)
    yield postgres.database_url(name)
    if postgres.empty_database(name) == _postgres_schema:
        _unused_databases.append(name)
    else:
        postgres.drop_database(name)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def each_database_url(request: pytest.FixtureRequest) -> str:
    """A migrated database of each kind for this test. Request it before `build_app`, so that it is dropped after it."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


@pytest.fixture(params=["sqlite"])
def database_url(request: pytest.FixtureRequest) -> str:
    """A migrated SQLite database for this test, or one of the kinds that it names."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """A Redis-compatible server for this process."""
    with redis_server() as url:
        yield url


@pytest.fixture(scope="session")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartedService]:
    """The service that `./run` starts, for all tests of this process: register agents of your own."""
    with started_service(tmp_path_factory.mktemp("run")) as service:
        yield service


@pytest.fixture(scope="session")
def _application_pool() -> ApplicationPool:
    return ApplicationPool()


@pytest.fixture
def build_app(_application_pool: ApplicationPool, _sqlite_files: list[Path]) -> Iterator[Callable[..., Application]]:
    """Return applications; their databases are audited and closed when the test ends.

    `reused=False` creates a new one, for a test that changes its routes or configuration.
    """
    closing: list[tuple[Application, Callable[[Application], None]]] = []
    signers: list[SignerThread] = []

    def build(
        database_url: str, *, settings: dict[str, Any] | None = None, reused: bool = True, **parts: Any
    ) -> Application:
        chosen = settings_for(database_url, **(settings or {}))
        app = _application_pool.take(chosen, **parts) if reused else make_app(chosen, **parts)
        closing.append((app, _application_pool.give_back if reused else close))
        if os.environ.get("TEST_SIGNER") and "vault" not in parts:
            signers.append(start_signer(app))
        return app

    status_writes.by_tests.clear()
    yield build
    for app, end in closing:
        try:
            audit(app)
        finally:
            end(app)
    for signer in signers:
        signer.end()


@pytest.fixture
def app(build_app: Callable[..., Flask], sqlite_url: str) -> Flask:
    """An application on SQLite without chains."""
    return build_app(sqlite_url)


@pytest.fixture
def client(app: Flask) -> Iterator[FlaskClient]:
    """A client of `app`, inside its application context."""
    with app.app_context(), contextlib.ExitStack():
        yield app.test_client()


@pytest.fixture
def register(client: FlaskClient) -> Callable[..., dict[str, Any]]:
    """Register an agent and return the body of the response."""

    def call(**body: Any) -> dict[str, Any]:
        answer = client.post("/v1/agents/register", json=body)
        assert answer.status_code == 201, answer.get_data(as_text=True)
        registered: dict[str, Any] = answer.get_json()
        return registered

    return call


@pytest.fixture(scope="session")
def ethereum_node() -> Iterator[EvmNode]:
    """An Ethereum node shared by all tests of this process: use separate addresses, and do not change mining."""
    with running_node(ChainName.ETHEREUM) as node:
        yield node


@pytest.fixture(scope="session")
def base_node() -> Iterator[EvmNode]:
    """A Base node shared by all tests of this process: use separate addresses, and do not change mining."""
    with running_node(ChainName.BASE) as node:
        yield node


@pytest.fixture
def own_base_node() -> Iterator[EvmNode]:
    """A Base node for this test alone, for faults of mining, reorgs and kills."""
    with running_node(ChainName.BASE) as node:
        yield node


@pytest.fixture(scope="session")
def solana_node() -> Iterator[SolanaNode]:
    """A Solana node with short slots shared by all tests of this process: use separate addresses."""
    with running_solana(slot_ms=20) as node:
        yield node


@pytest.fixture
def chains(ethereum_node: EvmNode, base_node: EvmNode) -> dict[ChainName, EvmChain]:
    """The adapters for the shared nodes."""
    return {ChainName.ETHEREUM: evm_chain(ethereum_node), ChainName.BASE: evm_chain(base_node)}


@pytest.fixture
def chain_app(build_app: Callable[..., Flask], sqlite_url: str, chains: dict[ChainName, EvmChain]) -> Flask:
    """An application on SQLite with the shared nodes as its chains."""
    return build_app(sqlite_url, chains=chains)
