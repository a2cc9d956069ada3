"""State machine of funding requests and deposits: partial, excessive, late, reorged and expired."""

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
from app.credits import audit as credits_audit
from app.db.unit_of_work import read_only_unit
from app.errors import LimitReached
from app.idempotency.service import Claim
from app.spending import audit as spending_audit
from app.wallets.core.lifecycle import MovementStatus
from app.wallets.core.models import FundingAllocation, FundingDeposit, Transaction
from app.wallets.deposits import funding, scanner
from app.wallets.maintenance import audit as wallets_audit
from tests.support.machines import Ground, Machine, Walk
from tests.support.simulated_chain import DEPOSIT_DEPTH

_TTL_SECONDS = 604_800


@dataclass
class Asked:
    """The model of a request; `given` maps deposit hashes to allocated units."""

    symbol: str
    units: int
    opened: int
    expires: float
    status: MovementStatus = MovementStatus.PENDING
    given: dict[str, int] = field(default_factory=dict)


class Funding(Machine):
    """One wallet with its requests in order, and the deposits on the chain."""

    audits = (credits_audit.check, spending_audit.check, wallets_audit.check)
    reaches = frozenset(
        {"funding: confirmed", "funding: pending, reorganised", "funding: failed, expired", "partly allocated"}
    )

    def begin(self) -> None:
        self.wallet = agents.register(name=None, email=None).wallet
        self.address = self.wallet.address_on(self.ground.chain.name)
        self.asked: dict[str, Asked] = {}
        # Found deposits with their blocks.
        self.found: dict[str, str] = {}

    def open_ones(self) -> list[Asked]:
        return [asked for asked in self.asked.values() if asked.status is MovementStatus.PENDING]

    @rule(units=st.integers(1, 12), token=st.sampled_from((USDC, USDC, ETH)))
    def ask(self, units: int, token: Token) -> None:
        amount = str(TokenAmount(units, token))
        if len(self.open_ones()) >= funding.MAX_OPEN_PER_WALLET:
            with pytest.raises(LimitReached):
                funding.create_request(
                    self.wallet, chain="base", amount=amount, currency=token.symbol, claim=Claim.none()
                )
            return
        # Distinct times, because the oldest is served first.
        self.let_pass(seconds=1)
        made = funding.create_request(
            self.wallet, chain="base", amount=amount, currency=token.symbol, claim=Claim.none()
        )
        now = clock.now().timestamp()
        self.asked[made["id"]] = Asked(token.symbol, units, self.ground.chain.head().number, now + _TTL_SECONDS)

    @rule(units=st.integers(1, 12), more=st.integers(0, 3), depth=st.integers(0, 3), keep=st.booleans())
    def one_runs_normally(self, units: int, more: int, depth: int, keep: bool) -> None:
        """The most frequent sequence, with an optional reorg."""
        self.ask(units, USDC)
        self.a_deposit_is_sent(units + more, USDC)
        self.blocks_come(DEPOSIT_DEPTH)
        self.workers_run()
        if depth:
            self.a_reorganisation_comes(depth, keep)
            self.workers_run()

    @rule(units=st.integers(1, 20), token=st.sampled_from((USDC, USDC, ETH)))
    def a_deposit_is_sent(self, units: int, token: Token) -> None:
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
        assert scanner.scan(self.ground.chain.name) == 0
        self.ground.chain.away = False

    @rule()
    def workers_run(self) -> None:
        scanner.scan(self.ground.chain.name)
        self.reverse_deposits()
        self.allocate()

    def reverse_deposits(self) -> None:
        """Reverse deposits of reorged blocks in the model."""
        chain = self.ground.chain
        canonical = {entry.tx.tx_hash: block.hash for block in chain.blocks for entry in block.landed}
        for tx_hash in [each for each, block in self.found.items() if canonical.get(each) != block]:
            del self.found[tx_hash]
            for asked in self.asked.values():
                if asked.given.pop(tx_hash, 0) and asked.status is MovementStatus.CONFIRMED:
                    asked.status = MovementStatus.PENDING

    def allocate(self) -> None:
        """Allocate confirmed deposits to the oldest earlier requests in the model."""
        chain = self.ground.chain
        deep = [b for b in chain.blocks if b.number <= chain.blocks[-1].number - DEPOSIT_DEPTH + 1]
        for block in deep:
            for entry in block.landed:
                if entry.tx.recipient == self.address and entry.tx.tx_hash not in self.found:
                    self.found[entry.tx.tx_hash] = block.hash
                    self.allocate_deposit(entry.tx.tx_hash, entry.tx.symbol, entry.tx.units, block.number)

    def allocate_deposit(self, tx_hash: str, symbol: str, units: int, number: int) -> None:
        for asked in self.open_ones():
            if units and asked.symbol == symbol and asked.opened < number:
                share = min(units, asked.units - sum(asked.given.values()))
                asked.given[tx_hash] = share
                units -= share
                if sum(asked.given.values()) == asked.units:
                    asked.status = MovementStatus.CONFIRMED

    @precondition(lambda self: self.open_ones())
    @rule(days=st.integers(1, 8))
    def days_pass_and_the_sweep_comes(self, days: int) -> None:
        self.let_pass(days=days)
        now = clock.now()
        late = [asked for asked in self.open_ones() if asked.expires < now.timestamp()]
        assert funding.fail_expired(now) == len(late)
        for asked in late:
            asked.status = MovementStatus.FAILED

    @invariant()
    def each_request_matches_the_model(self) -> None:
        with read_only_unit() as session:
            rows = {row.id: row for row in session.scalars(select(Transaction).where(Transaction.kind.is_(None)))}
            given: dict[str, dict[str, int]] = {request_id: {} for request_id in self.asked}
            for request_id, tx_hash, units in session.execute(
                select(FundingAllocation.transaction_id, FundingDeposit.tx_hash, FundingAllocation.units)
                .join(FundingDeposit, FundingDeposit.id == FundingAllocation.deposit_id)
                .where(FundingAllocation.transaction_id.in_(self.asked))
            ):
                given[request_id][tx_hash or ""] = units
        assert rows.keys() == self.asked.keys()
        for request_id, asked in self.asked.items():
            assert rows[request_id].status == asked.status
            assert given[request_id] == asked.given
            if asked.status is MovementStatus.CONFIRMED:
                assert rows[request_id].tx_hash in asked.given

    @invariant()
    def what_arrived_is_listed_to_the_last_unit(self) -> None:
        with read_only_unit() as session:
            shares = session.execute(
                select(FundingDeposit.units, FundingDeposit.currency, FundingAllocation.units).join(
                    FundingAllocation, FundingAllocation.deposit_id == FundingDeposit.id
                )
            ).all()
            found = session.scalars(select(FundingDeposit)).all()
        for symbol, token in TOKENS_BY_SYMBOL.items():
            given = sum(share for _, currency, share in shares if currency == symbol)
            assert given == sum(row.units for row in found if row.currency == token.symbol)
        assert len({row.tx_hash for row in found}) == len(found)

    def script(self) -> Iterator[None]:
        for depth, keep in ((0, False), (2, True), (2, False)):
            self.one_runs_normally(5, 1, depth, keep)
            yield
            self.blocks_come(DEPOSIT_DEPTH)
            self.workers_run()
            yield
        self.ask(9, ETH)
        self.a_deposit_is_sent(4, ETH)
        self.blocks_come(DEPOSIT_DEPTH)
        self.workers_run()
        if any(sum(asked.given.values()) for asked in self.open_ones()):
            self.note("partly allocated")
        yield
        self.the_chain_is_away()
        self.days_pass_and_the_sweep_comes(8)
        yield


def test_a_deposit_counts_once_and_only_for_earlier_requests(ground: Ground, walk: Walk) -> None:
    walk(Funding, ground, walks=10, steps=40)
