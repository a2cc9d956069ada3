"""The sandbox's faucet, which pays open funding requests. Only the sandbox has one."""

from __future__ import annotations

from typing import Protocol

from app.core.chains import ChainName
from app.core.money import TokenAmount


class Faucet(Protocol):
    """Pays real deposits on the sandbox's chains."""

    def pay(self, reference: str, *, chain: ChainName, address: str, amount: TokenAmount) -> None:
        """Pay once per reference, however often it is called. Raises: Rejected, Unreachable."""
