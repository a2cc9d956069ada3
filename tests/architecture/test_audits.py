"""The audits after each test leave out only what cannot find anything: checks of tables that are all empty."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import delete, text
from sqlalchemy.orm import Session

from app.catalog import statistics
from app.catalog.models import ServiceTotal
from app.core.identifiers import new_id
from app.db.unit_of_work import unit_of_work
from app.state import Application
from tests.support import audits


class Check:
    """A check that finds the agents, and counts its runs."""

    def __init__(self, statement: str) -> None:
        self.statement, self.runs = text(statement), 0

    def __call__(self, session: Session) -> list[str]:
        self.runs += 1
        return [str(each) for each in session.scalars(self.statement)]


@pytest.fixture
def check() -> Iterator[Check]:
    made = Check("SELECT agents.id FROM agents LEFT JOIN topups ON topups.account_id = agents.id")
    yield made
    audits.passed.pop(made, None)


def test_a_check_is_left_out_while_its_tables_are_empty_and_repeated_once_they_have_rows(
    app: Application, check: Check, register: Callable[..., Any]
) -> None:
    audits.audit(app, [check])
    audits.audit(app, [check])
    assert check.runs == 1
    register()
    with pytest.raises(AssertionError):
        audits.audit(app, [check])
    with pytest.raises(AssertionError):
        audits.audit(app, [check])


def test_a_check_is_repeated_if_any_of_its_tables_has_a_row(
    app: Application, check: Check, register: Callable[..., Any]
) -> None:
    check.statement = text("SELECT topups.account_id FROM topups, agents WHERE topups.account_id = agents.id")
    register()
    audits.audit(app, [check])
    audits.audit(app, [check])
    assert check.runs == 2


def test_a_check_that_reads_no_table_is_always_repeated(app: Application, check: Check) -> None:
    check.statement = text("SELECT 1 WHERE 1 = 0")
    audits.audit(app, [check])
    audits.audit(app, [check])
    assert check.runs == 2


def test_the_checks_of_the_suite_find_a_fault_in_rows_that_were_not_there_before(app: Application) -> None:
    audits.audit(app)
    assert statistics.find_wrong_sums in audits.passed
    with app.app_context(), unit_of_work() as session:
        session.add(ServiceTotal(service_id=new_id(), stripe=0, calls=1, revenue_nanos=5))
    with pytest.raises(AssertionError, match="callers paid 0 nano-dollars, but 5 are counted"):
        audits.audit(app)
    with app.app_context(), unit_of_work() as session:
        session.execute(delete(ServiceTotal))
