"""Bridge steps for workers, one at a time; safe to interrupt anywhere.

A bridge in `crossing` is pending, with the last obstacle as its `error`.
"""

import time
from collections import Counter
from dataclasses import replace
from datetime import datetime, timedelta

import structlog
from sqlalchemy import ColumnElement, exists, or_, select
from sqlalchemy.orm import Session

from app.core import clock
from app.core.chains import ChainName
from app.core.identifiers import new_id, require
from app.core.money import TokenAmount
from app.core.movement_kinds import MovementKind
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.errors import KeyServiceUnavailable
from app.observability import telemetry
from app.ports.bridges import BridgeArrival, BridgePhase, BridgeProgress, BridgeProof
from app.ports.bridges import BridgeProvider as BridgePort
from app.ports.chain import BlockRef
from app.ports.errors import PortError, Rejected, Unreachable
from app.spending import accounts as spending_accounts
from app.state import Ports, app_state
from app.wallets.bridges import state as bridge_states
from app.wallets.bridges.state import BridgeStage, BridgeState
from app.wallets.core import custody, intents, lifecycle, network_fees
from app.wallets.core.intents import Intent
from app.wallets.core.lifecycle import MovementStatus, StatusReason
from app.wallets.core.models import Bridge, Transaction
from app.wallets.transactions import settlement

_log = structlog.get_logger(__name__)

_BATCH = 200
_PASS_SECONDS = 40
_MAX_UNANSWERED_PER_ROUTE = 2
_RECHECK_SECONDS = (1, 2, 2, 2, 4, 8, 8, 15, 15, 30)
_FINALITY_RECHECK_SECONDS = 60


def has_due(now: datetime) -> ColumnElement[bool]:
    return exists().where(Bridge.next_step_at <= now)


def advance_due(*, seconds: int = _PASS_SECONDS) -> int:
    """Advance each bridge that is due, for about `seconds`; return how many were checked."""
    deadline = time.monotonic_ns() + seconds * 10**9
    with read_only_unit() as session:
        due = session.execute(
            select(Bridge.id, Bridge.adapter, Bridge.destination_chain, Transaction.request_id)
            .join(Transaction, Transaction.id == Bridge.id)
            .where(Bridge.next_step_at <= clock.now())
            .order_by(Bridge.next_step_at)
            .limit(_BATCH)
        ).all()
    checked = 0
    unanswered: Counter[tuple[str, str]] = Counter()
    for bridge_id, adapter, destination, request_id in due:
        checked += 1
        route = (adapter, destination)
        if unanswered[route] >= _MAX_UNANSWERED_PER_ROUTE:
            # An adapter that does not respond is skipped, so that it does not delay the bridges of others.
            _schedule_recheck(bridge_id)
            continue
        with telemetry.caused_by(request_id):
            try:
                unanswered[route] += not advance(bridge_id)
            except Exception:
                # A single poisonous row must not block the others.
                _log.exception("bridge_step_failed", transaction_id=bridge_id)
                _record_obstacle(bridge_id, "internal_error")
        if time.monotonic_ns() >= deadline:
            break
    return checked


def advance(bridge_id: str) -> bool:
    """Advance a bridge by one step; return False if a chain or service did not respond. Obstacles do not raise."""
    apply_source_status(bridge_id)
    state = bridge_states.read(bridge_id)
    if state is None:
        return True
    ports = app_state().ports
    try:
        if state.stage is BridgeStage.CROSSING:
            _advance_crossing(ports, state)
        elif state.end_block is not None:
            _recheck_end(ports, state, state.end_block)
        else:
            _schedule_recheck(bridge_id, final=None if state.stage is BridgeStage.SOURCE else state)
    except (PortError, KeyServiceUnavailable) as error:
        details, obstacle = error.details, error.reason
        if "missing" in details:
            obstacle = f"{obstacle}: {details['missing']} {details.get('currency', '')} missing"
        elif "revert" in details:
            obstacle = f"{obstacle}: {details['revert']}"
        _record_obstacle(bridge_id, obstacle)
        return not isinstance(error, Unreachable | KeyServiceUnavailable)
    return True


