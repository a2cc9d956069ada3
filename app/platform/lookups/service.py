"""Movements that do not end, and the state of the audit log."""

from datetime import timedelta
from typing import Any

from app.audit_log import trail, verification
from app.audit_log.witness import AuditHeadView
from app.core.pagination import Page, PageRequest
from app.db.unit_of_work import read_only_unit, snapshot
from app.wallets.core import wallets
from app.wallets.views import history

# A payment or refund that a bridge's service reports, and the chain does not show in full: the options of the command.
_LOST = {"payment_not_seen": "", "refund_not_seen": "", "refund_short": " --accept-partial-refund"}


def list_stuck(page: PageRequest) -> Page[dict[str, Any]]:
    """Return the movements that have been pending for more than an hour, oldest first, with their commands."""
    found, items = history.stuck(page, timedelta(hours=1)), []
    with read_only_unit() as session:
        for each in found.items:
            command, option = "python -m workers.schedule --once", _LOST.get((each.error or "").partition(":")[0])
            if option is not None:
                command = f"flask --app wsgi bridges write-off {each.id}{option}"
            agent_id = next(iter(wallets.agents_with(session, each.wallet_id)), None)
            items.append({"movement": each, "agent_id": agent_id, "command": command})
    return Page(items, found.total, found.request)


def verify_audit_log(*, newest: int | None = 10_000, expected: AuditHeadView | None = None) -> dict[str, Any]:
    """Return the problems of the audit log, or of its newest entries, and of its witness; and its head."""
    with snapshot() as session:
        problems = verification.find_problems(session, newest=newest, expected=expected)
        problems += verification.find_witness_problems(session)
        return {"intact": not problems, "problems": problems, "head": trail.get_head(session)}
