"""Bridges that left and were never paid out: closed by an operator once no payout is possible."""

from __future__ import annotations

from app.audit_log import trail
from app.audit_log.actors import Actor
from app.audit_log.trail import AuditAction, AuditEvent
from app.core import identifiers
from app.db.unit_of_work import unit_of_work
from app.errors import NotFound
from app.wallets.bridges import write_off as bridge_write_off


def write_off(actor: Actor, transaction_id: str, *, accept_partial_refund: bool) -> None:
    """Close a bridge that will never pay out; it fails, and its amount is lost.

    `accept_partial_refund` includes a bridge that was partly refunded: the rest is lost.

    Raises: NotFound, TransactionInProgress.
    """
    bridge_id = identifiers.require_id(transaction_id, NotFound("No bridge has this id."))
    refunded = bridge_write_off.assert_unrecoverable(bridge_id, accept_partial_refund=accept_partial_refund)
    with unit_of_work() as session:
        bridge_write_off.write_off(session, bridge_id, partial_refund=refunded)
        after = None if refunded is None else {"came_back_units": str(refunded.units)}
        trail.record(session, actor, AuditEvent(AuditAction.BRIDGE_WRITTEN_OFF, bridge_id, after=after))