def apply_source_status(bridge_id: str) -> BridgeStage | None:
    """Apply the status of the source transaction to a bridge, in one unit; return its stage, None if it was deleted."""
    with unit_of_work() as session:
        wallet_id = session.scalar(select(Bridge.wallet_id).where(Bridge.id == bridge_id))
        if wallet_id is None:
            return None
        # Lock order: the wallet's spending account, its bridge, its transactions.
        spending_accounts.lock_account(session, wallet_id)
        bridge = bridge_states.lock(session, bridge_id)
        if bridge is None:
            return None
        source = bridge_states.source_of(bridge_states.legs_of(session, bridge_id))
        parent = session.get(Transaction, bridge_id)
        if source is None or parent is None:
            return None
        stage, status = BridgeStage(bridge.stage), MovementStatus(source.status)
        if stage is BridgeStage.ARRIVED:
            return stage
        if source.tx_hash != parent.tx_hash:
            parent.tx_hash = source.tx_hash
            session.flush()
        target = {
            MovementStatus.PENDING: BridgeStage.SOURCE,
            MovementStatus.CONFIRMED: BridgeStage.CROSSING,
            MovementStatus.FAILED: BridgeStage.FAILED,
        }[status]
        is_closed = stage is BridgeStage.FAILED and parent.error in (StatusReason.REFUNDED, StatusReason.WRITTEN_OFF)
        # A refunded or written-off bridge stays so unless its source transaction is reversed.
        if target is stage or (is_closed and target is BridgeStage.CROSSING):
            return stage
        reason: str | None = None
        if target is BridgeStage.FAILED:
            reason = source.error or StatusReason.REVERTED
        elif stage is not BridgeStage.SOURCE:
            reason = StatusReason.REORGANISED
        bridge_states.move(session, bridge, target, reason=reason, next_step_at=clock.now())
        return target


def _advance_crossing(ports: Ports, state: BridgeState) -> None:
    """Read the progress of a bridge and deliver it if that is possible. Raises: PortError."""
    adapter = adapter_of(ports, state)
    progress = adapter.progress(state.crossing)
    if progress.phase is BridgePhase.ARRIVED and progress.arrival is not None:
        _record_arrival(state, progress.arrival, progress.proof)
    elif progress.phase is BridgePhase.REFUNDED:
        _record_refund(state, progress.arrival)
    elif progress.phase is BridgePhase.DELIVERABLE and not state.is_delivering:
        _store_progress(state, progress)
        _deliver(ports, state, adapter, progress)
    else:
        _store_progress(state, progress)
        _schedule_recheck(state.id)


def _deliver(ports: Ports, state: BridgeState, adapter: BridgePort, progress: BridgeProgress) -> None:
    """Sign and broadcast the next transaction of the destination chain. Raises: PortError."""
    crossing = state.crossing
    if progress.proof is not None:
        crossing = replace(crossing, proof=progress.proof)
    step_ = adapter.prepare_delivery(crossing)
    network_fees.assert_acceptable(step_.chain, step_.draft.fee_units)
    signer = custody.signer_of(state.wallet_id)
    request, amount = crossing.request, step_.draft.intent.amount
    leg = Intent(new_id(), state.wallet_id, step_.chain, MovementKind.LEG, request.recipient, amount)
    with intents.recording(leg) as session:
        bridge = lock(session, state)
        # Another worker may have recorded a delivery.
        if bridge is None or bridge_states.is_delivering(bridge_states.legs_of(session, state.id)):
            return
        leg_id, signed = bridge_states.record_leg(session, state.id, step_, adapter, signer=signer, leg=leg)
        bridge.next_step_at = clock.now() + timedelta(seconds=_RECHECK_SECONDS[1])
    _log.info("bridge_delivery", transaction_id=state.id, leg=step_.leg, tx_hash=signed.tx_hash)
    settlement.broadcast(ports.chains[step_.chain], leg_id, signed)


def _record_arrival(state: BridgeState, arrival: BridgeArrival, proof: BridgeProof | None) -> None:
    destination = state.crossing.request.destination
    with unit_of_work() as session:
        bridge = lock(session, state)
        if bridge is None:
            return
        if is_claimed_by_another_bridge(session, bridge, arrival):
            _defer(session, bridge, "payment_not_seen" if arrival.is_single_payment else "mint_not_seen")
            # The proof belongs to another bridge: discard it and ask again.
            bridge_states.store_proof(bridge, {})
            return
        if proof is not None:
            bridge_states.store_proof(bridge, proof)
        block = arrival.block
        bridge_states.move(
            session, bridge, BridgeStage.ARRIVED, reason=None,
            next_step_at=_first_finality_check(destination, arrival),
            received_units=arrival.units, arrival_hash=arrival.tx_hash, arrival_takes_slot=arrival.consumes_nonce,
            arrival_block=block and block.number, arrival_block_hash=block and block.hash,
        )  # fmt: skip


def is_claimed_by_another_bridge(session: Session, bridge: Bridge, arrival: BridgeArrival) -> bool:
    """Return whether a payment already proves another bridge of the wallet."""
    if not arrival.is_single_payment and arrival.payment_part is None:
        return False
    # One payment may be reported as the arrival of one bridge and as the refund of another.
    other_proofs = select(Bridge.proof).where(
        Bridge.wallet_id == bridge.wallet_id,
        or_(Bridge.arrival_hash == arrival.tx_hash, Bridge.refund_hash == arrival.tx_hash),
        Bridge.id != bridge.id,
    )
    # A transaction may contain several payments; those that prove another bridge belong to it.
    return any(
        arrival.is_single_payment or any(str(arrival.payment_part) in proof_value for proof_value in proof.values())
        for proof in session.scalars(other_proofs)
    )


