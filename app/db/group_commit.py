"""Group commit: operations of concurrent threads share one transaction, and so its round trips and its fsync.

No separate thread commits. The first operation leads if none is running: it runs all that wait, its own included, and
then the next that waits leads. Alone, an operation does not wait. A thread may stop waiting, after a timeout or
because of an exception raised in it from outside: its operation is cancelled unless it has begun, and if it was to
lead, the next one does.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Generic, TypeVar

from app.db.unit_of_work import CommitUnknownError

JobT = TypeVar("JobT")
ResultT = TypeVar("ResultT")
_MAX_BATCH = 64
_MAX_WAIT = timedelta(seconds=20)
"""Longer than the locks and the fsync of a batch take; a lost connection may take longer."""


class NotStartedError(Exception):
    """The batches before took too long: nothing was done for this operation."""


@dataclass(slots=True, eq=False)
class _Waiting(Generic[JobT, ResultT]):
    job: JobT
    gate: threading.Lock = field(default_factory=threading.Lock)
    leads: bool = False
    result: ResultT | None = None
    error: Exception | None = None


class GroupCommit(Generic[JobT, ResultT]):
    """Runs jobs in batches: `execute` gets at least one, and returns the result of each, in order."""

    def __init__(
        self,
        execute: Callable[[Sequence[JobT]], Sequence[ResultT]],
        *,
        max_wait: timedelta = _MAX_WAIT,
    ) -> None:
        self._execute = execute
        self._max_wait = max_wait
        self._lock = threading.Lock()
        self._waiting: deque[_Waiting[JobT, ResultT]] = deque()
        self._is_busy = False

    def run(self, job: JobT) -> ResultT:
        """Run a job with those of other threads; return its result.

        Raises: what `execute` raised for its batch; CommitUnknownError if the batch was interrupted or has not ended in
        time; NotStartedError.
        """
        own: _Waiting[JobT, ResultT] = _Waiting(job)
        own.gate.acquire()
        try:
            self._enter(own)
            if not own.leads:
                self._await(own)
            if own.leads:
                self._lead(own)
        except BaseException:
            self._leave(own)
            raise
        if own.error is not None:
            raise own.error
        return own.result  # type: ignore[return-value]

    def _enter(self, own: _Waiting[JobT, ResultT]) -> None:
        with self._lock:
            self._waiting.append(own)
            own.leads = not self._is_busy
            self._is_busy = True

    def _await(self, own: _Waiting[JobT, ResultT]) -> None:
        """Wait until a leader has run the job, or this thread leads. Raises: CommitUnknownError, NotStartedError."""
        if own.gate.acquire(timeout=self._max_wait.total_seconds()):
            return
        with self._lock:
            if own in self._waiting and not own.leads:
                self._waiting.remove(own)
                raise NotStartedError
            if not own.gate.acquire(blocking=False):
                raise CommitUnknownError

    def _lead(self, own: _Waiting[JobT, ResultT]) -> None:
        """Run a batch that begins with this thread's own job, and let the next that waits lead."""
        batch: list[_Waiting[JobT, ResultT]] = []
        # For the others, if an exception from outside ends this thread.
        error: Exception | None = CommitUnknownError()
        try:
            with self._lock:
                batch += [self._waiting.popleft() for _ in range(min(_MAX_BATCH, len(self._waiting)))]
            for each, result in zip(batch, self._execute([each.job for each in batch]), strict=True):
                each.result = result
            error = None
        except Exception as failure:
            error = failure
        finally:
            for each in batch:
                each.error = error
            self._leave(own)
            for each in batch[1:]:
                each.gate.release()

    def _leave(self, own: _Waiting[JobT, ResultT]) -> None:
        """Remove a job that was not started, and let the next that waits lead if this thread led."""
        with self._lock:
            if own in self._waiting:
                self._waiting.remove(own)
            if not own.leads:
                return
            own.leads = False
            following = self._waiting[0] if self._waiting else None
            self._is_busy = following is not None
            if following is not None:
                following.leads = True
                following.gate.release()
