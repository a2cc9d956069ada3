"""State machine of swaps and transfers: quotes, price changes before execution, reverts, and reused nonces."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction

import pytest
from flask import Flask
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from app.core import clock
from app.core.chains import ETH, USDC, ChainName, Token
from app.core.money import TokenAmount
from app.errors import PriceUnavailable, ServiceError, SwapFailed, WalletFrozen
from app.idempotency.service import Claim
from app.wallets.core.lifecycle import MovementStatus, TransactionType
from app.wallets.kinds import swap as swaps
from app.wallets.kinds.swap import SwapOrder
from tests.support.machines import Ground, Walk, ground_for
from tests.support.moving import FRIEND, NO_WAIT, USD, Moved, Movements
from tests.support.simulated_chain import SimulatedChain
from tests.support.simulated_exchange import ETH_DOLLARS, SimulatedExchange, SimulatedPrices

_WHOLE = 10_000
_MOST_DEVIATION = Fraction(200, _WHOLE)
_DOLLARS_PER_UNIT = {USDC: Fraction(1, 10**6), ETH: Fraction(ETH_DOLLARS, 10**18)}
# Rounding to a base unit and a nano-dollar.
_GRAIN = {USDC: 1002, ETH: 2}


class Swaps(Movements):
    """A wallet that also swaps. The maximum loss of a swap is counted, and it never loses more."""

    def begin(self) -> None:
        super().begin()
        # The ports of this application.
        ports = self.ground.app.state.ports
        self.exchange: SimulatedExchange = ports.swap_exchanges[ChainName.BASE]
        self.prices: SimulatedPrices = ports.prices
        self.exchange.reset()
        self.prices.known = True

    @rule(
        given=st.sampled_from((USDC, ETH)),
        dollars=st.integers(1, 40),
        slippage=st.sampled_from((0, 50, 300, 500)),
        bps=st.sampled_from((-500, -201, -200, -100, 0, 0, 100)),
        mishap=st.sampled_from(("none", "none", "none", "loses_answers", "swallows", "away", "dry", "unpriced")),
    )
    def swap(self, given: Token, dollars: int, slippage: int, bps: int, mishap: str) -> None:
        wanted = ETH if given == USDC else USDC
        amount = TokenAmount(int(dollars / _DOLLARS_PER_UNIT[given]), given)
        order = SwapOrder(ChainName.BASE, amount, wanted, slippage)
        self.exchange.bps = bps
        quoted = Fraction(dollars * (_WHOLE + bps), _WHOLE)
        least = max(quoted * (_WHOLE - slippage) / _WHOLE, dollars * (1 - _MOST_DEVIATION))
        loss = max(dollars - least, Fraction(0))
        expected: type[ServiceError] | str | None = (
            WalletFrozen if self.frozen
            else self.refusal(0, None) or (
                PriceUnavailable if mishap == "unpriced"
                else "chain_unreachable" if mishap == "away"
                else "no_liquidity" if mishap == "dry"
                else "price_deviation" if quoted < dollars * (1 - _MOST_DEVIATION)
                else self.refusal(int(loss * USD), None)
            )
        )  # fmt: skip
        self.exchange.dry, self.prices.known = mishap == "dry", mishap != "unpriced"
        try:
            with self.mishap(mishap if mishap in ("loses_answers", "swallows", "away") else "none"):
                self.swapped(order, expected, loss)
        finally:
            self.exchange.dry, self.prices.known = False, True

    def swapped(self, order: SwapOrder, expected: type[ServiceError] | str | None, loss: Fraction) -> None:
        if expected is not None:
            failure = SwapFailed if isinstance(expected, str) else expected
            with pytest.raises(failure):
                swaps.quote(self.wallet, order)
            with pytest.raises(failure) as refused:
                swaps.send(self.wallet, order, wait_seconds=NO_WAIT, claim=Claim.none())
            if isinstance(expected, str):
                assert refused.value.details["reason"] == expected
                self.refused += 1
            return
        view = swaps.send(self.wallet, order, wait_seconds=NO_WAIT, claim=Claim.none())
        row = self.row(view.id)
        assert view.status == MovementStatus.PENDING
        assert -_GRAIN[order.output_token] <= row.cost_nanos - loss * USD <= _GRAIN[order.output_token]
        self.moved[view.id] = Moved(
            clock.now().date(),
            row.cost_nanos,
            row.nonce or 0,
            self.address,
            order.input_amount,
            order.output_token.symbol,
        )

    @rule(bps=st.sampled_from((-1000, -250, -100, 0, 100)))
    def the_price_moves(self, bps: int) -> None:
        self.exchange.bps = bps

    @rule(
        given=st.sampled_from((USDC, ETH)), slippage=st.sampled_from((50, 500)),
        then=st.sampled_from((0, 0, -50, -1000)),
    )  # fmt: skip
    def one_swap_goes_its_usual_way(self, given: Token, slippage: int, then: int) -> None:
        self.swap(given, 10, slippage, 0, "none")
        self.the_price_moves(then)
        self.blocks_come(1, "full")
        self.workers_run(away=False)

    @invariant()
    def no_swap_loses_more_than_was_counted(self) -> None:
        for transaction_id, moved in self.moved.items():
            if moved.wants is None or moved.status is not MovementStatus.CONFIRMED:
                continue
            wanted, row = (ETH if moved.wants == ETH.symbol else USDC), self.row(transaction_id)
            found = self.ground.chain.landed(row.tx_hash or "")
            if found is None:
                continue  # reorged, and no worker has run
            assert row.output_units == found[1].brought
            came = found[1].brought * _DOLLARS_PER_UNIT[wanted]
            gone = moved.amount.units * _DOLLARS_PER_UNIT[moved.amount.token]
            assert (gone - came) * USD <= moved.counts_nanos + _GRAIN[wanted]

    reaches = Movements.reaches | {
        "swap: confirmed", "swap: failed, reverted", "swap: failed, slot_taken", "swap: failed, cancelled",
        "swap: failed, price_deviation", "swap: failed, chain_unreachable", "swap: failed, no_liquidity",
        "swap: pending, reorganised", "swap: replaced",
    }  # fmt: skip

    def script(self) -> Iterator[None]:
        yield from super().script()
        for given in (USDC, ETH):
            for then in (-50, -1000):
                self.one_swap_goes_its_usual_way(given, 500, then)
                yield
            self.one_swap_goes_its_usual_way(given, 50, 0)
            self.a_reorganisation_comes(1, keep=True, looks=1)
            yield
            self.blocks_come(1, "full")
            self.workers_run(away=False)
            yield
            self.swap(given, 20, 50, 0, "swallows")
            self.another_transaction_uses_the_nonce()
            yield
            self.swap(given, 30, 50, 0, "none")
            for _ in range(3):
                self.blocks_come(3, "empty")
                self.workers_run(away=False)
            self.it_runs_short(ETH, 10_000, 3)
            yield
            for bps, mishap in ((-201, "none"), (0, "dry"), (0, "away"), (0, "unpriced")):
                self.swap(given, 30, 50, bps, mishap)
            yield
        # A limit counts the loss, not the swapped amount.
        self.set_limits(per_tx=1)
        self.swap(USDC, 40, 500, 0, "none")
        self.swap(ETH, 40, 50, -200, "none")
        self.set_limits(per_tx=0)
        self.send(1, FRIEND, TransactionType.TRANSFER, "none")
        yield


@pytest.fixture
def trading(each_database_url: str, build_app: Callable[..., Flask]) -> Ground:
    """The ground on each kind of database, with an exchange and prices."""
    chain = SimulatedChain()
    parts = {"swap_exchanges": {chain.name: SimulatedExchange(chain)}, "prices": SimulatedPrices()}
    return ground_for(build_app, each_database_url, chain=chain, parts=parts)


def test_no_swap_loses_more_than_was_counted(trading: Ground, walk: Walk) -> None:
    walk(Swaps, trading, walks=5, steps=40)
