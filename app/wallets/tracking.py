"""Carrying movements to their true end, for workers: one pass over a chain's open movements in few RPC calls.

The database says what is open; nothing here depends on the process that started a movement. A pass may run twice
at once or die anywhere: every effect is a conditional update.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import structlog
from sqlalchemy import func, select, update

from app.core import clock
from app.core.chains import TOKENS_BY_SYMBOL, ChainName
from app.core.money import TokenAmount
from app.core.unit_of_work import reading, unit_of_work
from app.ports import provider
from app.ports.chain import Attempt, BlockRef, Chain, Fate, Intent, Outcome, Terms, Watch
from app.ports.errors import PortError
from app.wallets import replacement, settlement
from app.wallets.lifecycle import Status
from app.wallets.models import SignedAttempt, Transaction

_log = structlog.get_logger(__name__)

BATCH = 1000
_SEND_AGAIN_AFTER = timedelta(seconds=15)
_CHECK_AGAIN_SECONDS = (1, 2, 2, 4, 8, 15, 30)
# A pass over a full batch stays within twenty requests to the node; the others have their turn in the next.
_SENT_AGAIN_PER_PASS = 500
_REPLACEMENTS_PER_PASS = 20


@dataclass(frozen=True, slots=True)
class SignedBytes:
    """Bytes that were signed for a movement, and what became of them so far."""

    id: int
    tx_hash: str
    purpose: str
    raw: bytes
    terms: Terms
    refusal: str | None
    seen_at_block: int | None
    sent_at: datetime


@dataclass(frozen=True, slots=True)
class OpenMovement:
    """A movement that is not at its end, with everything that was ever signed for it, oldest first."""

    id: str
    wallet_id: str
    chain: ChainName
    sender: str
    status: Status
    nonce: int | None
    checks: int
    block: BlockRef | None
    watch: Watch
    attempts: tuple[SignedBytes, ...]
    intent: Intent

    @property
    def latest(self) -> SignedBytes:
        """Return the attempt that was signed last."""
        return self.attempts[-1]

    def attempt(self) -> Attempt:
        """Return the latest attempt as the chain's adapter takes it."""
        row = self.latest
        return Attempt(self.intent, row.tx_hash, row.raw, self.nonce, row.terms)


@dataclass(frozen=True, slots=True)
class Pass:
    """What one pass did."""

    looked_at: int = 0
    settled: int = 0
    reopened: int = 0
    sent_again: int = 0
    replaced: int = 0


def confirm(name: ChainName) -> Pass:
    """Look once at what is due on a chain: settle, reopen, send again, replace.

    Never raises for an unreachable chain; the rows stay due and the next pass tries again.
    """
    chain = provider.current().chains[name]
    now = clock.now()
    due = _due(name, now)
    if not due:
        return Pass()
    pending = [movement for movement in due if movement.status is Status.PENDING]
    decided = [movement for movement in due if movement.status is not Status.PENDING]
    try:
        outcomes = chain.outcomes([movement.watch for movement in pending])
        head = chain.head() if pending else None
        reopened = _recheck(chain, decided)
    except PortError as error:
        _log.warning("chain_unreadable", chain=name, reason=error.reason)
        _look_again(due, now)
        return Pass(looked_at=len(due))
    settled = 0
    undecided, waiting = [], []
    for movement in pending:
        outcome = outcomes.get(movement.id, Outcome(Fate.WAITING))
        if settlement.is_decided(name, outcome):
            settled += settlement.settle(movement.watch, outcome)
            continue
        undecided.append(movement)
        if outcome.fate is Fate.WAITING:
            waiting.append(movement)
    _look_again(undecided, now)
    sent_again = _send_again(chain, waiting, now)
    replaced = _replace_stuck(chain, waiting, head) if head is not None else 0
    done = Pass(len(due), settled, reopened, sent_again, replaced)
    _log.info("confirmation_pass", chain=name, **_figures(done))
    return done


def _due(name: ChainName, now: datetime) -> list[OpenMovement]:
    with reading() as session:
        rows = session.scalars(
            select(Transaction)
            .where(Transaction.chain == name.value, Transaction.next_check_at <= now)
            .order_by(Transaction.next_check_at)
            .limit(BATCH)
        ).all()
        attempts: dict[str, list[SignedBytes]] = {row.id: [] for row in rows}
        signed = (
            select(SignedAttempt)
            .where(SignedAttempt.transaction_id.in_(list(attempts)))
            .order_by(SignedAttempt.id)
        )
        for attempt in session.scalars(signed):
            attempts[attempt.transaction_id].append(
                SignedBytes(
                    attempt.id, attempt.tx_hash, attempt.purpose, attempt.raw, attempt.terms,
                    attempt.refusal, attempt.seen_at_block, attempt.sent_at,
                )
            )  # fmt: skip
        return [_open_movement(row, attempts[row.id]) for row in rows if attempts[row.id]]


