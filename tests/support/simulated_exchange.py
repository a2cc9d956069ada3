"""An exchange on a simulated chain whose price moves as it is told, also between an offer and its execution."""

from __future__ import annotations

from app.core.chains import ETH, USDC, Token
from app.core.money import NANOS_PER_USD
from app.ports.chain import Draft, Intent, Signed
from app.ports.errors import Rejected
from app.ports.prices import Market
from app.ports.swaps import Ask, Beside, Offer
from app.ports.vault import Signer
from tests.support.simulated_chain import SimTx, SimulatedChain

ETH_DOLLARS = 1000
_WHOLE_BPS = 10_000
# Units of the other token for a unit of this, as a fraction.
_FAIR = {
    USDC.symbol: (10 ** (ETH.decimals - USDC.decimals), ETH_DOLLARS),
    ETH.symbol: (ETH_DOLLARS, 10 ** (ETH.decimals - USDC.decimals)),
}


class SimulatedPrices:
    """What the market says, or nothing."""

    def __init__(self) -> None:
        self.known = True

    def nanos_per_token(self, token: Token) -> int | None:
        """Return the price."""
        market = self.market(token)
        return None if market is None else market.most_nanos

    def market(self, token: Token) -> Market | None:
        """Return the price twice."""
        if token == USDC:
            return Market(NANOS_PER_USD, NANOS_PER_USD)
        return Market(ETH_DOLLARS * NANOS_PER_USD, ETH_DOLLARS * NANOS_PER_USD) if self.known else None


class SimulatedExchange:
    """Gives `bps` more or less than the market's price, whichever way one trades."""

    def __init__(self, chain: SimulatedChain) -> None:
        self.chain = chain
        self.reset()
        chain.market = self._executed

    def reset(self) -> None:
        """Begin anew, at the market's price."""
        self.bps = 0
        self.dry = False

    def gives(self, symbol: str, units: int) -> int:
        """Return what it makes of so much of a token now."""
        above, below = _FAIR[symbol]
        return units * above * (_WHOLE_BPS + self.bps) // (below * _WHOLE_BPS)

    def _executed(self, tx: SimTx) -> int:
        return self.gives(tx.symbol, tx.units)

    def quote(self, ask: Ask) -> Offer:
        """Offer what it gives now."""
        self.chain.head()
        if self.dry:
            raise Rejected("no_liquidity")
        return Offer(ask, self.gives(ask.given.token.symbol, ask.given.units), "simulated", None)

    def draft(self, offer: Offer, *, minimum_units: int, signer: Signer | None) -> Draft:  # noqa: ARG002 - a port
        """Draft a swap that brings so much or reverts."""
        ask = offer.ask
        drafted = self.chain.draft(Intent(ask.owner, ask.owner, ask.given))
        if self.gives(ask.given.token.symbol, ask.given.units) < minimum_units:
            raise Rejected("price_moved")
        terms = {**drafted.terms, "wants": ask.wanted.symbol, "least": minimum_units}
        return Draft(
            drafted.intent,
            drafted.fee_units,
            drafted.native_units,
            drafted.token_units,
            drafted.sequence,
            terms,
        )

    def sign(self, draft: Draft, signer: Signer, *, sequence: int | None, beside: Beside) -> Signed:
        """Sign as any movement."""
        assert beside is not None
        return self.chain.sign(draft, signer, sequence=sequence)
