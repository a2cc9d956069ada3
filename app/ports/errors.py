"""Failures of outside systems: adapters translate every foreign failure into one of these three.

They are not API errors.
"""

from collections.abc import Mapping

from app.core.chains import Token
from app.core.money import decimal_string


class PortError(Exception):
    """Base of the three outcomes. `reason` is a stable token; `details` are safe to show to clients."""

    def __init__(self, reason: str, *, details: Mapping[str, str] | None = None) -> None:
        """Store the reason; foreign texts never enter `details` unless an adapter's table allows them."""
        super().__init__(reason)
        self.reason = reason
        self.details = dict(details or {})


class Rejected(PortError):
    """Certain: it was refused and nothing happened."""


class Shortage(Rejected):
    """Certain: a balance does not cover what is required."""

    def __init__(self, token: Token, reason: str, available: int, required: int) -> None:
        amounts = {"available": available, "required": required, "missing": required - available}
        texts = {name: decimal_string(units, token.decimals) for name, units in amounts.items()}
        super().__init__(reason, details={"currency": token.symbol, **texts})

    @classmethod
    def check(cls, token: Token, reason: str, available: int, required: int) -> None:
        if required > available:
            raise cls(token, reason, available, required)


class Unreachable(PortError):
    """Certain: the request was not executed. Trying again later is safe."""


class OutcomeUnknown(PortError):
    """It may have happened. Never answered with a failure; it has to be reconciled."""
