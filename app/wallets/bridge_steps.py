"""Carrying bridges to their true end, for workers: each look takes at most one step, and may die anywhere.

source → crossing → arrived, or failed while nothing has left; back again where a reorganisation undid what decided it.
What has left and not arrived stays pending, with the last obstacle as its `error`, for as long as it takes.
"""

from __future__ import annotations

import time
from collections import Counter
from datetime import timedelta
from typing import Any

import structlog
from sqlalchemy import or_, select, update

from app.core import clock, logs
from app.core.money import TokenAmount
from app.core.unit_of_work import reading, unit_of_work
from app.extensions import db
from app.ports import provider
from app.ports.bridges import Arrival, Crossing, Phase, Progress, Proof, Step
from app.ports.bridges import Bridge as BridgePort
from app.ports.errors import OutcomeUnknown, PortError, Rejected, Unreachable
from app.ports.vault import Signer
from app.spending import service as spending
from app.wallets import bridge_fees, bridge_legs, bridge_states, custody, lifecycle, network_fees, settlement
from app.wallets.bridge_legs import Sent
from app.wallets.bridge_states import Refund, Stage, State
from app.wallets.lifecycle import Reason, Status
from app.wallets.models import Bridge, Transaction

_log = structlog.get_logger(__name__)

_BATCH = 200
_PASS_SECONDS = 40
_PATIENCE = 2
_LOOK_AGAIN_SECONDS = (1, 2, 2, 2, 4, 8, 8, 15, 15, 30)
_SETTLED_LOOK_SECONDS = 15


def step_due(*, seconds: int = _PASS_SECONDS) -> int:
    """Take one step with each bridge that is due, for about so many seconds; return how many were looked at."""
    until = time.monotonic_ns() + seconds * 10**9
    with reading() as session:
        due = session.execute(
            select(Bridge.id, Bridge.adapter, Bridge.destination_chain, Transaction.request_id)
            .join(Transaction, Transaction.id == Bridge.id)
            .where(Bridge.next_step_at <= clock.now())
            .order_by(Bridge.next_step_at)
            .limit(_BATCH)
        ).all()
    looked = 0
    silent: Counter[tuple[str, str]] = Counter()
    for bridge_id, adapter, destination, request_id in due:
        looked += 1
        way = (adapter, destination)
        if silent[way] >= _PATIENCE:
            # Whoever does not answer for one is not asked for all the others: they would keep the rest waiting.
            _look_again(bridge_id)
            continue
        with logs.caused_by(request_id):
            try:
                silent[way] += not step(bridge_id)
            except Exception:
                # One poisonous row must not hold up all the others for ever.
                _log.exception("bridge_not_carried_on", transaction_id=bridge_id)
                _note(bridge_id, "internal_error")
        if time.monotonic_ns() >= until:
            break
    return looked


def step(bridge_id: str) -> bool:
    """Take one step with a bridge; return False where somebody did not answer.

    Never raises for an obstacle that may go away.
    """
    take_stock(bridge_id)
    state = bridge_states.read(bridge_id)
    if state is None:
        _look_again(bridge_id, ends=True)
        return True
    try:
        if state.stage is Stage.ARRIVED:
            _recheck(state)
        elif state.stage is Stage.CROSSING:
            _cross(state)
        elif state.stage is Stage.FAILED and state.refund is not None:
            _recheck_refund(state, state.refund)
        else:
            _look_again(bridge_id, ends=state.stage is Stage.FAILED)
    except PortError as error:
        _note(bridge_id, _obstacle(error))
        return not isinstance(error, Unreachable)
    return True


