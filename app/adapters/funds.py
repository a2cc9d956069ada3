"""The refusal of what a wallet cannot pay."""

from __future__ import annotations

from app.core.chains import Token
from app.core.money import TokenAmount
from app.ports.errors import Rejected


def require(token: Token, reason: str, available: int, required: int) -> None:
    """Refuse insufficient amounts. Raises: Rejected."""
    if available >= required:
        return
    raise Rejected(
        reason,
        details={
            "currency": token.symbol,
            "available": str(TokenAmount(available, token)),
            "required": str(TokenAmount(required, token)),
            "missing": str(TokenAmount(required - available, token)),
        },
    )
