"""Confirmation of movements by workers: one pass over a chain's open movements in few RPC calls.

What is open is read from the database, independently of the process that started it. Passes may run concurrently or
die anywhere: every effect is a conditional update.
"""

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta

import structlog

from app.core import clock
from app.core.chains import ChainName
from app.db.tables import update_rows
from app.db.unit_of_work import unit_of_work
from app.observability import telemetry
from app.ports.chain import BlockRef, Chain, TransactionOutcome, TransactionStatus
from app.ports.errors import PortError
from app.state import app_state
from app.wallets.core import lifecycle
from app.wallets.core.lifecycle import AttemptPurpose, MovementStatus
from app.wallets.core.models import SignedAttempt, Transaction
from app.wallets.transactions import open_transactions, replacement, settlement
from app.wallets.transactions.open_transactions import OpenMovement

_log = structlog.get_logger(__name__)

# A pass over a full batch stays within twenty requests to the node; the rest waits for the next pass.
_REBROADCASTS_PER_PASS = 500
_REPLACEMENTS_PER_PASS = 20
# A pass ends well before the timeouts of the queue and the lease.
_PASS_SECONDS = 40
_WAITING = TransactionOutcome(TransactionStatus.WAITING)


@dataclass(frozen=True, slots=True)
class ConfirmationPass:
    checked: int = 0
    settled: int = 0
    reopened: int = 0
    rebroadcast: int = 0
    replaced: int = 0


