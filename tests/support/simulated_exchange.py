"""An exchange on a simulated chain at a price that a test sets, also between an offer and its execution."""

from __future__ import annotations

from app.core.chains import ETH, USDC, Token
from app.core.money import NANOS_PER_USD
from app.ports.chain import SignedTransaction, TransactionDraft, TransferIntent
from app.ports.errors import Rejected
from app.ports.services import PriceRange
from app.ports.swaps import ConcurrentOutflows, SwapOffer, SwapRequest
from app.ports.vault import Signer
from tests.support.simulated_chain import SimTx, SimulatedChain

ETH_DOLLARS = 1000
_WHOLE_BPS = 10_000
# Units of the other token for a unit of this one, as a fraction.
_FAIR = {
    USDC.symbol: (10 ** (ETH.decimals - USDC.decimals), ETH_DOLLARS),
    ETH.symbol: (ETH_DOLLARS, 10 ** (ETH.decimals - USDC.decimals)),
}


class SimulatedPrices:
    """The market's prices, or none."""

    def __init__(self) -> None:
        self.known = True

    def nanos_per_token(self, token: Token) -> int | None:
        """Return the price."""
        market = self.independent_range(token)
        return None if market is None else market.max_nanos

    def independent_range(self, token: Token) -> PriceRange | None:
        """Return the price twice."""
        if token == USDC:
            return PriceRange(NANOS_PER_USD, NANOS_PER_USD)
        return PriceRange(ETH_DOLLARS * NANOS_PER_USD, ETH_DOLLARS * NANOS_PER_USD) if self.known else None


class SimulatedExchange:
    """Pays `bps` more or less than the market's price, in either direction."""

    def __init__(self, chain: SimulatedChain) -> None:
        self.chain = chain
        self.reset()
        chain.market = self._executed

    def reset(self) -> None:
        """Reset to the market's price."""
        self.bps = 0
        self.dry = False

    def gives(self, symbol: str, units: int) -> int:
        """Return its present output for an amount of a token."""
        above, below = _FAIR[symbol]
        return units * above * (_WHOLE_BPS + self.bps) // (below * _WHOLE_BPS)

    def _executed(self, tx: SimTx) -> int:
        return self.gives(tx.symbol, tx.units)

    def quote(self, request: SwapRequest) -> SwapOffer:
        """Return an offer at the present price."""
        self.chain.head()
        if self.dry:
            raise Rejected("no_liquidity")
        return SwapOffer(
            request, self.gives(request.input_amount.token.symbol, request.input_amount.units), "simulated", None
        )

    def draft(self, offer: SwapOffer, *, minimum_units: int, signer: Signer | None) -> TransactionDraft:  # noqa: ARG002 - a port
        """Draft a swap that yields the minimum or reverts."""
        ask = offer.request
        drafted = self.chain.draft(TransferIntent(ask.owner, ask.owner, ask.input_amount))
        if self.gives(ask.input_amount.token.symbol, ask.input_amount.units) < minimum_units:
            raise Rejected("price_moved")
        terms = {**drafted.terms, "wants": ask.output_token.symbol, "least": minimum_units}
        return TransactionDraft(
            drafted.intent, drafted.fee_units, drafted.native_units, drafted.token_units, drafted.sequence, terms
        )

    def sign(
        self, draft: TransactionDraft, signer: Signer, *, sequence: int | None, concurrent: ConcurrentOutflows
    ) -> SignedTransaction:
        """Sign like any movement."""
        assert concurrent is not None
        return self.chain.sign(draft, signer, sequence=sequence)
