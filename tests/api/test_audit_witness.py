"""The witness of the audit log: what the database alone can no longer hide."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from flask import Flask
from sqlalchemy import delete, select, update

from app.audit_log import verification, witness
from app.audit_log.trail import AuditEntry, AuditHead
from app.db.unit_of_work import snapshot
from app.extensions import db
from workers import sweeps


@pytest.fixture
def app(build_app: Callable[..., Flask], sqlite_url: str, tmp_path: Path) -> Flask:
    return build_app(sqlite_url, settings={"audit_witness_file": str(tmp_path / "var" / "heads.log")})


def run(app: Flask, *arguments: str) -> tuple[int, str]:
    done = app.test_cli_runner().invoke(args=list(arguments))
    return done.exit_code, done.output


def roll_back(app: Flask) -> None:
    """Delete the entries after the first, and put back the head of that time."""
    run(app, "master-keys", "create", "--name", "first")
    with db.engine.connect() as connection:
        head = dict(connection.execute(select(AuditHead.__table__)).mappings().one())
    run(app, "master-keys", "create", "--name", "thief")
    with db.engine.begin() as connection:
        connection.execute(delete(AuditEntry.__table__).where(AuditEntry.__table__.c.number > 1))
        connection.execute(update(AuditHead.__table__).values(head))


def test_the_witness_shows_that_the_end_of_the_audit_log_was_deleted(app: Flask) -> None:
    with app.app_context():
        roll_back(app)
        code, output = run(app, "audit", "verify")
        assert (code, "the trail ends at entry 1, but had 2" in output) == (1, True), output
        # Nor do later entries hide it.
        run(app, "master-keys", "create", "--name", "another")
        code, output = run(app, "audit", "verify")
        assert (code, "entry 2 is not the recorded one" in output) == (1, True), output
        assert any("entry 2 is not the recorded one" in each for each in sweeps.audit())
        assert "entry 2 is not the recorded one" in run(app, "doctor")[1]


def test_a_restore_that_the_operator_reports_begins_a_new_series(app: Flask) -> None:
    with app.app_context():
        roll_back(app)
        run(app, "restored")
        code, output = run(app, "audit", "verify")
        assert (code, "agrees with 1 recorded heads" in output) == (0, True), output


def test_heads_are_recorded_at_each_act_of_an_operator_and_hourly(app: Flask) -> None:
    with app.app_context():
        for _ in range(2):
            run(app, "master-keys", "create")
        sweeps.audit()
        found = witness.read()
        assert found is not None
        assert [head.number for head in found.heads] == [1, 2, 2]
        assert run(app, "audit", "verify")[0] == 0


def test_a_line_that_was_changed_is_reported(app: Flask) -> None:
    with app.app_context():
        run(app, "master-keys", "create")
        path = Path(app.state.settings.audit_witness_file)  # type: ignore[attr-defined]
        path.write_text(path.read_text().replace(" 1 ", " 0 ") + "nonsense\n")
        with snapshot() as session:
            problems = verification.find_witness_problems(session)
        assert problems == [f"line {n} of the witness was not written by this service" for n in (1, 2)]


def test_doctor_warns_without_a_witness(build_app: Callable[..., Flask], sqlite_url: str) -> None:
    app = build_app(sqlite_url)
    with app.app_context():
        assert "no file outside the database records the heads" in run(app, "doctor")[1]
        code, output = run(app, "audit", "verify")
        assert (code, "no witness" in output) == (0, True)


def test_a_disk_that_is_full_or_read_only_stops_no_act(build_app: Callable[..., Flask], sqlite_url: str) -> None:
    app = build_app(sqlite_url, settings={"audit_witness_file": "/proc/nowhere/heads.log"})
    with app.app_context():
        assert run(app, "master-keys", "create")[0] == 0
