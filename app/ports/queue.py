"""Where jobs are put. A job is a hint to look at the database now; losing one loses nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from app.jobs import JobName, QueueName


class JobQueue(Protocol):
    """Takes jobs that carry identifiers only."""

    def put(self, job: JobName, *arguments: str) -> bool:
        """Enqueue a job unless the same one waits already; tell whether the queue could be reached."""
        ...

    def depths(self) -> Mapping[QueueName, int]:
        """Return how many jobs wait in each queue; empty while it cannot be reached."""
        ...

    def ping(self) -> bool:
        """Tell whether the queue can be reached."""
        ...
