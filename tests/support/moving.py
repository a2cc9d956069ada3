"""State machine of one wallet with limits: transfers, blocks, reorgs, shortages and date changes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from decimal import Decimal

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule
from sqlalchemy import select

from app.agents import service as agents
from app.core import clock
from app.core.chains import ETH, USDC, ChainName, Token, address_for_chain
from app.core.money import TokenAmount
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.errors import AddressNotAllowed, ServiceError, TransferFailed, WalletFrozen, WithdrawalFailed
from app.idempotency.service import Claim
from app.ports.chain import BlockRef
from app.spending import audit as spending_audit
from app.spending import controls as spending_controls
from app.spending.controls import ControlsChange
from app.spending.models import SpendingHold
from app.wallets import transfers
from app.wallets.core.lifecycle import MovementStatus, TransactionType
from app.wallets.core.models import SignedAttempt, Transaction
from app.wallets.kinds.transfer import parse_movement
from app.wallets.maintenance import audit as wallets_audit
from app.wallets.transactions import confirmation
from tests.support.limited_wallets import LimitedWallet, windows_of
from tests.support.machines import HOURS
from tests.support.simulated_chain import SAFE_DEPTH, Landed

USD = 10**9
UNIT = 10**6
FRIEND = address_for_chain("0xde709f2102306220921060314715629080e2fb77", ChainName.BASE)
OTHER = "0x52908400098527886E0F7030069857D2E4169EE7"
NO_WAIT = Decimal(0)
USDC_UNITS, WEI = 10**6 * UNIT, 10**18
# Enough for the fee of an empty transaction only.
_SHORT_WEI = 10_000
# Blocks that workers wait before they sign a replacement.
_PATIENCE = 3
_ROUNDS_TO_REST = 40
_HELD_AS = {MovementStatus.PENDING: "held", MovementStatus.CONFIRMED: "spent", MovementStatus.FAILED: "released"}


@dataclass
class Moved:
    """The model of a signed movement."""

    made_on: date
    counts_nanos: int
    nonce: int
    recipient: str
    amount: TokenAmount
    wants: str | None = None
    least: int = 0
    status: MovementStatus = MovementStatus.PENDING
    block: BlockRef | None = None


class Movements(LimitedWallet):
    """One wallet. The model is a list of movements, the limits, and the chain as the source of truth."""

    audits = (spending_audit.check, wallets_audit.check)

    def begin(self) -> None:
        made = agents.register(name=None, email=None)
        self.agent_id, self.wallet = made.agent_id, made.wallet
        self.address = self.wallet.address_on(self.ground.chain.name)
        self.ground.chain.give(self.address, USDC, USDC_UNITS)
        self.ground.chain.give(self.address, ETH, WEI)
        self.moved: dict[str, Moved] = {}
        self.refused = 0
        self.allowed: list[str] = []
        self.begin_unlimited()
        self.set_limits(daily=20, weekly=40, monthly=60, per_tx=15)

    def counted(self) -> tuple[int, int, int]:
        return windows_of(m for m in self.moved.values() if m.status is not MovementStatus.FAILED)

    def refusal(self, nanos: int, recipient: str | None) -> type[ServiceError] | None:
        if self.frozen:
            return WalletFrozen
        if recipient is not None and self.allowed and recipient not in self.allowed:
            return AddressNotAllowed
        return self.exceeded(nanos, self.counted())

    @contextmanager
    def mishap(self, kind: str) -> Iterator[None]:
        if kind != "none":
            setattr(self.ground.chain, kind, True)
        try:
            yield
        finally:
            if kind != "none":
                setattr(self.ground.chain, kind, False)

    @rule(
        dollars=st.integers(1, 18),
        to=st.sampled_from((FRIEND, FRIEND, OTHER)),
        type_=st.sampled_from((TransactionType.TRANSFER, TransactionType.WITHDRAWAL)),
        mishap=st.sampled_from(("none", "none", "none", "loses_answers", "swallows", "away")),
    )
    def send(self, dollars: int, to: str, type_: TransactionType, mishap: str) -> None:
        body = {"chain": "base", "to": to, "amount": str(dollars), "currency": "USDC"}
        order = parse_movement(type_, body)
        to = order.recipient
        expected = self.refusal(dollars * USD, to)
        if expected is not None:
            with pytest.raises(expected):
                transfers.quote(self.wallet, order)
            with pytest.raises(expected):
                transfers.send(self.wallet, order, wait_seconds=NO_WAIT, claim=Claim.none())
            return
        with self.mishap(mishap):
            if mishap == "away":
                failure = TransferFailed if type_ is TransactionType.TRANSFER else WithdrawalFailed
                with pytest.raises(failure) as refused:
                    transfers.send(self.wallet, order, wait_seconds=NO_WAIT, claim=Claim.none())
                assert refused.value.details["reason"] == "chain_unreachable"
                self.refused += 1
                return
            view = transfers.send(self.wallet, order, wait_seconds=NO_WAIT, claim=Claim.none())
        assert view.status == MovementStatus.PENDING
        self.moved[view.id] = Moved(clock.now().date(), dollars * USD, self.row(view.id).nonce or 0, to, order.amount)

    @rule(dollars=st.integers(1, 9), blocks=st.integers(1, 6), how=st.sampled_from(("full", "full", "reverting")))
    def one_runs_normally(self, dollars: int, blocks: int, how: str) -> None:
        """The most frequent sequence, which random steps rarely produce."""
        self.send(dollars, FRIEND, TransactionType.TRANSFER, "none")
        self.blocks_come(blocks, how)
        self.workers_run(away=False)

    @rule(hours=st.sampled_from(HOURS))
    def time_passes(self, hours: int) -> None:
        self.let_pass(hours=hours)

    @rule(blocks=st.integers(1, 3), how=st.sampled_from(("full", "full", "full", "reverting", "empty")))
    def blocks_come(self, blocks: int, how: str) -> None:
        self.ground.chain.mine(blocks, reverting=how == "reverting", empty=how == "empty")

    @rule(depth=st.integers(1, 3), keep=st.booleans(), looks=st.integers(0, 2))
    def a_reorganisation_comes(self, depth: int, keep: bool, looks: int) -> None:
        self.ground.chain.reorganise(depth, keep=keep)
        for _ in range(looks):
            self.workers_run(away=False)

    @rule()
    def the_nodes_forget(self) -> None:
        self.ground.chain.forget_pool()

    @precondition(lambda self: any(m.status is MovementStatus.PENDING for m in self.moved.values()))
    @rule()
    def another_transaction_uses_the_nonce(self) -> None:
        self.ground.chain.use_next_nonce(self.address)
        self.ground.chain.mine(SAFE_DEPTH + 1)
        self.workers_run(away=False)

    @precondition(lambda self: any(m.status is MovementStatus.PENDING for m in self.moved.values()))
    @rule(short=st.sampled_from((ETH, ETH, USDC)), left=st.sampled_from((0, _SHORT_WEI)), looks=st.integers(1, 3))
    def it_runs_short(self, short: Token, left: int, looks: int) -> None:
        """A reorg removes a deposit, which is included again after some passes of the workers."""
        chain = self.ground.chain
        gone = chain.owned(self.address, short) - left
        chain.take(self.address, short, gone)
        for _ in range(looks):
            # Without its tokens it would revert: it must be abandoned first.
            chain.mine(_PATIENCE, empty=short == USDC)
            self.workers_run(away=False)
        chain.give(self.address, short, gone)

    @rule(away=st.sampled_from((False, False, False, True)))
    def workers_run(self, away: bool) -> None:
        self.let_pass(seconds=61)
        with self.mishap("away" if away else "none"):
            confirmation.confirm(self.ground.chain.name)
        if not away:
            for moved in self.moved.values():
                self.follow(moved)

    def follow(self, moved: Moved) -> None:
        """Update the model by one pass: reopen what was reorged, else settle by the chain."""
        chain = self.ground.chain
        if moved.status is not MovementStatus.PENDING:
            gone = moved.block is not None and chain.orphaned_blocks([moved.block])[0]
            if gone:
                moved.status, moved.block = MovementStatus.PENDING, None
            return
        for block in chain.blocks:
            for entry in block.landed:
                if (entry.tx.sender, entry.tx.nonce) != (self.address, moved.nonce):
                    continue
                if _does(entry, moved):
                    moved.status = MovementStatus.CONFIRMED if entry.succeeded else MovementStatus.FAILED
                    moved.block = block.ref
                elif entry.tx.fee_units:
                    # Only a cancellation of ours can have that nonce.
                    moved.status, moved.block = MovementStatus.FAILED, block.ref
                elif block.number <= chain.safe:
                    moved.status = MovementStatus.FAILED

    @rule(
        limits=st.fixed_dictionaries(
            {},
            optional={
                "daily": st.sampled_from((0, 5, 20, 35)),
                "weekly": st.sampled_from((0, 10, 40)),
                "monthly": st.sampled_from((0, 30, 60)),
                "per_tx": st.sampled_from((0, 3, 15)),
            },
        )
    )
    def limits_change(self, limits: dict[str, int]) -> None:
        self.set_limits(**limits)

    @rule(allowed=st.sampled_from(((), (), (FRIEND,))))
    def the_allowlist_changes(self, allowed: tuple[str, ...]) -> None:
        self.allowed = list(allowed)
        with unit_of_work() as session:
            spending_controls.put_controls(session, self.wallet.id, ControlsChange(allowed_addresses=self.allowed))

    def row(self, transaction_id: str) -> Transaction:
        with read_only_unit() as session:
            return session.get_one(Transaction, transaction_id)

    @invariant()
    def the_windows_count_transfers_until_released(self) -> None:
        with read_only_unit() as session:
            standing = spending_controls.status_of(session, self.wallet.id)
        windows = (standing.today, standing.week, standing.month)
        assert tuple(window.spent_nanos for window in windows) == self.counted()
        for window, limit in zip(windows, ("daily", "weekly", "monthly"), strict=True):
            left = max(0, self.limits[limit] * USD - window.spent_nanos) if self.limits[limit] else 0
            assert window.remaining_nanos == left

    @invariant()
    def each_row_and_its_hold_match_the_model(self) -> None:
        with read_only_unit() as session:
            rows = {row.id: row for row in session.scalars(select(Transaction))}
            holds = dict(session.execute(select(SpendingHold.reference, SpendingHold.state)).all())
            signed = session.scalars(select(SignedAttempt.tx_hash)).all()
        assert len(rows) == len(self.moved) + self.refused
        assert holds.keys() == self.moved.keys()
        for transaction_id, moved in self.moved.items():
            assert rows[transaction_id].status == moved.status
            assert holds[transaction_id] == _HELD_AS[moved.status]
            # Every payment is stored: an unknown hash could pay unnoticed.
            if moved.block is not None:
                assert rows[transaction_id].tx_hash in signed
        slots = [moved.nonce for moved in self.moved.values()]
        assert len(slots) == len(set(slots))

    @invariant()
    def no_movement_ever_pays_twice(self) -> None:
        for recipient in (FRIEND, OTHER):
            paid = self.ground.chain.owned(recipient, USDC)
            ordered = sum(m.amount.units for m in self.moved.values() if m.recipient == recipient)
            assert paid <= ordered
            landed = sum(
                entry.tx.units
                for block in self.ground.chain.blocks
                for entry in block.landed
                if entry.succeeded and entry.tx.recipient == recipient
            )
            assert paid == landed

    reaches = frozenset(
        {
            "transfer: confirmed", "withdrawal: confirmed", "transfer: pending, reorganised", "transfer: replaced",
            "transfer: failed, reverted", "transfer: failed, cancelled", "transfer: failed, slot_taken",
            "transfer: failed, chain_unreachable",
        }
    )  # fmt: skip

    def script(self) -> Iterator[None]:
        transfer = TransactionType.TRANSFER
        self.set_limits(daily=0, weekly=0, monthly=0)
        self.send(1, FRIEND, TransactionType.WITHDRAWAL, "none")
        self.one_runs_normally(1, 1, "full")
        yield
        for keep in (True, False):
            self.a_reorganisation_comes(1, keep, 1)
            yield
            self.blocks_come(1, "full")
            self.workers_run(away=False)
            yield
        self.one_runs_normally(2, 1, "reverting")
        yield
        self.send(3, OTHER, transfer, "none")
        for _ in range(3):
            self.blocks_come(_PATIENCE, "empty")
            self.workers_run(away=False)
            yield
        self.blocks_come(1, "full")
        self.workers_run(away=False)
        yield
        for short, left in ((ETH, _SHORT_WEI), (USDC, 0)):
            self.send(4, FRIEND, transfer, "none")
            self.it_runs_short(short, left, 3)
            yield
            self.blocks_come(1, "full")
            self.workers_run(away=False)
            yield
        self.send(5, FRIEND, transfer, "swallows")
        self.another_transaction_uses_the_nonce()
        yield
        self.send(6, FRIEND, transfer, "away")
        yield

    def come_to_rest(self) -> None:
        """Mine and run workers until nothing is pending; the balance must then match the outcomes."""
        self.workers_run(away=False)
        for _ in range(_ROUNDS_TO_REST):
            if all(moved.status is not MovementStatus.PENDING for moved in self.moved.values()):
                break
            self.blocks_come(_PATIENCE, "full")
            self.workers_run(away=False)
        with read_only_unit() as session:
            rows = {row.id: row for row in session.scalars(select(Transaction))}
        kept = USDC_UNITS
        for transaction_id, moved in self.moved.items():
            row = rows[transaction_id]
            assert row.status == moved.status != MovementStatus.PENDING
            if moved.status is MovementStatus.CONFIRMED:
                kept -= moved.amount.units if moved.amount.token == USDC else 0
                kept += (row.output_units or 0) if moved.wants == USDC.symbol else 0
        chain = self.ground.chain
        assert chain.owned(self.address, USDC) == kept
        # Deposits are computed from the amounts of our own movements, which must be exact.
        taken = sum(row.native_out_units or 0 for row in rows.values())
        assert chain.owned(self.address, ETH) == WEI - taken


def _does(entry: Landed, moved: Moved) -> bool:
    return (entry.tx.recipient, entry.tx.wants) == (moved.recipient, moved.wants)
