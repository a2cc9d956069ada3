"""Intents that were recorded before a signature was asked for, and the result of a check of its content."""

from collections.abc import Sequence
from dataclasses import dataclass

from app.core.chains import ChainName
from app.core.money import TokenAmount

SERVICE_KINDS = frozenset({"settlement", "sponsored", "opening"})
"""What only a wallet of the service signs: submissions of others' payments, which take nothing but network fees."""


class Refused(Exception):
    """What was asked for is not what was recorded; nothing is signed."""


@dataclass(frozen=True, slots=True)
class Intended:
    """A recorded intent with the addresses of its wallet; `is_covered` is whether a hold counts against its limits."""

    id: str
    wallet_id: str
    kind: str
    chain: ChainName
    recipient: str
    amount: TokenAmount
    minimum_units: int | None
    evm_address: str
    solana_address: str
    is_service: bool
    is_covered: bool

    @property
    def owner(self) -> str:
        return self.evm_address if self.chain is not ChainName.SOLANA else self.solana_address

    @property
    def may_pay(self) -> bool:
        """Return whether it may move tokens: a hold covers it, or the service delivers gas that it has sold."""
        return self.is_covered or (self.is_service and self.kind == "gas_sale")


@dataclass(frozen=True, slots=True)
class Signable:
    """A content that carries out intents: what it is, its digest, and what ends its validity.

    `effect` is the same for a transaction and its replacements, which differ in their fees; empty for a cancellation.
    """

    intents: Sequence[Intended]
    part: str
    chain: ChainName
    sender: str
    digest: bytes
    effect: str
    nonce: int | None = None
    valid_until: int | None = None


def require(condition: bool, reason: str) -> None:  # noqa: FBT001 - reads as an assertion
    """Refuse a content unless a condition holds. Raises: Refused."""
    if not condition:
        raise Refused(reason)
