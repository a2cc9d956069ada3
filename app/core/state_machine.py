"""The transitions of a state machine, as values."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

StateT = TypeVar("StateT", bound=StrEnum)


@dataclass(frozen=True, slots=True)
class Transitions(Generic[StateT]):
    """The states in which a row may begin, and which states may follow which."""

    initial: AbstractSet[StateT]
    permitted: Mapping[StateT, AbstractSet[StateT]]

    def check(self, source: StateT | None, target: StateT) -> None:
        """Check a transition, or with source None a first state. Raises: ValueError if there is none: a bug."""
        if target not in (self.initial if source is None else self.permitted.get(source, ())):
            raise ValueError(f"there is no transition from {source or 'a new row'} to {target}")
