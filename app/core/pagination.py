"""Pagination of lists."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Generic, Self, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PageRequest:
    """The requested slice, `limit` within the list's maximum; with `after`, it begins behind the row of that id.

    The rows were created at or after `created_after`, and before `created_before`.
    """

    limit: int
    offset: int
    after: str | None = None
    created_after: datetime | None = None
    created_before: datetime | None = None


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    items: Sequence[T]
    total: int
    request: PageRequest

    @property
    def pagination(self) -> Self:
        """Return the page itself, for schemas that nest the pagination."""
        return self

    @property
    def has_more(self) -> bool:
        return self.request.offset + len(self.items) < self.total
