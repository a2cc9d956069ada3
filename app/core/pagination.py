"""Pagination of lists."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PageRequest:
    """The requested slice; `limit` is already clamped to the list's maximum.

    With `after`, it begins behind the row of that id, however many rows were added to the list since. The rows were
    created at or after `created_after`, and before `created_before`.
    """

    limit: int
    offset: int
    after: str | None = None
    created_after: datetime | None = None
    created_before: datetime | None = None


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """A slice of a list, and the total number of its rows."""

    items: Sequence[T]
    total: int
    request: PageRequest

    @property
    def pagination(self) -> Page[T]:
        """Return the page itself, for schemas that nest the pagination."""
        return self

    @property
    def has_more(self) -> bool:
        """Return whether rows follow this slice."""
        return self.request.offset + len(self.items) < self.total
