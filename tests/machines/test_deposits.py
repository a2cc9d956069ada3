"""Funding requests and deposits: partial, over, late, reorganised away and come again, expired."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule
from sqlalchemy import select

from app.agents import service as agents
from app.core import clock
from app.core.chains import ETH, TOKENS_BY_SYMBOL, USDC, Token
from app.core.money import TokenAmount
from app.core.unit_of_work import reading
from app.credits import audit as credits_audit
from app.errors import LimitReached
from app.spending import audit as spending_audit
from app.wallets import audit as wallets_audit
from app.wallets import deposits, funding
from app.wallets.lifecycle import Status
from app.wallets.models import FundingAllocation, FundingDeposit, Transaction
from tests.support.machines import Ground, Machine, walk
from tests.support.simulated_chain import DEPOSIT_DEPTH

_TTL_SECONDS = 604_800


@dataclass
class Asked:
    """A request as the model knows it: `given` is by whose hash how much."""

    symbol: str
    units: int
    opened: int
    expires: float
    status: Status = Status.PENDING
    given: dict[str, int] = field(default_factory=dict)


class Funding(Machine):
    """One wallet, its requests in order, and the deposits that the chain shows."""

    audits = (credits_audit.check, spending_audit.check, wallets_audit.check)
    reaches = frozenset(
        {"funding: confirmed", "funding: pending, reorganised", "funding: failed, expired", "partly given"}
    )

    def begin(self) -> None:
        self.wallet = agents.register(name=None, email=None).wallet
        self.address = self.wallet.address_on(self.ground.chain.name)
        self.asked: dict[str, Asked] = {}
        # Which deposits were found, in which block.
        self.found: dict[str, str] = {}

    def open_ones(self) -> list[Asked]:
        return [asked for asked in self.asked.values() if asked.status is Status.PENDING]

    @rule(units=st.integers(1, 12), token=st.sampled_from((USDC, USDC, ETH)))
    def ask(self, units: int, token: Token) -> None:
        amount = str(TokenAmount(units, token))
        if len(self.open_ones()) >= funding.MAX_OPEN_PER_WALLET:
            with pytest.raises(LimitReached):
                funding.request(self.wallet, chain="base", amount=amount, currency=token.symbol)
            return
        # No two of the same moment: the oldest is served first.
        self.let_pass(seconds=1)
        made = funding.request(self.wallet, chain="base", amount=amount, currency=token.symbol)
        now = clock.now().timestamp()
        self.asked[made.id] = Asked(token.symbol, units, self.ground.chain.head().number, now + _TTL_SECONDS)

    @rule(units=st.integers(1, 12), more=st.integers(0, 3), depth=st.integers(0, 3), keep=st.booleans())
    def one_goes_its_usual_way(self, units: int, more: int, depth: int, keep: bool) -> None:
        """Most steps of a random walk come to nothing; this one is what most callers do, and a reorganisation of it."""
        self.ask(units, USDC)
        self.somebody_pays(units + more, USDC)
        self.blocks_come(DEPOSIT_DEPTH)
        self.workers_look()
        if depth:
            self.a_reorganisation_comes(depth, keep)
            self.workers_look()

    @rule(units=st.integers(1, 20), token=st.sampled_from((USDC, USDC, ETH)))
    def somebody_pays(self, units: int, token: Token) -> None:
        self.ground.chain.pay(self.address, token, units)

    @rule(blocks=st.integers(1, 4))
    def blocks_come(self, blocks: int) -> None:
        self.ground.chain.mine(blocks)

    @rule(depth=st.integers(1, 4), keep=st.booleans())
    def a_reorganisation_comes(self, depth: int, keep: bool) -> None:
        self.ground.chain.reorganise(depth, keep=keep)

    @rule()
    def the_chain_is_away(self) -> None:
        self.ground.chain.away = True
        assert deposits.find(self.ground.chain.name) == 0
        self.ground.chain.away = False

    @rule()
    def workers_look(self) -> None:
        deposits.find(self.ground.chain.name)
        self.take_back()
        if self.open_ones():
            self.give()

    def take_back(self) -> None:
        """Let the model forget deposits whose block is gone, and what they gave."""
        chain = self.ground.chain
        standing = {entry.tx.tx_hash: block.hash for block in chain.blocks for entry in block.landed}
        for tx_hash in [each for each, block in self.found.items() if standing.get(each) != block]:
            del self.found[tx_hash]
            for asked in self.asked.values():
                if asked.given.pop(tx_hash, 0) and asked.status is Status.CONFIRMED:
                    asked.status = Status.PENDING

    def give(self) -> None:
        """Let the model give what is deep enough to the oldest requests that were made before it."""
        chain = self.ground.chain
        deep = [b for b in chain.blocks if b.number <= chain.blocks[-1].number - DEPOSIT_DEPTH + 1]
        for block in deep:
            for entry in block.landed:
                if entry.tx.recipient == self.address and entry.tx.tx_hash not in self.found:
                    self.found[entry.tx.tx_hash] = block.hash
                    self.share_out(entry.tx.tx_hash, entry.tx.symbol, entry.tx.units, block.number)

    def share_out(self, tx_hash: str, symbol: str, units: int, number: int) -> None:
        for asked in self.open_ones():
            if units and asked.symbol == symbol and asked.opened < number:
                share = min(units, asked.units - sum(asked.given.values()))
                asked.given[tx_hash] = share
                units -= share
                if sum(asked.given.values()) == asked.units:
                    asked.status = Status.CONFIRMED

    @precondition(lambda self: self.open_ones())
    @rule(days=st.integers(1, 8))
    def days_pass_and_the_sweep_comes(self, days: int) -> None:
        self.let_pass(days=days)
        now = clock.now()
        late = [asked for asked in self.open_ones() if asked.expires < now.timestamp()]
        assert funding.fail_expired(now) == len(late)
        for asked in late:
            asked.status = Status.FAILED

    @invariant()
    def each_request_has_what_the_model_gave_it(self) -> None:
        with reading() as session:
            rows = {row.id: row for row in session.scalars(select(Transaction))}
            given: dict[str, dict[str, int]] = {request_id: {} for request_id in self.asked}
            for request_id, tx_hash, units in session.execute(
                select(
                    FundingAllocation.transaction_id, FundingDeposit.tx_hash, FundingAllocation.units
                ).join(FundingDeposit, FundingDeposit.id == FundingAllocation.deposit_id)
            ):
                given[request_id][tx_hash or ""] = units
        assert rows.keys() == self.asked.keys()
        for request_id, asked in self.asked.items():
            assert rows[request_id].status == asked.status
            assert given[request_id] == asked.given
            if asked.status is Status.CONFIRMED:
                assert rows[request_id].tx_hash in asked.given

    @invariant()
    def nothing_is_given_that_did_not_come(self) -> None:
        with reading() as session:
            shares = session.execute(
                select(FundingDeposit.units, FundingDeposit.currency, FundingAllocation.units).join(
                    FundingAllocation, FundingAllocation.deposit_id == FundingDeposit.id
                )
            ).all()
            found = session.scalars(select(FundingDeposit)).all()
        for symbol, token in TOKENS_BY_SYMBOL.items():
            given = sum(share for _, currency, share in shares if currency == symbol)
            assert given <= sum(row.units for row in found if row.currency == token.symbol)
        assert len({row.tx_hash for row in found}) == len(found)

    def script(self) -> Iterator[None]:
        for depth, keep in ((0, False), (2, True), (2, False)):
            self.one_goes_its_usual_way(5, 1, depth, keep)
            yield
            self.blocks_come(DEPOSIT_DEPTH)
            self.workers_look()
            yield
        self.ask(9, ETH)
        self.somebody_pays(4, ETH)
        self.blocks_come(DEPOSIT_DEPTH)
        self.workers_look()
        if any(sum(asked.given.values()) for asked in self.open_ones()):
            self.note("partly given")
        yield
        self.the_chain_is_away()
        self.days_pass_and_the_sweep_comes(8)
        yield


def test_whatever_happens_a_deposit_counts_once_and_for_requests_made_before_it(ground: Ground) -> None:
    walk(Funding, ground, walks=10, steps=40)