def _record_refund(state: BridgeState, refund: BridgeArrival | None) -> None:
    amount = state.crossing.request.amount
    is_covered = refund is None or bridge_states.is_sufficient_refund(refund.units, amount)
    with unit_of_work() as session:
        bridge = lock(session, state)
        if bridge is None:
            return
        if refund is not None and is_claimed_by_another_bridge(session, bridge, refund):
            _defer(session, bridge, "refund_not_seen")
        elif is_covered is None:
            _defer(session, bridge, "price_unavailable")
        elif refund is not None and not is_covered:
            # Never accept a smaller payment as the refund just because the relayer reports it as such.
            refunded_text = f"{TokenAmount(refund.units, amount.token)} {amount.token.symbol}"
            _defer(session, bridge, f"refund_short: {refunded_text} came back")
        else:
            bridge_states.move(
                session, bridge, BridgeStage.FAILED, reason=StatusReason.REFUNDED,
                next_step_at=_first_finality_check(state.crossing.request.source, refund),
                **bridge_states.refund_columns(refund),
            )  # fmt: skip


def _recheck_end(ports: Ports, state: BridgeState, block: BlockRef) -> None:
    """Check that the block of an arrival or refund is not orphaned, until it is final. Raises: Unreachable."""
    has_arrived, request = state.stage is BridgeStage.ARRIVED, state.crossing.request
    chain = ports.chains[request.destination if has_arrived else request.source]
    orphaned, safe = chain.orphaned_blocks([block])
    if block not in orphaned:
        final = state if block.number <= safe else None
        _schedule_recheck(state.id, seconds=_FINALITY_RECHECK_SECONDS, final=final)
        return
    event = "bridge_arrival_reorganised" if has_arrived else "bridge_refund_reorganised"
    _log.warning(event, transaction_id=state.id)
    with unit_of_work() as session:
        bridge = lock(session, state)
        if bridge is not None:
            reason = StatusReason.REORGANISED
            bridge_states.move(session, bridge, BridgeStage.CROSSING, reason=reason, next_step_at=clock.now())


def lock(session: Session, state: BridgeState) -> Bridge | None:
    """Lock a bridge, after its account; return it if its stage and the block of its end are as they were read."""
    spending_accounts.lock_account(session, state.wallet_id)
    bridge = bridge_states.lock(session, state.id)
    return bridge if bridge is not None and _is_as_read(bridge, state) else None


def _is_as_read(bridge: Bridge, state: BridgeState) -> bool:
    return bridge.stage == state.stage and bridge_states.end_block_of(bridge) == state.end_block


def _defer(session: Session, bridge: Bridge, obstacle: str) -> None:
    lifecycle.set_error(session, bridge.id, obstacle)
    bridge.next_step_at = clock.now() + timedelta(seconds=_RECHECK_SECONDS[-1])


def _first_finality_check(chain: ChainName, end: BridgeArrival | None) -> datetime | None:
    return clock.now() + lifecycle.finality_recheck_after(chain, 0) if end and end.block else None


def _store_progress(state: BridgeState, progress: BridgeProgress) -> None:
    with unit_of_work() as session:
        bridge = bridge_states.lock(session, state.id)
        if bridge is None or not _is_as_read(bridge, state):
            return
        if progress.proof is not None:
            bridge_states.store_proof(bridge, progress.proof)
        lifecycle.set_error(session, state.id, progress.note)


def _record_obstacle(bridge_id: str, obstacle: str) -> None:
    _log.warning("bridge_blocked", transaction_id=bridge_id, reason=obstacle)
    with unit_of_work() as session:
        lifecycle.set_error(session, bridge_id, obstacle)
    _schedule_recheck(bridge_id)


def _schedule_recheck(bridge_id: str, *, seconds: int | None = None, final: BridgeState | None = None) -> None:
    """Schedule the next step with increasing delays; none if the bridge still has the state that was found `final`."""
    with unit_of_work() as session:
        bridge = bridge_states.lock(session, bridge_id)
        if bridge is None or bridge.next_step_at is None:  # it ended in the meantime
            return
        delay_seconds = seconds or _RECHECK_SECONDS[min(bridge.steps, len(_RECHECK_SECONDS) - 1)]
        has_ended = final is not None and _is_as_read(bridge, final)
        bridge.next_step_at = None if has_ended else clock.now() + timedelta(seconds=delay_seconds)
        bridge.steps += 1


def adapter_of(ports: Ports, state: BridgeState) -> BridgePort:
    """Return the adapter of a bridge. Raises: Rejected("way_not_configured")."""
    request = state.crossing.request
    route = (request.source, request.destination, request.amount.token)
    found = (adapter for adapter in ports.bridges.get(route, ()) if adapter.name == state.adapter)
    return require(next(found, None), Rejected("way_not_configured"))
