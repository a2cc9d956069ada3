"""Use cases for authenticated rows: seal those of an upgrade, and accept changed ones after an operator's check."""

from app import authenticated
from app.audit_log import trail
from app.audit_log.actors import Actor
from app.audit_log.trail import AuditAction, AuditEvent
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.spending import controls


def seal_permitted() -> int:
    """Seal what the previous version wrote, as long as an upgrade's permit is in force; return how many rows."""
    with read_only_unit() as session:
        if not authenticated.is_permitted(session):
            return 0
    return _accept()


def accept_changed(actor: Actor) -> int:
    """Accept all rows as they are in the database now; return how many had no valid MAC. Recorded first."""
    with read_only_unit() as session:
        changed = authenticated.find_changed(session)
    with unit_of_work() as session:
        after = {"rows": trail.summarized_list(changed)}
        trail.record(session, actor, AuditEvent(AuditAction.ROWS_ACCEPTED, after=after))
    return _accept()


def _accept() -> int:
    with unit_of_work() as session:
        controls.align_versions(session)
    return authenticated.restamp_all(accepts_changed=True)
