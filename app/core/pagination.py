"""Offset pagination as every list of the API has it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PageRequest:
    """Which slice the caller asked for; `limit` is already clamped to the list's maximum."""

    limit: int
    offset: int


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """A slice of a list and the size of the whole."""

    items: Sequence[T]
    total: int
    request: PageRequest

    @property
    def pagination(self) -> Page[T]:
        """Return the page itself, where a wire shape nests what it says of its place in the list."""
        return self

    @property
    def has_more(self) -> bool:
        """Tell whether rows follow this slice."""
        return self.request.offset + len(self.items) < self.total