def take_stock(bridge_id: str) -> Stage | None:
    """Move a bridge by what became of its source transaction, in one unit; return its stage, None when it is gone."""
    with unit_of_work() as session:
        wallet_id = session.scalar(select(Bridge.wallet_id).where(Bridge.id == bridge_id))
        if wallet_id is None:
            return None
        # Lock order: the wallet's spending account, its bridge, its transactions.
        spending.lock_account(wallet_id)
        bridge = bridge_states.locked(bridge_id)
        if bridge is None:
            return None
        source = bridge_states.source_of(bridge_legs.of(bridge_id))
        parent = session.get(Transaction, bridge_id)
        if source is None or parent is None:
            return None
        stage, status = Stage(bridge.stage), Status(source.status)
        if stage is Stage.ARRIVED:
            return stage
        if source.tx_hash != parent.tx_hash:
            parent.tx_hash = source.tx_hash
            session.flush()
        target = {
            Status.PENDING: Stage.SOURCE, Status.CONFIRMED: Stage.CROSSING, Status.FAILED: Stage.FAILED,
        }[status]  # fmt: skip
        ended_itself = stage is Stage.FAILED and parent.error in (Reason.REFUNDED, Reason.WRITTEN_OFF)
        # What left and is at its end stays there; only a source that is undone undoes that, too.
        if target is stage or (ended_itself and target is Stage.CROSSING):
            return stage
        if target is Stage.FAILED:
            _end(bridge_id, Status.FAILED, reason=source.error or Reason.REVERTED)
        elif stage is Stage.FAILED:
            _reopen(bridge_id, Status.FAILED)
            bridge_states.forget_refund(bridge)
        bridge.stage = target.value
        bridge.next_step_at, bridge.steps = clock.now(), 0
        return target


def _cross(state: State) -> None:
    """Find out how far it is, and do what is ours. Raises: PortError."""
    adapter = adapter_of(state)
    progress = adapter.follow(state.crossing)
    if progress.phase is Phase.ARRIVED and progress.arrival is not None:
        _arrive(state, progress.arrival, progress.proof)
    elif progress.phase is Phase.REFUNDED:
        _refund(state, progress.arrival)
    elif progress.phase is Phase.OURS and not state.is_delivering:
        _keep(state.id, progress)
        _deliver(state, adapter, progress)
    else:
        _keep(state.id, progress)
        _look_again(state.id)


def _deliver(state: State, adapter: BridgePort, progress: Progress) -> None:
    """Sign and send the next transaction of the destination chain. Raises: PortError."""
    crossing = state.crossing
    if progress.proof is not None:
        crossing = Crossing(crossing.ask, crossing.terms, crossing.source_hash, progress.proof)
    step_ = adapter.deliver(crossing)
    if not network_fees.is_within_cap(step_.chain, step_.draft.fee_units):
        raise Rejected("network_fee_too_high")
    sent = _record(state, step_, adapter, custody.signer_of(state.wallet_id))
    if sent is None:
        return
    _log.info("bridge_delivery", transaction_id=state.id, leg=step_.leg, tx_hash=sent.signed.tx_hash)
    try:
        provider.current().chains[sent.chain].broadcast(sent.signed.raw)
    except Rejected as error:
        settlement.note_refusal(sent.transaction_id, sent.signed.tx_hash, error.reason)
    except (Unreachable, OutcomeUnknown) as error:
        _log.warning("broadcast_uncertain", transaction_id=sent.transaction_id, reason=error.reason)


def _record(state: State, step_: Step, adapter: BridgePort, signer: Signer) -> Sent | None:
    """Record a delivery unless somebody else did meanwhile."""
    with unit_of_work():
        spending.lock_account(state.wallet_id)
        bridge = bridge_states.locked(state.id)
        if (
            bridge is None
            or bridge.stage != Stage.CROSSING
            or bridge_states.is_delivering(bridge_legs.of(state.id))
        ):
            return None
        sent = bridge_legs.record(state.id, state.wallet_id, step_, adapter, signer)
        bridge.next_step_at = clock.now() + timedelta(seconds=_LOOK_AGAIN_SECONDS[1])
        return sent


def _arrive(state: State, arrival: Arrival, proof: Proof | None) -> None:
    with unit_of_work():
        spending.lock_account(state.wallet_id)
        bridge = bridge_states.locked(state.id)
        if bridge is None or bridge.stage != Stage.CROSSING:
            return
        if stands_for_another(bridge, arrival):
            _set_error(state.id, "payment_not_seen" if arrival.is_sole else "mint_not_seen")
            # Whoever has proven it with another's proof is asked anew.
            _store_proof(bridge, {})
            bridge.next_step_at = clock.now() + timedelta(seconds=_LOOK_AGAIN_SECONDS[-1])
            return
        if proof is not None:
            _store_proof(bridge, proof)
        if not _end(state.id, Status.CONFIRMED):
            return
        now, block = clock.now(), arrival.block
        bridge.stage = Stage.ARRIVED.value
        bridge.received_units, bridge.arrival_hash = arrival.units, arrival.tx_hash
        bridge.arrival_takes_slot = arrival.takes_slot
        bridge.arrival_block = None if block is None else block.number
        bridge.arrival_block_hash = None if block is None else block.hash
        bridge.next_step_at = None if block is None else now + settlement.FINALITY_CHECK_AFTER
        bridge.steps = 0


