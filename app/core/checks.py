"""The steps of a check, each with its result in words."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CheckedStep:
    step: str
    detail: str
    ok: bool = True
    required: bool = True
