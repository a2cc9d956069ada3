"""Periodic work is done by one process at a time, and a dead process does not stop it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta

import time_machine
from flask import Flask

from app.core import clock
from app.db.leases import lease, once_per_period

MINUTE = timedelta(minutes=1)


def test_a_lease_has_one_holder_until_it_is_released(each_database_url: str, build_app: Callable[..., Flask]) -> None:
    with build_app(each_database_url).app_context():
        with lease("work", duration=MINUTE) as first, lease("work", duration=MINUTE) as second:
            assert (first, second) == (True, False)
        with lease("work", duration=MINUTE) as third, lease("other", duration=MINUTE) as other:
            assert (third, other) == (True, True)


def test_a_lease_expires_and_its_late_holder_does_not_release_the_next_one(app: Flask) -> None:
    with app.app_context(), time_machine.travel(clock.now(), tick=False) as time:
        late = lease("work", duration=MINUTE)
        assert late.__enter__()
        time.shift(MINUTE + timedelta(seconds=1))
        with lease("work", duration=MINUTE) as successor:
            assert successor
            late.__exit__(None, None, None)
            with lease("work", duration=MINUTE) as third:
                assert not third


def test_work_is_due_once_per_period_and_soon_again_after_a_failure(app: Flask) -> None:
    def is_due_after(wait: timedelta, *, failing: bool = False) -> bool:
        time.shift(wait)
        with suppress(ZeroDivisionError), once_per_period(timedelta(hours=1), "work", duration=MINUTE) as due:
            if failing:
                raise ZeroDivisionError
            return due
        return True

    with app.app_context(), time_machine.travel(clock.now(), tick=False) as time:
        assert is_due_after(timedelta())
        assert not is_due_after(timedelta(minutes=59))
        assert is_due_after(timedelta(minutes=2), failing=True)
        assert not is_due_after(timedelta(seconds=59))
        assert is_due_after(timedelta(seconds=2))
