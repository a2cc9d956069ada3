"""Kills during an erasure of personal data: it happens entirely or not at all, and a retry completes it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from flask import Flask

from app.audit_log import verification
from app.extensions import db
from tests.crash.conftest import on_both
from tests.support.agents import register
from tests.support.filled import held
from tests.support.ledger import read
from tests.support.operators import entries, operator
from tests.support.processes import COMMIT, Point, Service, ask, points, run

EMAIL = "ada.lovelace@home.example.org"


POINTS = points(COMMIT)


@pytest.mark.parametrize(("database_url", "point"), on_both(POINTS, POINTS[:1]), indirect=["database_url"])
def test_an_erasure_of_a_killed_process_is_completed_by_a_retry(
    point: Point, database_url: str, build_app: Callable[..., Flask]
) -> None:
    app = build_app(database_url)
    with app.app_context():
        ops, agent = operator(app.test_client()), register(app.test_client(), email=EMAIL)
        path = f"/v1/platform/agents/{agent.id}/personal-data"
        assert run(
            Service(database_url, ()), partial(ask, method="DELETE", path=path, headers=ops.headers()), point
        ).killed
        with db.engine.connect() as connection:
            assert (EMAIL in repr(held(connection))) == (point.when == "before")
        assert len(entries(action="agent.personal_data_erased")) == (0 if point.when == "before" else 1)
        assert ops.delete(f"/agents/{agent.id}/personal-data").status_code == 200
        with db.engine.connect() as connection:
            assert EMAIL not in repr(held(connection))
        assert read(verification.find_problems) == []