def _open_movement(row: Transaction, attempts: list[SignedBytes]) -> OpenMovement:
    sender = row.from_address or ""
    block = (
        BlockRef(row.block_number, row.block_hash)
        if row.block_number is not None and row.block_hash
        else None
    )
    return OpenMovement(
        id=row.id, wallet_id=row.wallet_id, chain=ChainName(row.chain), sender=sender,
        status=Status(row.status), nonce=row.nonce, checks=row.checks, block=block,
        watch=Watch(row.id, sender, row.nonce, tuple(a.tx_hash for a in attempts), row.expires_at_height),
        attempts=tuple(attempts),
        intent=Intent(sender, row.to_address, TokenAmount(row.amount_units, TOKENS_BY_SYMBOL[row.currency])),
    )  # fmt: skip


def _recheck(chain: Chain, decided: Sequence[OpenMovement]) -> int:
    """Look whether the blocks that decided movements still stand. Raises: Unreachable."""
    blocks = sorted(
        {movement.block for movement in decided if movement.block}, key=lambda block: block.number
    )
    if not blocks:
        settlement.finish([movement.id for movement in decided])
        return 0
    orphaned, safe = chain.orphaned(blocks)
    reopened = 0
    for movement in decided:
        if movement.block in orphaned:
            _log.warning("movement_reorganised", transaction_id=movement.id, chain=chain.name)
            reopened += settlement.reopen(movement.id)
    standing = [movement for movement in decided if movement.block not in orphaned]
    settlement.finish([m.id for m in standing if m.block is None or m.block.number <= safe])
    _look_again([m for m in standing if m.block is not None and m.block.number > safe], clock.now())
    return reopened


def _look_again(movements: Sequence[OpenMovement], now: datetime) -> None:
    """Set when to look next, further away each time."""
    by_pause: dict[int, list[str]] = {}
    for movement in movements:
        pause = _CHECK_AGAIN_SECONDS[min(movement.checks, len(_CHECK_AGAIN_SECONDS) - 1)]
        by_pause.setdefault(pause, []).append(movement.id)
    if not by_pause:
        return
    with unit_of_work() as session:
        for pause, ids in by_pause.items():
            session.execute(
                update(Transaction)
                .where(Transaction.id.in_(ids), Transaction.next_check_at.is_not(None))
                .values(next_check_at=now + timedelta(seconds=pause), checks=Transaction.checks + 1)
            )


def _send_again(chain: Chain, waiting: Sequence[OpenMovement], now: datetime) -> int:
    """Send the same bytes again where the last sending is a while ago: a node may have dropped or never seen them."""
    stale = [movement for movement in waiting if _never_sent(movement, now) or _sent_long_ago(movement, now)]
    stale.sort(key=lambda movement: (movement.latest.sent_at, movement.nonce or 0))
    del stale[_SENT_AGAIN_PER_PASS:]
    if not stale:
        return 0
    try:
        chain.rebroadcast([movement.latest.raw for movement in stale])
    except PortError as error:
        _log.warning("rebroadcast_failed", chain=chain.name, reason=error.reason)
        return 0
    with unit_of_work() as session:
        session.execute(
            update(SignedAttempt)
            .where(SignedAttempt.id.in_([movement.latest.id for movement in stale]))
            .values(sent_at=now)
        )
    return len(stale)


def _never_sent(movement: OpenMovement, now: datetime) -> bool:
    # The first look comes after the request had its time to send; sending twice is harmless.
    return movement.checks == 0 and movement.latest.sent_at + settlement.FIRST_CHECK_AFTER <= now


def _sent_long_ago(movement: OpenMovement, now: datetime) -> bool:
    return movement.latest.sent_at + _SEND_AGAIN_AFTER <= now


def _replace_stuck(chain: Chain, waiting: Sequence[OpenMovement], head: BlockRef) -> int:
    """Sign the lowest waiting slot of each sender again at a higher fee once it has waited long enough."""
    unseen = [m.latest.id for m in waiting if m.latest.seen_at_block is None]
    if unseen:
        with unit_of_work() as session:
            session.execute(
                update(SignedAttempt).where(SignedAttempt.id.in_(unseen)).values(seen_at_block=head.number)
            )
    patience = replacement.patience_blocks(chain.name)
    stuck = [
        movement
        for movement in waiting
        if movement.nonce is not None
        and movement.latest.seen_at_block is not None
        and head.number - movement.latest.seen_at_block >= patience
        and movement.nonce == _lowest_open_nonce(movement)
    ]
    return sum(replacement.replace(chain, movement) for movement in stuck[:_REPLACEMENTS_PER_PASS])


def _lowest_open_nonce(movement: OpenMovement) -> int | None:
    with reading() as session:
        lowest = session.scalar(
            select(func.min(Transaction.nonce)).where(
                Transaction.chain == movement.chain.value,
                Transaction.from_address == movement.sender,
                Transaction.status == Status.PENDING.value,
            )
        )
        return None if lowest is None else int(lowest)


def _figures(done: Pass) -> dict[str, int]:
    return {name: getattr(done, name) for name in Pass.__dataclass_fields__}
