"""The job queue. A job is a hint to read the database now; losing one loses nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from app.jobs import JobName, QueueName


class JobQueue(Protocol):
    """Takes jobs that carry identifiers only."""

    def enqueue(self, job: JobName, *arguments: str) -> bool:
        """Enqueue a job unless the same one is already queued; return whether the queue could be reached."""

    def depths(self) -> Mapping[QueueName, int]:
        """Return how many jobs wait in each queue; empty while it cannot be reached."""

    def ping(self) -> bool:
        """Return whether the queue can be reached."""

    def needs_password(self) -> bool:
        """Return whether a client without a password is refused; True when it cannot be reached."""
