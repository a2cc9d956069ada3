"""Behind a pooler that mixes up prepared statements, doctor says so, and the service works without them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from flask import Flask
from sqlalchemy import bindparam, select

from app.core import clock
from app.db.group_commit import KeptConnection
from app.db.leases import Heartbeat
from app.db.prepared import PreparedInsert, PreparedRead, commit_part
from app.db.tables import table_of
from app.db.unit_of_work import read_only_unit, unit_of_work
from tests.support.applications import close, make_app, settings_for
from tests.support.servers import pgbouncer
from tests.support.transaction_pooler import transaction_pooler

pytestmark = pytest.mark.postgres
BEATS = table_of(Heartbeat)
FIX = "DATABASE_PREPARED_STATEMENTS=0"


@pytest.fixture(params=["stand-in", "PgBouncer"])
def pooler(request: pytest.FixtureRequest, postgres_url: str) -> Iterator[tuple[str, bool]]:
    """The URL of a pooler, and whether it mixes up prepared statements."""
    if request.param == "PgBouncer":
        with pgbouncer(postgres_url) as (url, version):
            yield url, version < (1, 22)
        return
    with transaction_pooler(postgres_url) as url:
        yield url, True


def test_doctor_recognises_a_pooler_that_mixes_up_prepared_statements(
    postgres_url: str, pooler: tuple[str, bool]
) -> None:
    for url, is_found in ((postgres_url, False), pooler):
        app = make_app(settings_for(url))
        try:
            output = app.test_cli_runner().invoke(args=["doctor"]).output
        finally:
            close(app)
        assert (FIX in output) is is_found, output


def test_without_prepared_statements_each_transaction_may_use_another_connection(
    pooler: tuple[str, bool], build_app: Callable[..., Flask]
) -> None:
    app = build_app(pooler[0], settings={"database_prepared_statements": False})
    insert = PreparedInsert(Heartbeat)
    read = PreparedRead(select(BEATS.c.name).where(BEATS.c.name > bindparam("after")).order_by(BEATS.c.name))
    with app.app_context():
        kept = KeptConnection()
        for number in range(4):
            with unit_of_work() as session:
                insert.execute(session, {"name": f"beat-{number}", "at": clock.now()})
                commit_part(session)
                insert.execute(session, {"name": f"after-{number}", "at": clock.now()})
            with read_only_unit() as session:
                assert len(read.all(session, {"after": ""})) == 2 * (number + 1)
            assert kept.execute("SELECT $1::int + 1", [23], [b"%d" % number]) == [[b"%d" % (number + 1)]]
    assert FIX not in app.test_cli_runner().invoke(args=["doctor"]).output
