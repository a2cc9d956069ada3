"""Fixtures of the whole suite: databases, nodes, applications; and the wall around it: loopback only."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from flask import Flask
from flask.testing import FlaskClient
from flask_migrate import upgrade

from app.adapters.evm.chain import EvmChain
from app.catalog import audit as catalog_audit
from app.core.chains import ChainName
from app.core.unit_of_work import snapshot
from app.credits import audit as credits_audit
from app.extensions import db
from app.payments import audit as payments_audit
from app.platform import verification
from app.spending import audit as spending_audit
from app.usage import audit as usage_audit
from app.wallets import audit as wallets_audit
from sandbox.evm import EvmNode
from tests.support.applications import make_app, settings_for
from tests.support.chains import evm_chain, running_node
from tests.support.servers import Postgres, postgres_server, redis_server

# How long an example takes says how busy the machine is, and nothing about the code.
# The same examples each time: a run of the suite is no lottery. `HYPOTHESIS_HUNT=1` looks for more.
hypothesis.settings.register_profile("suite", deadline=None, derandomize="HYPOTHESIS_HUNT" not in os.environ)
hypothesis.settings.load_profile("suite")

_LOOPBACK = ("127.", "::1", "localhost", "0.0.0.0")  # noqa: S104 - compared, not bound


@pytest.fixture(autouse=True, scope="session")
def _wall() -> Iterator[None]:
    """Fail every connection that would leave the machine."""
    connect = socket.socket.connect

    def guarded(self: socket.socket, address: Any) -> None:
        if isinstance(address, tuple) and not str(address[0]).startswith(_LOOPBACK):
            raise AssertionError(f"a test tried to reach {address[0]}")
        connect(self, address)

    socket.socket.connect = guarded  # type: ignore[method-assign, assignment]
    yield
    socket.socket.connect = connect  # type: ignore[method-assign]


@pytest.fixture(autouse=True, scope="session")
def _no_settings_from_outside() -> None:
    """Tests must not depend on what the developer has in the environment."""
    for name in ("NETWORK", "DATABASE_URL", "REDIS_URL", "BASE_URL", "PORT", "FAUCET_URL", "LOG_LEVEL"):
        os.environ.pop(name, None)


def _migrate(url: str) -> None:
    app = make_app(settings_for(url))
    with app.app_context():
        upgrade()
        db.engine.dispose()


@pytest.fixture(scope="session")
def _sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("template") / "template.sqlite"
    _migrate(f"sqlite:///{path}")
    return path


@pytest.fixture
def sqlite_url(_sqlite_template: Path, tmp_path: Path) -> str:
    """A migrated SQLite database of this test's own."""
    path = tmp_path / "test.sqlite"
    shutil.copy(_sqlite_template, path)
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


@pytest.fixture
def postgres_url(postgres: Postgres, _postgres_template: str) -> Iterator[str]:
    """A migrated PostgreSQL database of this test's own."""
    name = _database_name(str(next(_database_numbers)))
    yield postgres.create_database(name, template=_postgres_template)
    postgres.drop_database(name)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def each_database_url(request: pytest.FixtureRequest) -> str:
    """A migrated database of this test's own, of each kind. Ask for it before `build_app`, to be dropped after it."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """A Redis-compatible server for this process."""
    with redis_server() as url:
        yield url


@pytest.fixture
def build_app() -> Iterator[Callable[..., Flask]]:
    """Make applications whose databases are audited and closed when the test ends."""
    made: list[Flask] = []

    def build(database_url: str, *, settings: dict[str, Any] | None = None, **parts: Any) -> Flask:
        app = make_app(settings_for(database_url, **(settings or {})), **parts)
        made.append(app)
        return app

    yield build
    for app in made:
        try:
            audit(app)
        finally:
            _close(app)


def _close(app: Flask) -> None:
    with app.app_context():
        db.engine.dispose()
    for reader in app.extensions["balance_readers"].values():
        reader.shutdown(wait=False)
    app.extensions["ports"].upstream.close()
    app.extensions["ports"].public_upstream.close()


def audit(app: Flask) -> None:
    """Prove the money invariants of an application's database."""
    with app.app_context(), snapshot():
        assert credits_audit.check() == []
        assert spending_audit.check() == []
        assert usage_audit.check() == []
        assert verification.check() == []
        assert catalog_audit.check() == []
        assert payments_audit.check() == []
        assert wallets_audit.check() == []


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
    """Register an agent and return the answer's body."""

    def call(**body: Any) -> dict[str, Any]:
        answer = client.post("/v1/agents/register", json=body)
        assert answer.status_code == 201, answer.get_data(as_text=True)
        registered: dict[str, Any] = answer.get_json()
        return registered

    return call


@pytest.fixture(scope="session")
def ethereum_node() -> Iterator[EvmNode]:
    """An Ethereum node that all tests of this process share: use addresses of your own, and leave mining alone."""
    with running_node(ChainName.ETHEREUM) as node:
        yield node


@pytest.fixture(scope="session")
def base_node() -> Iterator[EvmNode]:
    """A Base node that all tests of this process share: use addresses of your own, and leave mining alone."""
    with running_node(ChainName.BASE) as node:
        yield node


@pytest.fixture
def own_base_node() -> Iterator[EvmNode]:
    """A Base node of this test's own, for stopping its mining, reorganising and killing it."""
    with running_node(ChainName.BASE) as node:
        yield node


@pytest.fixture
def chains(ethereum_node: EvmNode, base_node: EvmNode) -> dict[ChainName, EvmChain]:
    """The adapters for the shared nodes."""
    return {ChainName.ETHEREUM: evm_chain(ethereum_node), ChainName.BASE: evm_chain(base_node)}


@pytest.fixture
def chain_app(build_app: Callable[..., Flask], sqlite_url: str, chains: dict[ChainName, EvmChain]) -> Flask:
    """An application on SQLite with the shared nodes as its chains."""
    return build_app(sqlite_url, chains=chains)
