"""What all machines stand on: a ground on a real database, and time for their walks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from flask import Flask

from tests.support.machines import HUNTS, Ground, ground_for

# A walk that takes seconds takes a minute where many others are at work; a hunt takes as long as it takes.
_SECONDS = 7200 if HUNTS else 300


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give machines the time that their walks take."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.timeout(_SECONDS))


@pytest.fixture
def ground(sqlite_url: str, build_app: Callable[..., Flask]) -> Ground:
    """The ground on SQLite."""
    return ground_for(build_app, sqlite_url)


@pytest.fixture
def each_ground(each_database_url: str, build_app: Callable[..., Flask]) -> Ground:
    """The ground on each kind of database."""
    return ground_for(build_app, each_database_url)
