"""The pages on which an owner decides about payments."""

from enum import StrEnum
from typing import Any

from flask import Response, request, url_for

from app.approvals import service as approvals
from app.approvals.models import Approval, ApprovalStatus
from app.approvals.service import OwnerMethod
from app.audit_log import trail
from app.audit_log.trail import AuditAction, AuditEvent
from app.core import clock
from app.core.pagination import PageRequest
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.errors import NotFound
from app.identity.owner_keys import OwnerKeyView
from app.owner import address_book
from app.owner.pages import overview
from app.owner.pages.limits import dollars_of
from app.owner.passkeys import challenges
from app.owner.passkeys import service as passkeys
from app.owner.session import sessions
from app.owner.session.auth import (
    agent_of,
    owned_wallet,
    page_not_found,
    printable,
    render_page,
    see_other,
    session_pages,
)
from app.receipts import routes as receipts
from app.spending import accounts as spending_accounts
from app.spending import approval_rules
from app.spending import controls as spending_controls
from app.spending.policy import SpendingRequest
from app.wallets.core import wallets
from app.wallets.views import history

_LIST = "/agents/<string:agent_id>/approvals"
_ONE = f"{_LIST}/<string:approval_id>"


class Decision(StrEnum):
    """What an owner decides about a payment."""

    ONCE = "once"
    WEEKLY = "weekly"
    REJECT = "reject"


@session_pages.get(_LIST)
def show_approvals(key: OwnerKeyView) -> Response:
    """List the agent's payments that wait or waited, and the payees that were approved."""
    found = approvals.list_of(PageRequest(50, 0), agent_id=key.agent_id)
    with read_only_unit() as session:
        names = {each.id: each.name for each in wallets.all_of(session, key.agent_id)}
        approved = spending_accounts.list_payees(session, list(names))
    return render_page(
        "approvals.html", agent=agent_of(key), **overview.waiting_approvals(key.agent_id),
        prompt=passkeys.prompt_for(key),
        decided=[each for each in found.items if each.status != ApprovalStatus.AWAITING], payees=approved,
        wallet_names=names, withdrawn=request.args.get("done") == "withdrawn",
    )  # fmt: skip


@session_pages.post(f"{_LIST}/payees")
def withdraw_payee(key: OwnerKeyView) -> Response:
    """Withdraw the approval of a payee, without asking for the owner key: the agent has to ask again."""
    wallet = owned_wallet(key, request.form.get("wallet_id", ""))
    payee, actor = request.form.get("payee", "")[:253], sessions.acting_owner(key)
    with unit_of_work() as session:
        spending_accounts.lock_account(session, wallet.id)
        if spending_accounts.withdraw_payee(session, wallet.id, payee):
            before = {"payee": payee, "wallet_id": wallet.id}
            trail.record(session, actor, AuditEvent(AuditAction.PAYEE_WITHDRAWN, key.agent_id, before=before))
    return see_other(url_for("owner.show_approvals", agent_id=key.agent_id, done="withdrawn"))


@session_pages.post(_ONE)
def decide(key: OwnerKeyView, approval_id: str) -> Response:
    """Store the decision, then show what the payment is now."""
    approval = _owned(key, approval_id)
    typed = request.form.get("decision", "")
    decision = Decision(typed) if typed in set(Decision) else None
    if decision is None or request.form.get("request_hash") != approval.request_hash:
        return _render(key, approval_id, error="Choose what you want to do. Nothing was decided.", status=400)
    week_nanos, method, has_effect = 0, OwnerMethod.SESSION, None
    if _waits(approval) and decision is not Decision.REJECT:
        if decision is Decision.WEEKLY:
            week_nanos = dollars_of(request.form.get("week_usd", ""))
            if not week_nanos or not (approval.recipient or approval.domain):
                error = "Enter the amount in dollars that may be paid per week. Nothing was decided."
                return _render(key, approval_id, error=error, status=400)
        if request.form.get("passkey"):
            method = OwnerMethod.PASSKEY
        else:
            if (refusal := passkeys.find_refusal(key)) is not None:
                return _render(key, approval_id, key_error=refusal, status=403)
            method = OwnerMethod.OWNER_KEY
    if _waits(approval):
        has_effect = _record(key, approval, decision, method, week_nanos)
        # A signature that was used a moment ago has decided: then this one is late.
        if has_effect is None and _waits(_owned(key, approval_id)):
            error = "This passkey was not accepted. Nothing was decided."
            return _render(key, approval_id, key_error=error, status=403)
    late = None if has_effect else "1"
    return see_other(url_for("owner.show_approval", agent_id=key.agent_id, approval_id=approval_id, late=late))


