"""Fixtures of state machines: a ground on a real database, and longer timeouts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from flask import Flask

from tests.support.machines import HUNTS, Ground, Walk, ground_for, walk_at_random, walk_by_script

# A walk takes seconds, but a minute on a busy machine; a hunt is not limited.
_SECONDS = 7200 if HUNTS else 300


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Set the timeouts of state machines."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.timeout(_SECONDS))


@pytest.fixture(params=["script", "walks"])
def walk(request: pytest.FixtureRequest) -> Walk:
    """Run a machine by its script, and at random."""
    ways: dict[str, Walk] = {"script": walk_by_script, "walks": walk_at_random}
    return ways[request.param]


@pytest.fixture
def ground(sqlite_url: str, build_app: Callable[..., Flask]) -> Ground:
    """The ground on SQLite."""
    return ground_for(build_app, sqlite_url)


@pytest.fixture
def each_ground(each_database_url: str, build_app: Callable[..., Flask]) -> Ground:
    """The ground on each kind of database."""
    return ground_for(build_app, each_database_url)
