"""State machine of bridges between two chains: faulty services and reorgs on both chains."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from typing import Any

import pytest
from flask import Flask
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule
from sqlalchemy import select

from app.adapters.prices import MarketPriceFeed
from app.agents import service as agents
from app.audit_log import actors, verification
from app.core import clock
from app.core.chains import ETH, SOL, USDC, ChainName, Token
from app.core.money import TokenAmount
from app.core.movement_kinds import MovementKind
from app.db.unit_of_work import read_only_unit
from app.errors import BridgeFailed, ServiceError, TransactionInProgress, WalletFrozen
from app.idempotency.service import Claim
from app.ports.bridges import BridgeLegKind
from app.spending import audit as spending_audit
from app.spending import controls as spending_controls
from app.spending.models import SpendingHold
from app.wallets.bridges import advance as bridge_steps
from app.wallets.bridges import service as bridge_service
from app.wallets.bridges import service as bridges
from app.wallets.core.lifecycle import AttemptPurpose, MovementStatus, StatusReason
from app.wallets.core.models import Bridge, SignedAttempt, Transaction
from app.wallets.maintenance import audit as wallets_audit
from app.wallets.transactions import confirmation
from tests.support.limited_wallets import LimitedWallet, windows_of
from tests.support.machines import HOURS, Ground, Walk, ground_for
from tests.support.simulated_bridges import Burns, OrderReport, Orders, OrderStatus, Portal, auth_of, brings
from tests.support.simulated_chain import SAFE_DEPTH, Block, Landed, SimulatedChain

USD = 10**9
# Base units per dollar.
UNITS = {USDC: 10**6, ETH: 10**15}
OTHER = "0x52908400098527886E0F7030069857D2E4169EE7"
OPERATOR = actors.system_actor("a test")
NO_WAIT = Decimal(0)
_PATIENCE = 3
# Passes of the workers that settle everything known.
_ROUNDS = 4
_ROUNDS_TO_REST = 30
_CAP_BPS, _CAP_DOLLARS = 1000, 1
_WRITTEN_OFF, _REFUNDED = StatusReason.WRITTEN_OFF.value, StatusReason.REFUNDED.value


@dataclass(frozen=True, slots=True, kw_only=True)
class Bridged(Ground):
    """Base and Ethereum with all bridge providers."""

    ethereum: SimulatedChain
    orders: Orders
    second: Orders
    portal: Portal
    inward: Burns
    outward: Burns

    @property
    def ways(self) -> tuple[Any, ...]:
        return (self.orders, self.second, self.portal, self.inward, self.outward)


@dataclass
class Crossing:
    """The model of a bridge: its fee, the transactions that its service reported, and the heads at its start."""

    way: Any
    token: Token
    units: int
    fee_units: int
    counts_nanos: int
    made_on: date
    # The heads of both chains at the start: older transactions do not pay this bridge.
    heads: tuple[int, int]
    named: set[str] = field(default_factory=set)
    # The block of the source transaction at the write-off.
    written_off: str | None = None


@dataclass(frozen=True)
class Rows:
    """The rows of one bridge."""

    row: Transaction
    bridge: Bridge
    source: Transaction
    payments: frozenset[str]
    pending_mints: int


class Bridges(LimitedWallet):
    """One wallet. Expected states follow from both chains, reports of services, and write-offs."""

    ground: Bridged
    audits = (spending_audit.check, verification.find_problems, wallets_audit.check)

    def begin(self) -> None:
        ground = self.ground
        self.chains = (ground.chain, ground.ethereum)
        ground.ethereum.reset()
        for way in ground.ways:
            way.reset()
        made = agents.register(name=None, email=None)
        self.agent_id, self.wallet = made.agent_id, made.wallet
        self.address = self.wallet.address_on(ground.chain.name)
        for chain in self.chains:
            chain.give(self.address, USDC, 10**6 * UNITS[USDC])
            chain.give(self.address, ETH, 10**6 * UNITS[ETH])
        self.crossings: dict[str, Crossing] = {}
        # All payments of services.
        self.paid: list[tuple[OrderStatus, str]] = []
        self.refused = 0
        self.begin_unlimited()
        self.set_limits(daily=4, weekly=6, monthly=9, per_tx=3)

    # Steps of clients.

    def counted(self, rows: dict[str, Rows]) -> tuple[int, int, int]:
        """Return the counted fees: of all bridges except failed ones, but including written-off ones."""
        ends = {each: (mine.row.status, mine.row.error) for each, mine in rows.items()}
        return windows_of(
            c
            for each, c in self.crossings.items()
            if ends[each][0] != MovementStatus.FAILED or ends[each][1] == _WRITTEN_OFF
        )

    def limit_broken(self, nanos: int) -> type[ServiceError] | None:
        return self.exceeded(nanos, self.counted(self.rows()))

    @contextmanager
    def mishap(self, kind: str, *chains: SimulatedChain) -> Iterator[None]:
        for chain in chains:
            setattr(chain, kind, True)
        try:
            yield
        finally:
            for chain in chains:
                setattr(chain, kind, False)

    @rule(
        name=st.sampled_from(("orders", "orders", "portal", "inward", "outward")),
        dollars=st.integers(5, 18),
        fee=st.sampled_from((0, 0, 1, 1, 2, 3)),
        mishap=st.sampled_from(("none", "none", "none", "loses_answers", "swallows", "away", "closed", "second")),
    )
    def an_agent_bridges(self, name: str, dollars: int, fee: int, mishap: str) -> None:
        self.send(name, dollars, fee, mishap)

    def send(self, name: str, dollars: int, fee: int, mishap: str) -> str | None:
        way = getattr(self.ground, name)
        token = USDC if name in ("inward", "outward") else ETH
        fee = 0 if name == "portal" else fee
        for each in self.ground.ways:
            each.fee_units = 0 if each is self.ground.portal else fee * UNITS[token]
        if mishap == "closed" or (mishap == "second" and name == "orders"):
            way.closed = True
            self.ground.second.closed = mishap == "closed"
            way = self.ground.second if name == "orders" else way
        order = bridges.BridgeOrder(way.source.name, way.destination.name, TokenAmount(dollars * UNITS[token], token))
        too_expensive = fee * 10_000 > dollars * _CAP_BPS + _CAP_DOLLARS * 10_000
        first_refusal = self.limit_broken(0)
        broken = self.limit_broken(fee * USD)
        expected: type[ServiceError] | str | None = (
            WalletFrozen if self.frozen
            else first_refusal or (
                "chain_unreachable" if mishap == "away"
                else "quote_unavailable" if mishap == "closed"
                else "bridge_fee_too_high" if too_expensive
                else broken
            )
        )  # fmt: skip
        kind = mishap if mishap in ("loses_answers", "swallows", "away") else "away"
        chains = (way.source,) if mishap in ("loses_answers", "swallows", "away") else ()
        try:
            with self.mishap(kind, *chains):
                return self.sent(order, way, fee, expected)
        finally:
            for each in self.ground.ways:
                each.closed = False

    def sent(self, order: Any, way: Any, fee: int, expected: type[ServiceError] | str | None) -> str | None:
        if expected is not None:
            failure = BridgeFailed if isinstance(expected, str) else expected
            with pytest.raises(failure):
                bridges.quote(self.wallet, order)
            with pytest.raises(failure) as refused:
                bridges.send(self.wallet, order, wait_seconds=NO_WAIT, claim=Claim.none())
            if isinstance(expected, str):
                assert refused.value.details["reason"] == expected
                self.refused += 1
            return None
        heads = (way.source.head().number, way.destination.head().number)
        view = bridges.send(self.wallet, order, wait_seconds=NO_WAIT, claim=Claim.none())
        assert view.status == MovementStatus.PENDING
        token = order.amount.token
        self.crossings[view.id] = Crossing(
            way, token, order.amount.units, fee * UNITS[token], fee * USD, clock.now().date(), heads
        )
        if way is self.ground.second:
            self.note("second provider")
        return view.id

    # Steps of the environment.

    @rule(
        blocks=st.integers(1, 3), how=st.sampled_from(("full", "full", "full", "full", "reverting", "empty")),
        which=st.sampled_from(((0, 1), (0, 1), (0,), (1,))),
    )  # fmt: skip
    def blocks_come(self, blocks: int, how: str, which: tuple[int, ...]) -> None:
        for each in which:
            self.chains[each].mine(blocks, reverting=how == "reverting", empty=how == "empty")

    @rule(
        which=st.sampled_from((0, 1)), depth=st.integers(1, 4), keep=st.booleans(),
        rounds=st.sampled_from((0, 1, _ROUNDS)),
    )  # fmt: skip
    def a_reorganisation_comes(self, which: int, depth: int, keep: bool, rounds: int) -> None:
        before = {each: (rows.bridge.arrival_hash, rows.bridge.refund_hash) for each, rows in self.rows().items()}
        self.chains[which].reorganise(depth, keep=keep)
        for each, (arrival, refund) in before.items():
            way = self.crossings[each].way
            if arrival and way.destination.landed(arrival) is None:
                self.note("a reorged arrival")
            if refund and way.source.landed(refund) is None:
                self.note("a reorged refund")
        self.workers_run(rounds)

    @rule(which=st.sampled_from((0, 1)))
    def the_nodes_forget(self, which: int) -> None:
        self.chains[which].forget_pool()

    @precondition(lambda self: self.crossings)
    @rule(which=st.sampled_from((0, 1)))
    def another_transaction_uses_the_nonce(self, which: int) -> None:
        chain = self.chains[which]
        chain.use_next_nonce(self.address)
        chain.mine(SAFE_DEPTH + 1)
        self.workers_run(_ROUNDS)

    @precondition(lambda self: self.crossings)
    @rule(which=st.sampled_from((0, 1)), looks=st.integers(1, 3), left=st.sampled_from((0, 10_000)))
    def it_runs_short(self, which: int, looks: int, left: int) -> None:
        """A reorg removes the balance for gas, which is included again after some passes of the workers."""
        chain = self.chains[which]
        gone = chain.owned(self.address, ETH) - left
        chain.take(self.address, ETH, gone)
        for _ in range(looks):
            chain.mine(_PATIENCE)
            self.workers_run(1)
        chain.give(self.address, ETH, gone)

    @rule(hours=st.sampled_from(HOURS))
    def time_passes(self, hours: int) -> None:
        self.let_pass(hours=hours)

    # Steps of services.

    def some(self, which: int, *ways: Any) -> tuple[str, Crossing, Rows] | None:
        """Return a bridge of these providers with a confirmed source, or None."""
        rows = self.rows()
        found = [each for each, c in self.crossings.items() if c.way in ways and self.left(c, rows[each]) is not None]
        if not found:
            return None
        chosen = found[which % len(found)]
        return chosen, self.crossings[chosen], rows[chosen]

    @rule(
        which=st.integers(0, 5),
        does=st.sampled_from(("pays", "pays", "pays", "pays less", "pays another", "reverts", "refunds")),
        mined=st.booleans(), says=st.sampled_from((True, True, False)),
    )  # fmt: skip
    def a_service_pays(self, which: int, does: str, mined: bool, says: bool) -> None:
        """Pay correctly or not, and report it now or later, possibly for another bridge."""
        chosen = self.some(which, self.ground.orders, self.ground.second)
        if chosen is None:
            return
        _, crossing, rows = chosen
        way, units = crossing.way, crossing.units - crossing.fee_units
        chain = way.source if does == "refunds" else way.destination
        to = OTHER if does == "pays another" else self.address
        paid = chain.pay(to, ETH, units // 2 if does == "pays less" else units)
        self.paid.append((OrderStatus.REFUNDED if does == "refunds" else OrderStatus.PAID, paid))
        if mined or does == "reverts":
            chain.mine(1, reverting=does == "reverts")
        if says:
            self.report_order(crossing, rows, *self.paid[-1])

    @rule(which=st.integers(0, 5), what=st.integers(-1, 7))
    def a_service_reports(self, which: int, what: int) -> None:
        """Report any payment so far, none, or one that does not exist."""
        chosen = self.some(which, self.ground.orders, self.ground.second)
        if chosen is None:
            return
        known = [(OrderStatus.OPEN, ""), (OrderStatus.PAID, "0x" + "9" * 64), *self.paid]
        self.report_order(chosen[1], chosen[2], *known[what % len(known)])

    def report_order(self, crossing: Crossing, rows: Rows, status: OrderStatus, tx_hash: str) -> None:
        crossing.way.reports[rows.source.tx_hash or ""] = OrderReport(status, tx_hash)
        crossing.named.add(tx_hash)

    @rule(which=st.integers(0, 5), forwarded=st.booleans())
    def a_burn_is_attested(self, which: int, forwarded: bool) -> None:
        chosen = self.some(which, self.ground.inward, self.ground.outward)
        if chosen is None:
            return
        _, crossing, rows = chosen
        crossing.way.attested.add(rows.source.tx_hash)
        (crossing.way.forwarded.add if forwarded else crossing.way.forwarded.discard)(rows.source.tx_hash)

    @rule(which=st.integers(0, 5))
    def another_relayer_mints(self, which: int) -> None:
        chosen = self.some(which, self.ground.inward, self.ground.outward)
        if chosen is None or chosen[2].source.tx_hash not in chosen[1].way.attested:
            return
        _, crossing, rows = chosen
        crossing.way.mint_externally(rows.source.tx_hash or "", self.address, crossing.units - crossing.fee_units)

    @rule()
    def base_executes_deposits(self) -> None:
        pending = any(tx.sender == self.address for tx in self.ground.chain.pool.values())
        if self.ground.portal.execute_deposits() and pending:
            self.note("a deposit uses our nonce")

    @rule(services=st.booleans(), chain=st.sampled_from((None, 0, 1)))
    def a_system_is_unreachable(self, services: bool, chain: int | None) -> None:
        for way in self.ground.ways:
            way.away = services
        with self.mishap("away", *(() if chain is None else (self.chains[chain],))):
            self.workers_run(1)
        for way in self.ground.ways:
            way.away = False

    # Steps of workers and operators.

    @rule(rounds=st.sampled_from((1, 1, 2, _ROUNDS, _ROUNDS)))
    def workers_run(self, rounds: int) -> None:
        for _ in range(rounds):
            self.let_pass(seconds=61)
            for chain in self.chains:
                confirmation.confirm(chain.name)
            bridge_steps.advance_due()
        if rounds >= _ROUNDS:
            self.check_outcomes()

    @precondition(lambda self: self.crossings)
    @rule(which=st.integers(0, 5))
    def an_operator_writes_off(self, which: int) -> None:
        self.workers_run(_ROUNDS)
        bridge_id = list(self.crossings)[which % len(self.crossings)]
        self.write_off(bridge_id)

    def write_off(self, bridge_id: str) -> bool:
        """Write a bridge off if permitted, else check that it is refused."""
        crossing, rows = self.crossings[bridge_id], self.rows()[bridge_id]
        left = self.left(crossing, rows)
        if rows.row.status != MovementStatus.PENDING or left is None or not self.is_lost(crossing, rows):
            with pytest.raises(TransactionInProgress):
                bridge_service.write_off(OPERATOR, bridge_id, accept_partial_refund=False)
            return False
        bridge_service.write_off(OPERATOR, bridge_id, accept_partial_refund=False)
        crossing.written_off = left.hash
        return True

    def is_lost(self, crossing: Crossing, rows: Rows) -> bool:
        if not isinstance(crossing.way, Orders):
            return False
        report = crossing.way.reports.get(rows.source.tx_hash or "")
        if report is None or report.status is OrderStatus.OPEN:
            return False
        chain = crossing.way.source if report.status is OrderStatus.REFUNDED else crossing.way.destination
        found = chain.landed(report.tx_hash)
        return found is not None and found[0].number <= chain.safe and not brings(found[1], self.address, ETH)

    @precondition(lambda self: self.crossings)
    @rule(which=st.integers(0, 5), what=st.sampled_from(("another pass", "an operator", "a reorganisation")))
    def the_state_changes_while_a_worker_queries(self, which: int, what: str) -> None:
        """The state changes between query and response: by another pass, a write-off or a reorg."""
        self.workers_run(_ROUNDS)
        pending = [each for each, rows in self.rows().items() if rows.row.status == MovementStatus.PENDING]
        if not pending:
            return
        bridge_id = pending[which % len(pending)]
        crossing = self.crossings[bridge_id]

        def happens() -> None:
            if what == "an operator":
                if self.write_off(bridge_id):
                    self.note("written off while a worker queries")
            elif what == "another pass":
                bridge_steps.advance(bridge_id)
            else:
                crossing.way.destination.reorganise(2, keep=False)

        crossing.way.meanwhile = happens
        self.let_pass(seconds=61)
        bridge_steps.advance(bridge_id)
        crossing.way.meanwhile = None
        self.workers_run(_ROUNDS)

    @rule(
        limits=st.fixed_dictionaries(
            {},
            optional={
                "daily": st.sampled_from((0, 2, 4)),
                "weekly": st.sampled_from((0, 3, 6)),
                "monthly": st.sampled_from((0, 5, 9)),
                "per_tx": st.sampled_from((0, 1, 3)),
            },
        )
    )
    def limits_change(self, limits: dict[str, int]) -> None:
        self.set_limits(**limits)

    # The most frequent sequence, which random steps rarely produce.

    @rule(
        name=st.sampled_from(("orders", "orders", "portal", "inward", "outward")),
        fee=st.sampled_from((0, 1)), refunds=st.booleans(), ends=st.booleans(),
    )  # fmt: skip
    def one_runs_normally(self, name: str, fee: int, refunds: bool, ends: bool) -> None:
        bridge_id = self.send(name, 15, fee, "none")
        if bridge_id is None:
            return
        self.blocks_come(1, "full", (0, 1))
        self.workers_run(1)
        which = self.index_of(bridge_id)
        if which is None:
            return
        if name == "orders":
            self.a_service_pays(which, "refunds" if refunds else "pays", mined=True, says=True)
        elif name == "portal":
            self.blocks_come(SAFE_DEPTH, "full", (0, 1))
            self.base_executes_deposits()
        else:
            self.a_burn_is_attested(which, forwarded=False)
            self.workers_run(1)
            self.blocks_come(1, "full", (0, 1))
        self.workers_run(_ROUNDS if ends else 1)

    def index_of(self, bridge_id: str) -> int | None:
        """Return the index by which `some` selects a bridge."""
        crossing, rows = self.crossings[bridge_id], self.rows()
        g = self.ground
        ways = next(w for w in ((g.orders, g.second), (g.inward, g.outward), (g.portal,)) if crossing.way in w)
        left = [e for e, c in self.crossings.items() if c.way in ways and self.left(c, rows[e]) is not None]
        return left.index(bridge_id) if bridge_id in left else None

    # Expected states.

    def rows(self) -> dict[str, Rows]:
        with read_only_unit() as session:
            found = {row.id: row for row in session.scalars(select(Transaction))}
            signed = session.scalars(select(SignedAttempt).where(SignedAttempt.purpose == AttemptPurpose.PAYMENT.value))
            payments: dict[str, set[str]] = {}
            for attempt in signed:
                payments.setdefault(attempt.transaction_id, set()).add(attempt.tx_hash)
            sources = {row.bridge_id: row for row in found.values() if row.leg == BridgeLegKind.SOURCE.value}
            known = {
                bridge.id: Rows(
                    found[bridge.id], bridge, sources[bridge.id], frozenset(payments[sources[bridge.id].id]),
                    sum(
                        leg.bridge_id == bridge.id and leg.leg == BridgeLegKind.DESTINATION.value
                        and leg.status == MovementStatus.PENDING.value
                        for leg in found.values()
                    ),
                )
                for bridge in session.scalars(select(Bridge))
            }  # fmt: skip
        # In the order of creation.
        return {each: known[each] for each in [*self.crossings, *(known.keys() - self.crossings.keys())]}

    def left(self, crossing: Crossing, rows: Rows) -> Block | None:
        """Return the block of the confirmed source transaction, if any."""
        for tx_hash in rows.payments:
            found = crossing.way.source.landed(tx_hash)
            if found is not None and found[1].succeeded:
                return found[0]
        return None

    def has_failed(self, crossing: Crossing, rows: Rows) -> bool:
        """Return whether the source can no longer be confirmed, because another transaction has its nonce."""
        chain = crossing.way.source
        for block in chain.blocks:
            for entry in block.landed:
                if (entry.tx.sender, entry.tx.nonce) == (self.address, rows.source.nonce):
                    if entry.tx.tx_hash in rows.payments:
                        return not entry.succeeded
                    return bool(entry.tx.fee_units) or block.number <= chain.safe
        return False

    def pays(self, crossing: Crossing, rows: Rows, tx_hash: str | None, *, back: bool) -> Landed | None:
        """Return the transaction if it pays or refunds this bridge on its chain."""
        way = crossing.way
        found = (way.source if back else way.destination).landed(tx_hash or "")
        if found is None or not found[1].succeeded:
            return None
        entry = found[1]
        if isinstance(way, Orders):
            least = 1 if back else crossing.units - crossing.fee_units
            is_paid = tx_hash in crossing.named and brings(entry, self.address, crossing.token) >= least
            is_paid = is_paid and found[0].number >= crossing.heads[0 if back else 1]
        else:
            burns = {auth_of(each) for each in rows.payments}
            is_paid = not back and entry.tx.auth in burns and entry.tx.recipient == self.address
        return entry if is_paid else None

    def check_outcomes(self) -> None:
        """Check each bridge against both chains, reports of services and write-offs."""
        rows = self.rows()
        taken = {rows_.bridge.arrival_hash or rows_.bridge.refund_hash for rows_ in rows.values()}
        for bridge_id, crossing in self.crossings.items():
            mine = rows[bridge_id]
            row, bridge, left = mine.row, mine.bridge, self.left(crossing, mine)
            if row.status == MovementStatus.CONFIRMED:
                entry = self.pays(crossing, mine, bridge.arrival_hash, back=False)
                assert entry is not None
                assert bridge.received_units == entry.tx.units >= crossing.units - crossing.fee_units
            elif row.status == MovementStatus.PENDING:
                assert not self.has_failed(crossing, mine)
                if left is not None:
                    # A write-off is final, even during a pass of a worker.
                    assert crossing.written_off != left.hash
                    self.check_pending(crossing, mine, taken)
            elif row.error == _REFUNDED:
                entry = self.pays(crossing, mine, bridge.refund_hash, back=True)
                assert entry is not None
                assert bridge.refund_units == entry.tx.units
            elif row.error == _WRITTEN_OFF:
                assert left is not None
                assert crossing.written_off == left.hash
            else:
                assert self.has_failed(crossing, mine)

    def check_pending(self, crossing: Crossing, mine: Rows, taken: set[str | None]) -> None:
        """Check that a pending bridge with a confirmed source has no outcome yet, and is being completed."""
        way, source_hash = crossing.way, mine.source.tx_hash or ""
        if isinstance(way, Orders):
            report = way.reports.get(source_hash)
            if report is not None and report.status is not OrderStatus.OPEN and report.tx_hash not in taken:
                assert self.pays(crossing, mine, report.tx_hash, back=report.status is OrderStatus.REFUNDED) is None
            elif report is not None and report.tx_hash in taken:
                self.note("a payment reported for two bridges")
            return
        assert way.destination.was_used(auth_of(source_hash)) is None
        if isinstance(way, Burns) and source_hash in way.attested - way.forwarded:
            assert mine.pending_mints == 1 or way.destination.owned(self.address, ETH) < 10**15

    @invariant()
    def rows_are_consistent(self) -> None:
        rows = self.rows()
        self.the_windows_count_fees_of_pending_and_lost_bridges(rows)
        self.each_payment_settles_one_bridge_and_each_hold_matches(rows)
        self.no_leg_is_executed_twice(rows)

    def the_windows_count_fees_of_pending_and_lost_bridges(self, rows: dict[str, Rows]) -> None:
        with read_only_unit() as session:
            standing = spending_controls.status_of(session, self.wallet.id)
        windows = (standing.today, standing.week, standing.month)
        assert tuple(window.spent_nanos for window in windows) == self.counted(rows)

    def each_payment_settles_one_bridge_and_each_hold_matches(self, rows: dict[str, Rows]) -> None:
        assert rows.keys() == self.crossings.keys()
        with read_only_unit() as session:
            holds = dict(session.execute(select(SpendingHold.reference, SpendingHold.state)).all())
            parents = session.scalars(select(Transaction.id).where(Transaction.kind == MovementKind.BRIDGE.value)).all()
        assert len(parents) == len(rows) + self.refused
        assert holds.keys() == rows.keys()
        shown = []
        for bridge_id, mine in rows.items():
            row, bridge = mine.row, mine.bridge
            assert (bridge.arrival_hash is not None) == (row.status == MovementStatus.CONFIRMED)
            assert (bridge.refund_hash is not None) == (row.error == _REFUNDED and row.status == MovementStatus.FAILED)
            shown += [each for each in (bridge.arrival_hash, bridge.refund_hash) if each is not None]
            lost = row.status == MovementStatus.FAILED and row.error == _WRITTEN_OFF
            ends = {
                MovementStatus.PENDING: "held",
                MovementStatus.CONFIRMED: "spent",
                MovementStatus.FAILED: "released",
            }
            assert holds[bridge_id] == ("spent" if lost else ends[MovementStatus(row.status)])
            assert mine.pending_mints <= 1
        assert len(shown) == len(set(shown))

    def no_leg_is_executed_twice(self, rows: dict[str, Rows]) -> None:
        for bridge_id, mine in rows.items():
            way = self.crossings[bridge_id].way
            landed = [way.source.landed(each) for each in mine.payments]
            assert sum(found is not None and found[1].succeeded for found in landed) <= 1

    # End of a walk.

    def come_to_rest(self) -> None:
        """Run honest services, blocks and workers until nothing is pending; then check all balances."""
        self.workers_run(_ROUNDS)
        for _ in range(_ROUNDS_TO_REST):
            pending = [each for each, rows in self.rows().items() if rows.row.status == MovementStatus.PENDING]
            if not pending and not self.legs_pending():
                break
            for bridge_id in pending:
                self.be_honest(bridge_id)
            self.ground.portal.execute_deposits()
            for chain in self.chains:
                chain.mine(_PATIENCE)
            self.workers_run(2)
        assert not self.legs_pending()
        assert all(rows.row.status != MovementStatus.PENDING for rows in self.rows().values())
        self.check_outcomes()
        self.check_balances()

    def be_honest(self, bridge_id: str) -> None:
        crossing, rows = self.crossings[bridge_id], self.rows()[bridge_id]
        way, source_hash = crossing.way, rows.source.tx_hash or ""
        if self.left(crossing, rows) is None:
            return
        if isinstance(way, Burns):
            way.attested.add(source_hash)
            way.forwarded.discard(source_hash)
        elif isinstance(way, Orders):
            paid = way.destination.pay(self.address, ETH, crossing.units - crossing.fee_units)
            self.report_order(crossing, rows, OrderStatus.PAID, paid)

    def legs_pending(self) -> bool:
        with read_only_unit() as session:
            legs = session.scalars(
                select(Transaction.id).where(
                    Transaction.bridge_id.is_not(None), Transaction.status == MovementStatus.PENDING.value
                )
            ).all()
        return bool(legs)

    def check_balances(self) -> None:
        """Check the balances on both chains against the legs and incoming payments."""
        with read_only_unit() as session:
            legs = session.scalars(select(Transaction).where(Transaction.bridge_id.is_not(None))).all()
        for chain in self.chains:
            ours = [leg for leg in legs if leg.chain == chain.name.value]
            brought = {
                token: sum(
                    entry.tx.units
                    for block in chain.blocks
                    for entry in block.landed
                    if entry.succeeded and entry.tx.source != self.address
                    and (entry.tx.recipient, entry.tx.symbol) == (self.address, token.symbol)
                )
                for token in (USDC, ETH)
            }  # fmt: skip
            burnt = sum(
                leg.amount_units
                for leg in ours
                if leg.status == MovementStatus.CONFIRMED
                and leg.currency == USDC.symbol
                and leg.leg == BridgeLegKind.SOURCE.value
            )
            start = 10**6 * UNITS[USDC]
            assert chain.owned(self.address, USDC) == start + brought[USDC] - burnt
            took = sum(leg.native_out_units or 0 for leg in ours)
            assert chain.owned(self.address, ETH) == 10**6 * UNITS[ETH] + brought[ETH] - took

    reaches = frozenset(
        {
            "bridge: confirmed", "bridge: pending, reorganised",
            "bridge: failed, reverted", "bridge: failed, cancelled", "bridge: failed, slot_taken",
            "bridge: failed, refunded", "bridge: failed, written_off",
            "bridge: failed, chain_unreachable", "bridge: failed, quote_unavailable",
            "bridge: failed, bridge_fee_too_high",
            "bridge_leg: confirmed", "bridge_leg: replaced", "bridge_leg: pending, reorganised",
            "bridge_leg: failed, reverted",
            "second provider", "a payment reported for two bridges", "a reorged arrival", "a reorged refund",
            "a deposit uses our nonce", "written off while a worker queries",
        }
    )  # fmt: skip

    def script(self) -> Iterator[None]:
        self.set_limits(daily=0, weekly=0, monthly=0, per_tx=0)
        both = (0, 1)
        for name in ("orders", "portal", "inward", "outward"):
            self.one_runs_normally(name, 1, refunds=False, ends=True)
            yield
        # An arrival is reorged and included again.
        for keep in (True, False):
            self.one_runs_normally("outward", 0, refunds=False, ends=True)
            self.a_reorganisation_comes(1, 1, keep, _ROUNDS)
            yield
            self.blocks_come(1, "full", both)
            self.workers_run(_ROUNDS)
            yield
        # A refund is reorged permanently.
        self.one_runs_normally("orders", 1, refunds=True, ends=True)
        self.a_reorganisation_comes(0, 1, keep=False, rounds=_ROUNDS)
        yield
        # One payment is reported for two bridges.
        first, second = (self.send("orders", 15, 1, "none") for _ in range(2))
        self.blocks_come(1, "full", both)
        self.workers_run(1)
        self.a_service_pays(self.number_of(first), "pays", mined=True, says=True)
        self.a_service_reports(self.number_of(second), -1)
        self.workers_run(_ROUNDS)
        yield
        for _ in range(2):
            self.one_is_paid_to_another_address()
            yield
        # A write-off while a worker queries.
        self.send("orders", 15, 1, "second")
        self.blocks_come(1, "full", both)
        self.workers_run(1)
        newest = list(self.crossings)[-1]
        self.a_service_pays(self.number_of(newest), "pays another", mined=True, says=True)
        self.blocks_come(SAFE_DEPTH, "full", both)
        self.the_state_changes_while_a_worker_queries(self.pending_number_of(newest), "an operator")
        yield
        yield from self.script_of_failed_sources()

    def script_of_failed_sources(self) -> Iterator[None]:
        both = (0, 1)
        for mishap, fee in (("away", 0), ("closed", 0), ("none", 3)):
            self.send("orders", 5, fee, mishap)
        yield
        for how in ("reverting", "empty"):
            self.send("outward", 5, 0, "none")
            for _ in range(3):
                self.blocks_come(_PATIENCE, how, both)
                self.workers_run(1)
            self.blocks_come(1, "full", both)
            self.workers_run(_ROUNDS)
            yield
        self.send("orders", 5, 0, "none")
        self.it_runs_short(0, 3, 10_000)
        self.blocks_come(1, "full", both)
        self.workers_run(_ROUNDS)
        yield
        self.send("portal", 5, 0, "swallows")
        self.another_transaction_uses_the_nonce(1)
        yield
        self.send("portal", 5, 0, "none")
        self.blocks_come(SAFE_DEPTH + 1, "full", both)
        self.send("orders", 5, 0, "none")
        self.base_executes_deposits()
        self.workers_run(_ROUNDS)
        yield

    def one_is_paid_to_another_address(self) -> None:
        self.send("orders", 15, 1, "none")
        self.blocks_come(1, "full", (0, 1))
        self.workers_run(1)
        newest = list(self.crossings)[-1]
        self.a_service_pays(self.number_of(newest), "pays another", mined=True, says=True)
        self.an_operator_writes_off(len(self.crossings) - 1)
        self.blocks_come(SAFE_DEPTH, "full", (0, 1))
        self.an_operator_writes_off(len(self.crossings) - 1)

    def number_of(self, bridge_id: str | None) -> int:
        found = self.index_of(bridge_id or "")
        assert found is not None
        return found

    def pending_number_of(self, bridge_id: str) -> int:
        pending = [each for each, rows in self.rows().items() if rows.row.status == MovementStatus.PENDING]
        return pending.index(bridge_id)


@pytest.fixture
def bridged(each_database_url: str, build_app: Callable[..., Flask]) -> Bridged:
    """Base and Ethereum on each kind of database, with all bridge providers."""
    base, ethereum = SimulatedChain(), SimulatedChain(ChainName.ETHEREUM)
    ways = {
        "orders": Orders("relay", base, ethereum), "second": Orders("lifi", base, ethereum),
        "portal": Portal("portal", ethereum, base), "inward": Burns("cctp", ethereum, base),
        "outward": Burns("cctp", base, ethereum),
    }  # fmt: skip

    def bridged_ground(*given: Any) -> Bridged:
        return Bridged(*given, ethereum=ethereum, **ways)

    return ground_for(
        build_app,
        each_database_url,
        kind=bridged_ground,
        chain=base,
        settings={
            "ethereum_stuck_blocks": _PATIENCE, "max_bridge_fee_bps": _CAP_BPS, "max_network_fee_usd": _CAP_DOLLARS,
        },
        parts={
            "chains": {each.name: each for each in (base, ethereum)},
            "prices": MarketPriceFeed([], [], overrides={ETH: 1000 * USD, SOL: 100 * USD}),
            "bridges": {
                (ChainName.BASE, ChainName.ETHEREUM, ETH): (ways["orders"], ways["second"]),
                (ChainName.ETHEREUM, ChainName.BASE, ETH): (ways["portal"],),
                (ChainName.ETHEREUM, ChainName.BASE, USDC): (ways["inward"],),
                (ChainName.BASE, ChainName.ETHEREUM, USDC): (ways["outward"],),
            },
        },
    )  # fmt: skip


def test_bridge_outcomes_match_the_chains_whatever_services_do(bridged: Bridged, walk: Walk) -> None:
    walk(Bridges, bridged, walks=3, steps=30)