def _record(
    key: OwnerKeyView, approval: Approval, decision: Decision, method: OwnerMethod, week_nanos: int
) -> bool | None:
    """Store a decision with its evidence and its entry in the audit log, all or nothing; return whether it had effect.

    None if a passkey was not accepted. A decision that comes after the expiry, or after another one, has no effect and
    leaves no entry.

    Raises: Unauthorized if the owner key was revoked.
    """
    actor, is_approved = sessions.acting_owner(key), decision is not Decision.REJECT
    action = AuditAction.APPROVAL_APPROVED if is_approved else AuditAction.APPROVAL_REJECTED
    answer = None if is_approved else printable(request.form.get("answer", ""))[:300] or None
    evidence: dict[str, str] = {}
    with unit_of_work() as session:
        if method is OwnerMethod.PASSKEY:
            # First: a passkey is locked before the wallet's account.
            week_usd = request.form.get("week_usd", "") if decision is Decision.WEEKLY else ""
            challenge = challenges.challenge_of_approval(approval.request_hash, decision.value, week_usd)
            signed = request.form.get("passkey", "")
            found = passkeys.verify_assertion(session, passkeys.AgentOwner, key.id, challenge, signed)
            if found is None:
                return None
            evidence = {"week_usd": week_usd, **found[1]}
        has_effect = approvals.decide(
            session, approval, is_approved=is_approved, method=method, week_nanos=week_nanos, answer=answer
        )
        if has_effect:
            after = {
                "request_hash": approval.request_hash, "decision": decision.value, "method": method.value,
                "wallet_id": approval.wallet_id, "week_nanos": week_nanos, **evidence,
            }  # fmt: skip
            trail.record(session, actor, AuditEvent(action, approval.id, after=after))
    return has_effect


def _waits(approval: Approval) -> bool:
    return approval.status == ApprovalStatus.AWAITING


def _owned(key: OwnerKeyView, approval_id: str) -> Approval:
    found = approvals.find(approval_id)
    if found is None or found.agent_id != key.agent_id:
        raise page_not_found()
    return found


@session_pages.get(_ONE, endpoint="show_approval")
def _render(key: OwnerKeyView, approval_id: str, *, status: int = 200, **errors: Any) -> Response:
    """Show one payment: why its owner is asked, the forms that decide, its facts, and the agent's own words last."""
    approvals.expire_if_due(_owned(key, approval_id))
    approval = _owned(key, approval_id)
    return render_page(
        "approval.html", status=status, agent=agent_of(key), approval=approval, **_evidence(approval), **errors,
        receipt=receipts.sign("approval", approval),
        prompt=passkeys.prompt_for(key) if _waits(approval) else None, is_late=request.args.get("late") == "1",
    )  # fmt: skip


def _evidence(approval: Approval) -> dict[str, Any]:
    """Return what an owner decides on besides the request: all reasons, the limits, and the recipient's past."""
    reasons = [approval.reason]
    with read_only_unit() as session:
        paid = history.paid_to(session, approval.wallet_id, approval.recipient or "")
        try:
            spending = spending_controls.status_of(session, approval.wallet_id)
        except NotFound:
            return {"spending": None, "reasons": reasons, "paid": paid, "similar": ()}
        if _waits(approval):
            asked = SpendingRequest(approval.value_nanos, approval.recipient, domain=approval.domain)
            payees = approval_rules.payees_of(asked)
            known = spending_accounts.known_payees(session, approval.wallet_id, payees, clock.now().date())
            now = approval_rules.approval_reasons(spending.controls, asked, known)
            reasons += [each.value for each in now if each.value != approval.reason]
    asked_to_pay = [approval.recipient] if approval.recipient and _waits(approval) else []
    similar = address_book.look_alikes(approval.agent_id, asked_to_pay)
    return {"spending": spending, "reasons": reasons, "paid": paid, "similar": similar.get(approval.recipient or "")}
