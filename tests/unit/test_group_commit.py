"""Group commit: batches form while another one runs, and no thread that fails or leaves blocks the others."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError

from app.db.group_commit import GroupCommit, NotStartedError
from app.db.unit_of_work import CommitUnknownError
from tests.support.waiting import wait_until

_FAILS, _IS_INTERRUPTED = -1, -2


class _Interrupt(BaseException):
    """An exception from outside, such as the SystemExit of a signal handler."""


@dataclass
class Group:
    """A group of threads; each batch is held until it is released."""

    max_wait: timedelta = timedelta(minutes=1)
    batches: list[Sequence[int]] = field(default_factory=list)
    released: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    results: dict[int, Any] = field(default_factory=dict)
    threads: list[threading.Thread] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.commit = GroupCommit(self._execute, max_wait=self.max_wait)

    def _execute(self, jobs: Sequence[int]) -> list[int]:
        self.batches.append(jobs)
        self.released.acquire()
        if _FAILS in jobs:
            raise OperationalError("batch", {}, Exception())
        if _IS_INTERRUPTED in jobs:
            raise _Interrupt
        return [job * 10 for job in jobs]

    def _run(self, job: int) -> None:
        try:
            self.results[job] = self.commit.run(job)
        except BaseException as error:
            self.results[job] = type(error)

    def start(self, job: int) -> None:
        """Run a job in a thread of its own; return when it is in a batch or waits for the next one."""
        entered = len(self.commit._waiting), len(self.batches)
        self.threads.append(threading.Thread(target=self._run, args=[job]))
        self.threads[-1].start()
        wait_until(lambda: (len(self.commit._waiting), len(self.batches)) != entered)

    def finish(self, *, batches: int) -> dict[int, Any]:
        """Release batches, and return what each job returned or raised when all threads have ended."""
        self.released.release(batches)
        for thread in self.threads:
            thread.join(10)
        return self.results

    def assert_free(self) -> None:
        """Check that nothing waits, and that the next job runs."""
        self.released.release()
        assert self.commit.run(7) == 70
        assert not self.commit._waiting


def test_jobs_that_arrive_meanwhile_form_the_next_batch() -> None:
    group = Group()
    for job in (1, 2, 3):
        group.start(job)
    assert group.finish(batches=2) == {1: 10, 2: 20, 3: 30}
    assert group.batches == [[1], [2, 3]]
    group.assert_free()


def test_the_error_of_a_batch_is_that_of_its_jobs_alone() -> None:
    group = Group()
    for job in (1, 2, _FAILS):
        group.start(job)
    failed = OperationalError
    assert group.finish(batches=2) == {1: 10, 2: failed, _FAILS: failed}
    group.assert_free()


def test_an_interrupted_leader_leaves_an_unknown_outcome_to_the_others() -> None:
    group = Group()
    for job in (1, _IS_INTERRUPTED, 2):
        group.start(job)
    assert group.finish(batches=2) == {1: 10, _IS_INTERRUPTED: _Interrupt, 2: CommitUnknownError}
    group.assert_free()


def test_a_job_that_waits_too_long_is_not_started() -> None:
    group = Group(timedelta(milliseconds=200))
    group.start(1)
    group.start(2)
    wait_until(lambda: group.results == {2: NotStartedError})
    assert group.finish(batches=1) == {1: 10, 2: NotStartedError}
    assert group.batches == [[1]]
    group.assert_free()


def test_a_batch_that_takes_too_long_has_an_unknown_outcome_for_those_who_wait() -> None:
    group = Group(timedelta(seconds=2))
    for job in (1, 2, 3):
        group.start(job)
    group.released.release()
    wait_until(lambda: group.batches == [[1], [2, 3]])
    wait_until(lambda: 3 in group.results)
    assert group.finish(batches=1) == {1: 10, 2: 20, 3: CommitUnknownError}
    group.assert_free()


def _interrupted(wait: Callable[[], object], *, once: Callable[[], bool]) -> None:
    """Interrupt the main thread, as a signal handler that raises does, as soon as a condition is met."""

    def interrupt() -> None:
        wait_until(once)
        os.kill(os.getpid(), signal.SIGUSR1)

    def handle(_number: int, _frame: object) -> None:
        raise _Interrupt

    former = signal.signal(signal.SIGUSR1, handle)
    try:
        threading.Thread(target=interrupt).start()
        with pytest.raises(_Interrupt):
            wait()
    finally:
        signal.signal(signal.SIGUSR1, former)


def test_a_thread_that_is_interrupted_while_it_waits_takes_its_job_along() -> None:
    group = Group()
    group.start(1)
    _interrupted(lambda: group.commit.run(2), once=lambda: len(group.commit._waiting) == 1)
    group.start(3)
    assert group.finish(batches=2) == {1: 10, 3: 30}
    assert group.batches == [[1], [3]]
    group.assert_free()


def test_a_thread_that_is_interrupted_as_it_is_to_lead_passes_the_lead_on() -> None:
    group = Group()
    group.start(1)
    group.start(2)
    # As if it were interrupted after it was chosen and before it runs its batch.
    chosen = group.commit._waiting[0]
    group.start(3)
    chosen.leads = True
    group.commit._leave(chosen)
    group.released.release()
    wait_until(lambda: len(group.batches) == 2)
    assert group.batches == [[1], [3]]
    chosen.gate.release()
    group.finish(batches=1)
    assert group.results[3] == 30