def confirm(name: ChainName, *, seconds: int = _PASS_SECONDS) -> ConfirmationPass:
    """Check the movements that are due on a chain once: rebroadcast, reopen, settle, replace, for about `seconds`.

    Never raises for an unreachable chain or a single movement; what was not done stays due.
    """
    started, second = time.monotonic_ns(), 10**9
    state, now = app_state(), clock.now()
    chain, needed = state.ports.chains[name], state.settings.confirmations(name)
    due, unreadable = open_transactions.due(name, now)
    _schedule_recheck(unreadable, now)
    if not due:
        return ConfirmationPass()
    pending = [movement for movement in due if movement.status is MovementStatus.PENDING]
    decided = [movement for movement in due if movement.status is not MovementStatus.PENDING]
    blocks = sorted({m.block for m in decided if m.block}, key=lambda block: block.number)
    try:
        reported = chain.outcomes([*(m.query for m in pending), *(m.query for m in decided if m.lacks_fee)])
        is_head_needed = any(
            _may_be_stuck(m, now) for m in pending if reported.get(m.id, _WAITING).status is TransactionStatus.WAITING
        )
        head = chain.head() if is_head_needed else None
        orphaned, safe = chain.orphaned_blocks(blocks) if blocks else (frozenset[BlockRef](), 0)
    except PortError as error:
        _log.warning("chain_unreadable", chain=name, reason=error.reason)
        _schedule_recheck(due, now)
        return ConfirmationPass(checked=len(due))
    outcomes = {movement.id: reported.get(movement.id, _WAITING) for movement in due}
    ended = [m for m in pending if settlement.is_decided(outcomes[m.id], needed=needed)]
    undecided = [m for m in pending if not settlement.is_decided(outcomes[m.id], needed=needed)]
    waiting = [m for m in undecided if outcomes[m.id].status is TransactionStatus.WAITING]
    # Batched work goes first; what is done one by one shares the rest of the time.
    _schedule_recheck(undecided, now)
    rebroadcast = _rebroadcast_stale(chain, waiting, now)
    reopened = _recheck_decided(decided, outcomes, orphaned, safe_height=safe, deadline=started + seconds * second // 2)
    settled = _process_each(
        ended, lambda m: _settle_or_deliver(chain, m, outcomes[m.id]), deadline=started + seconds * second * 3 // 4
    )
    replaced = _replace_stuck(chain, waiting, head, deadline=started + seconds * second) if head is not None else 0
    done = ConfirmationPass(len(due), settled, reopened, rebroadcast, replaced)
    _log.info("confirmation_pass", chain=name, **asdict(done))
    return done


def _settle_or_deliver(chain: Chain, movement: OpenMovement, outcome: TransactionOutcome) -> bool:
    """Settle a movement, unless it is a delivery that is made again; return whether this call settled it."""
    if outcome.status is TransactionStatus.VOID and replacement.deliver_again(chain, movement):
        return False
    return settlement.settle(movement.query, outcome)


def settle_landed(name: ChainName, sender: str) -> None:
    """Settle the pending movements of a sender that have landed.

    For chains without nonces, on which it is unknown which pending movements a balance includes.

    Raises: Unreachable.
    """
    pending = open_transactions.pending_of(sender, name)
    if not pending:
        return
    state = app_state()
    reported = state.ports.chains[name].outcomes([movement.query for movement in pending])
    needed = state.settings.confirmations(name)
    for movement in pending:
        outcome = reported.get(movement.id, _WAITING)
        if settlement.is_landed(outcome, needed=needed):
            settlement.settle(movement.query, outcome)


def _process_each(movements: Iterable[OpenMovement], action: Callable[[OpenMovement], bool], *, deadline: int) -> int:
    """Apply an action to movements one by one until a monotonic deadline; return how often it succeeded.

    The first one is always processed. One that raises is checked again later.
    """
    succeeded = 0
    failed: list[OpenMovement] = []
    for movement in movements:
        with telemetry.caused_by(movement.request_id):
            try:
                succeeded += action(movement)
            except Exception:
                # A single poisonous row must not block the others of its chain.
                _log.exception("movement_processing_failed", transaction_id=movement.id, chain=movement.chain)
                failed.append(movement)
        if time.monotonic_ns() >= deadline:
            break
    _schedule_recheck(failed, clock.now())
    return succeeded


def _recheck_decided(
    decided: Sequence[OpenMovement],
    outcomes: Mapping[str, TransactionOutcome],
    orphaned: Collection[BlockRef],
    *,
    safe_height: int,
    deadline: int,
) -> int:
    """Reopen decided movements in orphaned blocks, and stop tracking those in final ones with a known fee."""
    reorganised = [m for m in decided if m.block in orphaned]
    canonical = [m for m in decided if m.block not in orphaned]
    for movement in reorganised:
        with telemetry.caused_by(movement.request_id):
            _log.warning("movement_reorganised", transaction_id=movement.id, chain=movement.chain)
    reopened = _process_each(reorganised, lambda m: settlement.reopen(m.id), deadline=deadline)
    missing_fee = [m for m in canonical if m.lacks_fee]
    _process_each(missing_fee, lambda m: settlement.record_fee(m.id, outcomes[m.id]), deadline=deadline)
    # Deposits that are derived from balances cannot be distinguished from a movement of unknown cost, so its fee is
    # polled even beyond `safe`. On chains without nonces, deposits are read from transactions, and it is not needed.
    final = [
        m
        for m in canonical
        if m.block is None or (m.block.number <= safe_height and not (m.lacks_fee and m.nonce is not None))
    ]
    if final:
        # Another worker may have found one in another block since.
        in_final_block = Transaction.block_hash.in_({m.block.hash for m in final if m.block is not None})
        with unit_of_work() as session:
            update_rows(
                session, Transaction, Transaction.id.in_([movement.id for movement in final]),
                Transaction.status != MovementStatus.PENDING.value,
                in_final_block | Transaction.block_hash.is_(None), next_check_at=None,
            )  # fmt: skip
    finished = {movement.id for movement in final}
    _schedule_recheck([m for m in canonical if m.id not in finished], clock.now())
    return reopened


def _schedule_recheck(movements: Sequence[OpenMovement | Transaction], now: datetime) -> None:
    """Schedule the next checks with increasing delays, unless another worker already has."""
    ids_by_delay: dict[timedelta, list[str]] = {}
    for movement in movements:
        chain, expires = ChainName(movement.chain), movement.expires_at_height is not None
        if movement.status == MovementStatus.PENDING:
            delay = lifecycle.pending_recheck_after(chain, movement.checks, expires=expires)
        else:
            delay = lifecycle.finality_recheck_after(chain, movement.checks + 1)
        ids_by_delay.setdefault(delay, []).append(movement.id)
    if not ids_by_delay:
        return
    with unit_of_work() as session:
        for delay, ids in ids_by_delay.items():
            are_due = Transaction.id.in_(ids), Transaction.next_check_at <= now
            update_rows(session, Transaction, *are_due, next_check_at=now + delay, checks=Transaction.checks + 1)


def _rebroadcast_stale(chain: Chain, waiting: Sequence[OpenMovement], now: datetime) -> int:
    """Rebroadcast bytes some time after the last broadcast: nodes may have dropped or never received them."""
    # What another party submits is not sent from here.
    ours = [each for each in waiting if each.latest.purpose != AttemptPurpose.AUTHORIZATION]
    stale = [each for each in ours if _is_broadcast_stale(each, now)]
    stale.sort(key=lambda movement: (movement.latest.sent_at, movement.nonce or 0))
    del stale[_REBROADCASTS_PER_PASS:]
    if not stale:
        return 0
    try:
        for publicly in (False, True):
            # A private endpoint that had the blocks after which a transaction is stuck may have lost it.
            raws = [
                each.latest.raw
                for each in stale
                if (now - each.attempts[0].created_at >= _usual_stuck_time(each)) is publicly
            ]
            if raws:
                chain.rebroadcast(raws, publicly=publicly)
    except PortError as error:
        _log.warning("rebroadcast_failed", chain=chain.name, reason=error.reason)
        return 0
    with unit_of_work() as session:
        update_rows(session, SignedAttempt, SignedAttempt.id.in_([each.latest.id for each in stale]), sent_at=now)
    for movement in stale:
        with telemetry.caused_by(movement.request_id):
            _log.info("movement_rebroadcast", transaction_id=movement.id, tx_hash=movement.latest.tx_hash)
    return len(stale)


def _is_broadcast_stale(movement: OpenMovement, now: datetime) -> bool:
    latest = movement.latest
    expires = movement.expires_at_height is not None
    pause = lifecycle.rebroadcast_after(latest.sent_at - latest.created_at, expires=expires)
    if movement.checks == 0:
        # `sent_at` is when it was signed; the process may have died before the broadcast. Sending twice is harmless.
        pause = min(pause, lifecycle.first_check_after(movement.chain))
    return bool(latest.sent_at + pause <= now)


def _usual_stuck_time(movement: OpenMovement) -> timedelta:
    blocks = replacement.stuck_after_blocks(movement.chain)
    return blocks * lifecycle.block_time(movement.chain)


def _may_be_stuck(movement: OpenMovement, now: datetime) -> bool:
    """Return whether enough time has passed for the blocks after which a nonce is used again, or it is not counted yet.

    Blocks may come faster than usual, so half of their time is enough to read the head.
    """
    if movement.nonce is None:
        return False
    latest = movement.latest
    return latest.seen_at_block is None or now - latest.created_at >= _usual_stuck_time(movement) / 2


def _replace_stuck(chain: Chain, waiting: Sequence[OpenMovement], head: BlockRef, *, deadline: int) -> int:
    """Replace the lowest waiting nonce of each sender once it has waited long enough."""
    unseen = [m.latest.id for m in waiting if m.latest.seen_at_block is None]
    if unseen:
        with unit_of_work() as session:
            update_rows(session, SignedAttempt, SignedAttempt.id.in_(unseen), seen_at_block=head.number)
    stuck_after = replacement.stuck_after_blocks(chain.name)
    overdue = [
        movement
        for movement in waiting
        if movement.nonce is not None
        and movement.latest.seen_at_block is not None
        and head.number - movement.latest.seen_at_block >= stuck_after
    ]
    lowest = open_transactions.lowest_nonces(chain.name, [movement.sender for movement in overdue])
    stuck = [movement for movement in overdue if movement.nonce == lowest.get(movement.sender)]
    return _process_each(
        stuck[:_REPLACEMENTS_PER_PASS], lambda m: replacement.replace_stuck(chain, m), deadline=deadline
    )
