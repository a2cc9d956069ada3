"""Failures of outside systems: adapters translate every foreign failure into one of these three.

They are not API errors.
"""

from collections.abc import Mapping


class PortError(Exception):
    """Base of the three outcomes. `reason` is a stable token; `details` are safe to show to clients."""

    def __init__(self, reason: str, *, details: Mapping[str, str] | None = None) -> None:
        """Store the reason; foreign texts never enter `details` unless an adapter's table allows them."""
        super().__init__(reason)
        self.reason = reason
        self.details = dict(details or {})


class Rejected(PortError):
    """Certain: it was refused and nothing happened."""


class Unreachable(PortError):
    """Certain: the request was not executed. Trying again later is safe."""


class OutcomeUnknown(PortError):
    """It may have happened. Never answered with a failure; it has to be reconciled."""