def stands_for_another(bridge: Bridge, arrival: Arrival) -> bool:
    """Tell whether a payment has been shown for another bridge of the wallet already. In the current unit."""
    if not arrival.is_sole and arrival.part is None:
        return False
    # One payment may be named as an arrival for one bridge and as a refund for another: a hash is of one chain.
    claimed = select(Bridge.proof).where(
        Bridge.wallet_id == bridge.wallet_id,
        or_(Bridge.arrival_hash == arrival.tx_hash, Bridge.refund_hash == arrival.tx_hash),
        Bridge.id != bridge.id,
    )
    # Of several in one transaction, the one that proved another bridge's arrival is that bridge's.
    return any(
        arrival.is_sole or any(str(arrival.part) in said for said in proof.values())
        for proof in db.session.scalars(claimed)
    )


def _recheck(state: State) -> None:
    """See whether the block of the arrival still stands, until it always will. Raises: Unreachable."""
    block = state.arrival_block
    if block is None:
        _look_again(state.id, ends=True)
        return
    orphaned, safe = provider.current().chains[state.crossing.ask.destination].orphaned([block])
    if block not in orphaned:
        _look_again(state.id, ends=block.number <= safe, seen=Stage.ARRIVED, seconds=_SETTLED_LOOK_SECONDS)
        return
    _log.warning("bridge_arrival_reorganised", transaction_id=state.id)
    with unit_of_work():
        spending.lock_account(state.wallet_id)
        bridge = bridge_states.locked(state.id)
        if bridge is None or bridge.stage != Stage.ARRIVED:
            return
        _reopen(state.id, Status.CONFIRMED)
        bridge.stage = Stage.CROSSING.value
        bridge.received_units = bridge.arrival_hash = bridge.arrival_block = None
        bridge.arrival_block_hash, bridge.arrival_takes_slot = None, False
        bridge.next_step_at, bridge.steps = clock.now(), 0


def _refund(state: State, came_back: Arrival | None) -> None:
    amount = state.crossing.ask.amount
    is_covered = came_back is None or bridge_fees.cover(came_back.units, amount)
    with unit_of_work():
        spending.lock_account(state.wallet_id)
        bridge = bridge_states.locked(state.id)
        if bridge is None or bridge.stage != Stage.CROSSING:
            return
        if came_back is not None and stands_for_another(bridge, came_back):
            _set_error(state.id, "refund_not_seen")
            bridge.next_step_at = clock.now() + timedelta(seconds=_LOOK_AGAIN_SECONDS[-1])
            return
        if is_covered is None:
            _set_error(state.id, "price_unavailable")
            bridge.next_step_at = clock.now() + timedelta(seconds=_LOOK_AGAIN_SECONDS[-1])
            return
        if came_back is not None and not is_covered:
            # Any later payment could be called a refund: what is missing is not given up by a service's word.
            what = f"{TokenAmount(came_back.units, amount.token)} {amount.token.symbol}"
            _set_error(state.id, f"refund_short: {what} came back")
            bridge.next_step_at = clock.now() + timedelta(seconds=_LOOK_AGAIN_SECONDS[-1])
            return
        _end(state.id, Status.FAILED, reason=Reason.REFUNDED)
        bridge.stage, bridge.next_step_at, bridge.steps = Stage.FAILED.value, None, 0
        if came_back is not None:
            bridge_states.note_refund(bridge, came_back)
            if came_back.block is not None:
                bridge.next_step_at = clock.now() + settlement.FINALITY_CHECK_AFTER


