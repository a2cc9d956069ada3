"""All that a request caused, movements that do not end, and the state of the audit log."""

from datetime import timedelta
from typing import Any

from app.approvals import service as approvals
from app.audit_log import trail, verification
from app.audit_log.witness import AuditHeadView
from app.core.pagination import Page, PageRequest
from app.db.unit_of_work import read_only_unit, snapshot
from app.errors import NotFound
from app.payments import claimed_payments
from app.shopping import service as shopping
from app.shopping.routes import shown
from app.usage import service as usage
from app.wallets.core import wallets
from app.wallets.views import history
from app.wallets.views.history import TransactionView

_MOST = PageRequest(200, 0)
# A payment or refund that a bridge's service reports, and the chain does not show in full: the options of the command.
_LOST = {"payment_not_seen": "", "refund_not_seen": "", "refund_short": " --accept-partial-refund"}


def all_of_request(request_id: str) -> dict[str, Any]:
    """Return what a request was charged, paid and recorded, by kind. Raises: NotFound if nothing of all."""
    with read_only_unit() as session:
        found: dict[str, Any] = {
            "calls": usage.lines_of_call(session, request_id),
            "payments": claimed_payments.list_of_request(session, request_id),
            "entries": trail.list_entries(session, _MOST, request_id=request_id)[0].items,
        }
    found["transactions"] = history.page_of_wallets(None, _MOST, {"request_id": request_id}).items
    found["approvals"] = approvals.list_of(_MOST, request_id=request_id).items
    found["purchases"] = [shown(each) for each in shopping.list_of(None, _MOST, request_id=request_id).items]
    if not any(found.values()):
        raise NotFound("Nothing is recorded that a request with this id caused.")
    return {"request_id": request_id, **found}


def list_stuck(page: PageRequest) -> Page[dict[str, Any]]:
    """Return the movements that have been pending for more than an hour, oldest first, with their commands."""
    found = history.stuck(page, timedelta(hours=1))
    with read_only_unit() as session:
        items = [
            {"movement": each, "agent_id": next(iter(wallets.agents_with(session, each.wallet_id)), None),
             "command": _command(each)}
            for each in found.items
        ]  # fmt: skip
    return Page(items, found.total, found.request)


def verify_audit_log(*, newest: int | None = 10_000, expected: AuditHeadView | None = None) -> dict[str, Any]:
    """Return the problems of the audit log, or of its newest entries, and of its witness; and its head."""
    with snapshot() as session:
        problems = verification.find_problems(session, newest=newest, expected=expected)
        problems += verification.find_witness_problems(session)
        return {"intact": not problems, "problems": problems, "head": trail.get_head(session)}


def _command(movement: TransactionView) -> str:
    """Return the command that ends a movement, or else shows why it does not end."""
    option = _LOST.get((movement.error or "").partition(":")[0])
    lost = f"flask --app wsgi bridges write-off {movement.id}{option}"
    return "python -m workers.schedule --once" if option is None else lost
