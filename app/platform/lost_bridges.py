"""Bridges that left and were never paid out: closed by an operator once nothing can come of them any more."""

from __future__ import annotations

from app.core import identifiers
from app.core.unit_of_work import unit_of_work
from app.errors import NotFound
from app.platform import trail
from app.platform.actors import Actor
from app.platform.trail import Act, Action, SubjectKind
from app.wallets import bridge_losses


def write_off(actor: Actor, transaction_id: str, *, takes_part: bool) -> None:
    """Close a bridge that certainly pays nobody any more; it has failed then, and its amount is gone.

    With `takes_part` one, too, of which a part came back: the rest is gone.

    Raises: NotFound, TransactionInProgress.
    """
    bridge_id = identifiers.parse_id(transaction_id)
    if bridge_id is None:
        raise NotFound("There is no such bridge.")
    came_back = bridge_losses.assert_lost(bridge_id, takes_part=takes_part)
    with unit_of_work():
        bridge_losses.write_off(bridge_id, came_back=came_back)
        after = None if came_back is None else {"came_back_units": str(came_back.units)}
        trail.record(actor, Act(Action.BRIDGE_WRITTEN_OFF, SubjectKind.TRANSACTION, bridge_id, after=after))
