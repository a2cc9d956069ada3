"""What an operator does about authenticated rows, for tests that change them by SQL on purpose."""

from __future__ import annotations

from app import authenticated
from app.db.unit_of_work import unit_of_work
from app.spending import controls


def accept() -> int:
    """Accept every row as it is in the database; return how many had no valid MAC."""
    with unit_of_work() as session:
        controls.align_versions(session)
    return authenticated.restamp_all(accepts_changed=True)
