"""Clients of the API. A file that has its own `app` gets an agent and an operator of that one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient

from sandbox.evm import EvmNode
from tests.support.agents import Agent, register
from tests.support.chains import fund
from tests.support.drivers import EvmDriver, evm_driver
from tests.support.notices import Mailbox, running_mailbox
from tests.support.operators import Operator, operator
from tests.support.personal_data import Scene
from tests.support.sqlite_copies import FilledOnce


@pytest.fixture
def agent(client: FlaskClient) -> Agent:
    return register(client)


@pytest.fixture
def ops(client: FlaskClient) -> Operator:
    return operator(client)


@pytest.fixture
def everywhere(each_database_url: str, build_app: Callable[..., Flask]) -> Iterator[FlaskClient]:
    """A client of an application on each database."""
    app = build_app(each_database_url)
    with app.app_context():
        yield app.test_client()


@pytest.fixture
def seller(everywhere: FlaskClient) -> Agent:
    return register(everywhere)


@pytest.fixture
def chain_client(chain_app: Flask) -> Iterator[FlaskClient]:
    """A client of an application with the shared nodes as its chains."""
    with chain_app.app_context():
        yield chain_app.test_client()


@pytest.fixture
def funded_agent(chain_client: FlaskClient, base_node: EvmNode) -> Agent:
    """An agent with 1 ETH and 100 USDC on Base."""
    made = register(chain_client)
    fund(base_node, made.address, eth=1, dollars=100)
    return made


@pytest.fixture
def driver(request: pytest.FixtureRequest) -> EvmDriver:
    """Base on the shared node, or on one of its own for a test of faults."""
    return evm_driver(request.getfixturevalue(getattr(request, "param", "base_node")))


@pytest.fixture
def settings(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Settings of the application, with those that a test names."""
    return {"confirmation_wait_seconds": "5", **getattr(request, "param", {})}


@pytest.fixture(scope="session")
def with_personal_data(tmp_path_factory: pytest.TempPathFactory) -> FilledOnce[Scene]:
    """A database with the personal data of an owner, for all tests of this process."""
    return FilledOnce(tmp_path_factory.mktemp("filled"))


@pytest.fixture
def mailbox() -> Iterator[Mailbox]:
    with running_mailbox() as box:
        yield box
