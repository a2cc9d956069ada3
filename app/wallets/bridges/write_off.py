"""Write-off of bridges that will never arrive, by the operator, after a check of both chains."""

from app.audit_log import trail
from app.audit_log.actors import Actor
from app.audit_log.trail import AuditAction, AuditEvent
from app.core import identifiers
from app.db.unit_of_work import unit_of_work
from app.errors import NotFound, TransactionInProgress
from app.ports.bridges import BridgeArrival, BridgePhase
from app.ports.errors import PortError
from app.state import Ports, app_state
from app.wallets.bridges import advance as bridge_steps
from app.wallets.bridges import state as bridge_states
from app.wallets.bridges.state import BridgeStage, BridgeState
from app.wallets.core.lifecycle import StatusReason


def write_off(actor: Actor, transaction_id: str, *, accept_partial_refund: bool) -> None:
    """Close a bridge that never pays out, or only a part: the rest is lost. Reads the network.

    With `accept_partial_refund`, a final payment that is too small to be a refund is accepted.

    Raises: NotFound; TransactionInProgress while it may arrive or be refunded, or if that is unknown.
    """
    missing = NotFound("No bridge has this id.")
    bridge_id = identifiers.require_id(transaction_id, missing)
    state = identifiers.require(bridge_states.read(bridge_id), missing)
    refund = _assert_unrecoverable(app_state().ports, state, accept_partial_refund=accept_partial_refund)
    with unit_of_work() as session:
        bridge = bridge_steps.lock(session, state)
        if bridge is None:
            raise TransactionInProgress("This bridge has ended in another way in the meantime.")
        if refund is not None and bridge_steps.is_claimed_by_another_bridge(session, bridge, refund):
            raise TransactionInProgress("The refund belongs to another bridge of the wallet.")
        bridge_states.move(
            session, bridge, BridgeStage.FAILED, reason=StatusReason.WRITTEN_OFF, next_step_at=None,
            **bridge_states.refund_columns(refund),
        )  # fmt: skip
        after = None if refund is None else {"came_back_units": str(refund.units)}
        trail.record(session, actor, AuditEvent(AuditAction.BRIDGE_WRITTEN_OFF, bridge_id, after=after))


def _assert_unrecoverable(ports: Ports, state: BridgeState, *, accept_partial_refund: bool) -> BridgeArrival | None:
    """Check that a bridge can never arrive or be refunded; return what is accepted as its partial refund."""
    try:
        progress = bridge_steps.adapter_of(ports, state).progress(state.crossing)
        refund = progress.arrival if progress.phase is BridgePhase.REFUNDED else None
        is_partial_refund = refund is not None and _is_final_partial_refund(ports, state, refund)
    except PortError:
        raise TransactionInProgress("The state of this bridge is unknown at the moment; try again later.") from None
    if state.stage is BridgeStage.CROSSING and progress.is_payout_missing:
        return None
    if state.stage is BridgeStage.CROSSING and is_partial_refund and accept_partial_refund:
        return refund
    raise TransactionInProgress(
        "A part of this bridge was refunded by its relayer. To write off the rest, use --accept-partial-refund."
        if is_partial_refund
        else "This bridge may still arrive or be refunded: its relayer reports no payment that is final and is"
        " known to have transferred nothing. If its error is `…_unreadable`, configure a node that keeps old states."
    )


def _is_final_partial_refund(ports: Ports, state: BridgeState, refund: BridgeArrival) -> bool:
    """Return whether a payment is final and too small to be a refund. Raises: Unreachable."""
    request, block = state.crossing.request, refund.block
    if block is None or bridge_states.is_sufficient_refund(refund.units, request.amount) is not False:
        return False
    orphaned, safe = ports.chains[request.source].orphaned_blocks([block])
    return block not in orphaned and block.number <= safe
