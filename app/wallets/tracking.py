"""Carrying movements to their true end, for workers: one pass over a chain's open movements in few RPC calls.

The database says what is open; nothing here depends on the process that started a movement. A pass may run twice
at once or die anywhere: every effect is a conditional update.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import structlog
from sqlalchemy import update

from app.core import clock, logs
from app.core.chains import ChainName
from app.core.unit_of_work import unit_of_work
from app.ports import provider
from app.ports.chain import BlockRef, Chain, Fate, Outcome
from app.ports.errors import PortError
from app.wallets import open_movements, replacement, settlement
from app.wallets.lifecycle import Status
from app.wallets.models import SignedAttempt, Transaction
from app.wallets.open_movements import OpenMovement, Unreadable

_log = structlog.get_logger(__name__)

_SEND_AGAIN_AFTER = timedelta(seconds=15)
_CHECK_AGAIN_SECONDS = (1, 2, 2, 4, 8, 15, 30)
# Where bytes expire within a minute or so, nodes forget them at once: they are sent and looked for all the time.
_SEND_EXPIRING_AGAIN_AFTER = timedelta(seconds=2)
_CHECK_EXPIRING_AGAIN_SECONDS = (1, *[2] * 150, 30)
# A pass over a full batch stays within twenty requests to the node; the others have their turn in the next.
_SENT_AGAIN_PER_PASS = 500
_REPLACEMENTS_PER_PASS = 20
# A pass ends well before the queue and the lease give it up, so that nothing of it is cut off each time.
_PASS_SECONDS = 40


@dataclass(frozen=True, slots=True)
class _Standing:
    """Which blocks were reorganised away, and up to which number that cannot happen any more."""

    orphaned: frozenset[BlockRef]
    safe: int


@dataclass(frozen=True, slots=True)
class Pass:
    """What one pass did."""

    looked_at: int = 0
    settled: int = 0
    reopened: int = 0
    sent_again: int = 0
    replaced: int = 0


def confirm(name: ChainName, *, seconds: int = _PASS_SECONDS) -> Pass:
    """Look once at what is due on a chain: send again, reopen, settle, replace, for about so many seconds.

    Never raises for an unreachable chain, nor for a single movement; what was not done stays due.
    """
    started, second = time.monotonic_ns(), 10**9
    chain = provider.current().chains[name]
    now = clock.now()
    found = open_movements.due(name, now)
    _look_again([entry for entry in found if isinstance(entry, Unreadable)], now)
    due = [entry for entry in found if isinstance(entry, OpenMovement)]
    if not due:
        return Pass()
    pending = [movement for movement in due if movement.status is Status.PENDING]
    decided = [movement for movement in due if movement.status is not Status.PENDING]
    blocks = sorted({m.block for m in decided if m.block}, key=lambda block: block.number)
    try:
        told = chain.outcomes([*(m.watch for m in pending), *(m.watch for m in decided if m.lacks_fee)])
        head = chain.head() if pending else None
        orphaned, safe = chain.orphaned(blocks) if blocks else (frozenset[BlockRef](), 0)
    except PortError as error:
        _log.warning("chain_unreadable", chain=name, reason=error.reason)
        _look_again(due, now)
        return Pass(looked_at=len(due))
    outcomes = {movement.id: told.get(movement.id, Outcome(Fate.WAITING)) for movement in due}
    ended = [m for m in pending if settlement.is_decided(name, outcomes[m.id])]
    undecided = [m for m in pending if not settlement.is_decided(name, outcomes[m.id])]
    waiting = [m for m in undecided if outcomes[m.id].fate is Fate.WAITING]
    # What is done for a crowd at once goes first; what is done one by one shares the rest of the time.
    _look_again(undecided, now)
    sent_again = _send_again(chain, waiting, now)
    reopened = _recheck(decided, outcomes, _Standing(orphaned, safe), until=started + seconds * second // 2)
    settled = _each(
        ended, lambda m: settlement.settle(m.watch, outcomes[m.id]), until=started + seconds * second * 3 // 4
    )
    replaced = (
        _replace_stuck(chain, waiting, head, until=started + seconds * second) if head is not None else 0
    )
    done = Pass(len(due), settled, reopened, sent_again, replaced)
    _log.info("confirmation_pass", chain=name, **_figures(done))
    return done


def settle_landed(chain: Chain, sender: str) -> None:
    """Settle what a sender has pending, has landed and nobody has looked at yet.

    For chains without nonces, where a balance does not tell which pending movements it already has paid for.

    Raises: Unreachable.
    """
    pending = open_movements.pending_of(sender, chain.name)
    if not pending:
        return
    told = chain.outcomes([movement.watch for movement in pending])
    outcomes = {movement.id: told.get(movement.id, Outcome(Fate.WAITING)) for movement in pending}
    needed = settlement.confirmations_needed(chain.name)
    for movement in pending:
        if settlement.is_landed(outcomes[movement.id], needed=needed):
            settlement.settle(movement.watch, outcomes[movement.id])


def _each(movements: Iterable[OpenMovement], do: Callable[[OpenMovement], bool], *, until: int) -> int:
    """Do something with one movement after the other until a monotonic instant; return how often it was done.

    The first one always has its turn. One that fails is looked at again later.
    """
    done = 0
    failed: list[OpenMovement] = []
    for movement in movements:
        with logs.caused_by(movement.request_id):
            try:
                done += do(movement)
            except Exception:
                # One poisonous row must not hold up all the others of its chain for ever.
                _log.exception("movement_not_carried_on", transaction_id=movement.id, chain=movement.chain)
                failed.append(movement)
        if time.monotonic_ns() >= until:
            break
    _look_again(failed, clock.now())
    return done


def _recheck(
    decided: Sequence[OpenMovement], outcomes: Mapping[str, Outcome], blocks: _Standing, *, until: int
) -> int:
    """Reopen decided movements whose block is gone, and let go of those that are `safe` and known in full."""
    gone = [m for m in decided if m.block in blocks.orphaned]
    standing = [m for m in decided if m.block not in blocks.orphaned]
    for movement in gone:
        with logs.caused_by(movement.request_id):
            _log.warning("movement_reorganised", transaction_id=movement.id, chain=movement.chain)
    reopened = _each(gone, lambda m: settlement.reopen(m.id), until=until)
    lacking = [m for m in standing if m.lacks_fee]
    _each(lacking, lambda m: settlement.note_fee(m.id, outcomes[m.id]), until=until)
    # Where balances tell of deposits, these cannot be told from a movement whose cost is unknown: it is asked for
    # beyond `safe`. On chains without nonces, transactions tell of deposits, and nobody needs it.
    done = [
        m
        for m in standing
        if m.block is None or (m.block.number <= blocks.safe and not (m.lacks_fee and m.nonce is not None))
    ]
    settlement.finish([movement.id for movement in done])
    finished = {movement.id for movement in done}
    _look_again([m for m in standing if m.id not in finished], clock.now())
    return reopened


def _look_again(movements: Sequence[OpenMovement | Unreadable], now: datetime) -> None:
    """Set when to look next, further away each time, unless somebody else has set that meanwhile."""
    by_pause: dict[int, list[str]] = {}
    for movement in movements:
        expires = (
            isinstance(movement, OpenMovement) and movement.expires and movement.status is Status.PENDING
        )
        pauses = _CHECK_EXPIRING_AGAIN_SECONDS if expires else _CHECK_AGAIN_SECONDS
        pause = pauses[min(movement.checks, len(pauses) - 1)]
        by_pause.setdefault(pause, []).append(movement.id)
    if not by_pause:
        return
    with unit_of_work() as session:
        for pause, ids in by_pause.items():
            session.execute(
                update(Transaction)
                .where(Transaction.id.in_(ids), Transaction.next_check_at <= now)
                .values(next_check_at=now + timedelta(seconds=pause), checks=Transaction.checks + 1)
            )


def _send_again(chain: Chain, waiting: Sequence[OpenMovement], now: datetime) -> int:
    """Send the same bytes again where the last sending is a while ago: a node may have dropped or never seen them."""
    stale = [
        movement for movement in waiting if _may_not_have_left(movement, now) or _sent_long_ago(movement, now)
    ]
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
    for movement in stale:
        with logs.caused_by(movement.request_id):
            _log.info("movement_sent_again", transaction_id=movement.id, tx_hash=movement.latest.tx_hash)
    return len(stale)


def _may_not_have_left(movement: OpenMovement, now: datetime) -> bool:
    # `sent_at` is when it was signed; the process may have died before it sent. Sending twice is harmless.
    return movement.checks == 0 and movement.latest.sent_at + settlement.FIRST_CHECK_AFTER <= now


def _sent_long_ago(movement: OpenMovement, now: datetime) -> bool:
    pause = _SEND_EXPIRING_AGAIN_AFTER if movement.expires else _SEND_AGAIN_AFTER
    return movement.latest.sent_at + pause <= now


def _replace_stuck(chain: Chain, waiting: Sequence[OpenMovement], head: BlockRef, *, until: int) -> int:
    """Sign the lowest waiting slot of each sender again at a higher fee once it has waited long enough."""
    unseen = [m.latest.id for m in waiting if m.latest.seen_at_block is None]
    if unseen:
        with unit_of_work() as session:
            session.execute(
                update(SignedAttempt).where(SignedAttempt.id.in_(unseen)).values(seen_at_block=head.number)
            )
    patience = replacement.patience_blocks(chain.name)
    patient = [
        movement
        for movement in waiting
        if movement.nonce is not None
        and movement.latest.seen_at_block is not None
        and head.number - movement.latest.seen_at_block >= patience
    ]
    lowest = open_movements.lowest_nonces(chain.name, [movement.sender for movement in patient])
    stuck = [movement for movement in patient if movement.nonce == lowest.get(movement.sender)]
    return _each(stuck[:_REPLACEMENTS_PER_PASS], lambda m: replacement.replace(chain, m), until=until)


def _figures(done: Pass) -> dict[str, int]:
    return {name: getattr(done, name) for name in Pass.__dataclass_fields__}
