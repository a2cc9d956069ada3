"""An exchange on which a wallet's tokens become others, on the same chain and for the same wallet.

The verbs follow the beats of a movement: `quote` and `draft` read (no unit open), `sign` is pure (inside the unit
that records it). What comes after is the chain's: sending, replacing and finding out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from app.core.chains import Token
from app.core.money import TokenAmount
from app.ports.chain import Draft, Signed
from app.ports.vault import Signer


@dataclass(frozen=True, slots=True)
class Ask:
    """What shall be exchanged: exactly this amount of the owner's (one of our wallets) for another token."""

    owner: str
    given: TokenAmount
    wanted: Token
    slippage_bps: int


@dataclass(frozen=True, slots=True)
class Offer:
    """What an exchange would give now; `route` says by which way, for people; `facts` are for its adapter alone."""

    ask: Ask
    output_units: int
    route: str
    facts: object


@dataclass(frozen=True, slots=True)
class Beside:
    """What else of the owner's is under way that a draft's figures do not have in them.

    `swaps` of the same token come before on a chain with nonces; on one without, other movements may take `leaving`
    until the swap lands, fees included.
    """

    swaps: int = 0
    leaving: Mapping[Token, int] = field(default_factory=dict)


ALONE = Beside()


class Exchange(Protocol):
    """An exchange on one chain. It is trusted with nothing: what it wants signed is decoded or refused."""

    def quote(self, ask: Ask) -> Offer:
        """Ask what it would give.

        Raises: Rejected("no_liquidity", "quote_unavailable"), Unreachable for the chain.
        """
        ...

    def draft(self, offer: Offer, *, minimum_units: int, signer: Signer | None) -> Draft:
        """Prepare an exchange that brings at least `minimum_units` or does not take place, and simulate it.

        Its intent pays the owner's amount to the owner. Without a signer nothing is signed, and what cannot be
        simulated unsigned is left out.

        Raises: Rejected("price_moved", "unsafe_instructions", "simulation_failed", "insufficient_funds", …),
        Unreachable.
        """
        ...

    def sign(self, draft: Draft, signer: Signer, *, sequence: int | None, beside: Beside) -> Signed:
        """Sign a draft for a nonce slot, beside what else is under way.

        Pure: no network, so it may run inside a unit of work.
        """
        ...
