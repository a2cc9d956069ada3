"""Closing a bridge that did not arrive, by an operator's word: what is certain is looked for first."""

from __future__ import annotations

from sqlalchemy import select

from app.errors import NotFound, TransactionInProgress
from app.extensions import db
from app.ports import provider
from app.ports.bridges import Arrival, Phase
from app.ports.errors import PortError
from app.spending import service as spending
from app.wallets import bridge_fees, bridge_states, bridge_steps, lifecycle
from app.wallets.bridge_states import Stage, State
from app.wallets.lifecycle import Reason, Status
from app.wallets.models import Bridge


def assert_lost(bridge_id: str, *, takes_part: bool) -> Arrival | None:
    """See that a bridge certainly pays nobody any more; return None then. Asks the network.

    One that `takes_part` is content with a final payment that brought back too little to be a refund, and returns it.

    Raises: NotFound; TransactionInProgress while it may arrive or come back, or nobody can tell.
    """
    state = bridge_states.read(bridge_id)
    if state is None:
        raise NotFound("There is no such bridge.")
    try:
        progress = bridge_steps.adapter_of(state).follow(state.crossing)
        came_back = progress.arrival if progress.phase is Phase.REFUNDED else None
        is_part = came_back is not None and _is_final_part(state, came_back)
    except PortError:
        raise TransactionInProgress("Nobody can tell at the moment where this bridge is.") from None
    if state.stage is Stage.CROSSING and progress.is_lost:
        return None
    if state.stage is Stage.CROSSING and is_part and takes_part:
        return came_back
    raise TransactionInProgress(
        "A part of this bridge came back, by its service's word: to let the rest go, close it with --short."
        if is_part
        else "This bridge may still arrive or come back: who was to pay names no payment that is final and certainly"
        " brought nothing. Where it is `…_unreadable`, name a node that keeps old states."
    )


def write_off(bridge_id: str, *, came_back: Arrival | None) -> None:
    """Close a bridge that `assert_lost` has seen, in the current unit; what it counted stays counted.

    Raises: NotFound, TransactionInProgress when it came to another end meanwhile.
    """
    wallet_id = db.session.scalar(select(Bridge.wallet_id).where(Bridge.id == bridge_id))
    if wallet_id is None:
        raise NotFound("There is no such bridge.")
    spending.lock_account(wallet_id)
    bridge = bridge_states.locked(bridge_id)
    if bridge is None or bridge.stage != Stage.CROSSING:
        raise TransactionInProgress("This bridge came to another end meanwhile.")
    if came_back is not None:
        if bridge_steps.stands_for_another(bridge, came_back):
            raise TransactionInProgress("What came back stands for another bridge of the wallet.")
        bridge_states.note_refund(bridge, came_back)
    lifecycle.move(bridge_id, source=Status.PENDING, target=Status.FAILED, reason=Reason.WRITTEN_OFF)
    spending.spend(bridge_id)
    bridge.stage, bridge.next_step_at = Stage.FAILED.value, None


def _is_final_part(state: State, came_back: Arrival) -> bool:
    """Tell whether less came back than a worker takes for a refund, beyond reorganisation. Raises: Unreachable."""
    ask, block = state.crossing.ask, came_back.block
    if block is None or bridge_fees.cover(came_back.units, ask.amount) is not False:
        return False
    orphaned, safe = provider.current().chains[ask.source].orphaned([block])
    return block not in orphaned and block.number <= safe