def _recheck_refund(state: State, refund: Refund) -> None:
    """See whether what came back is still where it was, until it always will be. Raises: PortError."""
    ask = state.crossing.ask
    chain = provider.current().chains[ask.source]
    orphaned, safe = chain.orphaned([refund.block])
    if refund.block not in orphaned:
        _look_again(
            state.id, ends=refund.block.number <= safe, seen=Stage.FAILED, seconds=_SETTLED_LOOK_SECONDS
        )
        return
    _log.warning("bridge_refund_reorganised", transaction_id=state.id)
    with unit_of_work():
        spending.lock_account(state.wallet_id)
        bridge = bridge_states.locked(state.id)
        if bridge is None or (bridge.refund_hash, bridge.refund_block_hash) != (
            refund.tx_hash,
            refund.block.hash,
        ):
            return
        _reopen(state.id, Status.FAILED)
        bridge.stage, bridge.next_step_at, bridge.steps = Stage.CROSSING.value, clock.now(), 0
        bridge_states.forget_refund(bridge)


def _end(bridge_id: str, target: Status, *, reason: str | None = None) -> bool:
    changes: dict[str, Any] = {"confirmed_at": clock.now()} if target is Status.CONFIRMED else {}
    moved = lifecycle.move(bridge_id, source=Status.PENDING, target=target, reason=reason, changes=changes)
    if moved and target is Status.CONFIRMED:
        spending.spend(bridge_id)
    elif moved:
        spending.release(bridge_id)
    return moved


def _reopen(bridge_id: str, source: Status) -> None:
    moved = lifecycle.move(
        bridge_id, source=source, target=Status.PENDING, reason=Reason.REORGANISED,
        changes={"confirmed_at": None},
    )  # fmt: skip
    if moved:
        spending.unspend(bridge_id)


def _keep(bridge_id: str, progress: Progress) -> None:
    """Store what a look has brought: the proof, and what is waited for."""
    with unit_of_work():
        bridge = bridge_states.locked(bridge_id)
        if bridge is None or bridge.stage != Stage.CROSSING:
            return
        if progress.proof is not None:
            _store_proof(bridge, progress.proof)
        _set_error(bridge_id, progress.note)


def _store_proof(bridge: Bridge, proof: Proof) -> None:
    bridge.proof = dict(proof)
    if not proof:
        bridge.attested_at = None
    elif bridge.attested_at is None:
        bridge.attested_at = clock.now()


def _note(bridge_id: str, obstacle: str) -> None:
    """Show why a bridge does not get on, and look again later."""
    _log.warning("bridge_held_up", transaction_id=bridge_id, reason=obstacle)
    with unit_of_work():
        _set_error(bridge_id, obstacle)
    _look_again(bridge_id)


def _set_error(bridge_id: str, error: str | None) -> None:
    db.session.execute(
        update(Transaction)
        .where(Transaction.id == bridge_id, Transaction.status == Status.PENDING.value)
        .values(error=None if error is None else error[:200])
    )


def _look_again(
    bridge_id: str, *, ends: bool = False, seen: Stage | None = None, seconds: int | None = None
) -> None:
    """Set when to look next, further away each time; or never again, until something happens to a leg.

    Of a stage that was `seen` only: another worker may have moved it on meanwhile.
    """
    with unit_of_work():
        bridge = bridge_states.locked(bridge_id)
        if bridge is None or bridge.next_step_at is None:  # it came to its end while somebody asked about it
            return
        if seen is not None and bridge.stage != seen:
            return
        pause = seconds or _LOOK_AGAIN_SECONDS[min(bridge.steps, len(_LOOK_AGAIN_SECONDS) - 1)]
        bridge.next_step_at = None if ends else clock.now() + timedelta(seconds=pause)
        bridge.steps += 1


def _obstacle(error: PortError) -> str:
    details = error.details
    if "missing" in details:
        return f"{error.reason}: {details['missing']} {details.get('currency', '')} missing"
    return f"{error.reason}: {details['revert']}" if "revert" in details else error.reason


def adapter_of(state: State) -> BridgePort:
    """Return the way that a bridge took. Raises: Rejected("way_not_configured")."""
    ask = state.crossing.ask
    route = (ask.source, ask.destination, ask.amount.token)
    for adapter in provider.current().bridges.get(route, ()):
        if adapter.name == state.adapter:
            return adapter
    raise Rejected("way_not_configured")
