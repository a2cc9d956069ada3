"""Exchanges that swap a wallet's tokens for others, on the same chain and for the same wallet.

The methods follow the phases of a movement: `quote` and `draft` read (no unit of work open), `sign` does no I/O (inside
the unit that records). Broadcasting, replacing and tracking belong to the `Chain` port.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from app.core.chains import Token
from app.core.money import TokenAmount
from app.ports.chain import SignedTransaction, TransactionDraft
from app.ports.vault import Signer


@dataclass(frozen=True, slots=True)
class SwapRequest:
    """A requested swap: exactly this amount of the owner (one of our wallets) for another token."""

    owner: str
    input_amount: TokenAmount
    output_token: Token
    slippage_bps: int


@dataclass(frozen=True, slots=True)
class SwapOffer:
    """An exchange's current offer; `route` describes the path for people; `adapter_data` belongs to its adapter."""

    request: SwapRequest
    output_units: int
    route: str
    adapter_data: object


@dataclass(frozen=True, slots=True)
class ConcurrentOutflows:
    """Other pending movements of the owner that a draft's balances do not include.

    `earlier_swaps` of the same token come first on a chain with nonces; on one without, other movements may take
    `outflows` until the swap lands, fees included.
    """

    earlier_swaps: int = 0
    outflows: Mapping[Token, int] = field(default_factory=dict)


class SwapExchange(Protocol):
    """An exchange on one chain. It is not trusted: what it asks to sign is decoded or refused."""

    def quote(self, request: SwapRequest) -> SwapOffer:
        """Return an offer. Raises: Rejected("no_liquidity", "quote_unavailable", "quote_rate_limited"), Unreachable."""

    def draft(self, offer: SwapOffer, *, minimum_units: int, signer: Signer | None) -> TransactionDraft:
        """Draft and simulate a swap that yields at least `minimum_units` or fails.

        Its intent pays the owner's amount to the owner. Without a signer nothing is signed, and what cannot be
        simulated unsigned is left out.

        Raises: Rejected("price_moved", "unsafe_instructions", "simulation_failed", "insufficient_funds", …),
        Unreachable.
        """

    def sign(
        self, draft: TransactionDraft, signer: Signer, *, sequence: int | None, concurrent: ConcurrentOutflows
    ) -> SignedTransaction:
        """Sign a draft with a nonce, aware of concurrent outflows. No I/O, so it may run inside a unit of work."""
