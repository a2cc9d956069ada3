"""`/v1/wallets`: wallets, balances, funding, history, controls, and sessions, which are budgets for one task.

Wallets of other agents are not found (404).
"""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from flask import request

from app import errors
from app.audit_log import trail
from app.audit_log.actors import current_actor
from app.audit_log.trail import AuditAction, AuditEvent
from app.core import clock
from app.core.money import usd_string
from app.core.pagination import Page
from app.db.unit_of_work import after_commit, read_only_unit, unit_of_work
from app.idempotency.decorator import idempotent
from app.idempotency.service import Claim
from app.identity import guards, limits
from app.spending import controls as spending_controls
from app.spending import sessions
from app.spending.controls import ControlsChange
from app.spending.models import SpendingSession
from app.wallets.api import schemas
from app.wallets.core import wallets
from app.wallets.core.wallets import WalletView
from app.wallets.deposits import funding
from app.wallets.views import balances, history
from app.wallets.views.history import TransactionView
from app.web.blueprint import Blueprint, offers_csv
from app.web.schemas import PageQuery, assert_any_field

blp = Blueprint("wallets", guard=guards.ANY_KEY, url_prefix="/v1/wallets")
IDEMPOTENCY_NOTE = "Repeating a request with the same key returns the first response and executes nothing again."
LIMIT_ERRORS = (
    errors.DailyLimitExceeded, errors.WeeklyLimitExceeded, errors.MonthlyLimitExceeded, errors.PerTxLimitExceeded,
    errors.SessionLimitExceeded, errors.WalletFrozen, errors.PriceUnavailable, errors.ApprovalRequired,
    errors.KeyServiceUnavailable,
)  # fmt: skip


@blp.before_request
def resolve_wallet() -> None:
    """Resolve the wallet in the path before the body is parsed: 401 and 404 take precedence over 400."""
    arguments = request.view_args
    if request.method == "POST" and not arguments:
        guards.require_agent()
    if arguments and "wallet_id" in arguments:
        wallet_id = arguments.pop("wallet_id")
        owner_id = guards.current_principal().agent_of_wallet(wallet_id)
        arguments["wallet"] = wallets.get_owned(wallet_id, agent_id=owner_id)


@blp.get("")
@blp.arguments(PageQuery, location="query")
@blp.response(200, schemas.WalletPage)
def list_wallets(query: dict[str, Any]) -> Page[WalletView]:
    """List the agent's wallets, oldest first."""
    principal = guards.current_principal()
    return wallets.list_of(principal.agent_id, query["page"], only=principal.only_wallet_id)


@blp.post("")
@idempotent(owner=guards.require_agent, rebuild=wallets.get_with_controls, note=IDEMPOTENCY_NOTE)
@blp.arguments(schemas.NewWalletBody)
@blp.response(201, schemas.WalletShape)
@blp.raises(errors.LimitReached, errors.KeyServiceUnavailable)
def create_wallet(body: dict[str, Any], claim: Claim) -> WalletView:
    """Create another wallet; it has no controls unless the agent's are locked, in which case it inherits them."""
    return wallets.create_for_agent(guards.require_agent(), name=body["name"], claim=claim)


@blp.get("/<string:wallet_id>")
@blp.response(200, schemas.WalletShape)
def get_wallet(wallet: WalletView) -> WalletView:
    """Read one wallet."""
    return wallets.with_controls(wallet)


@blp.delete("/<string:wallet_id>")
@blp.arguments(schemas.DeletionQuery, location="query")
@blp.arguments(schemas.DeletionBody, required=False)
@blp.response(200, schemas.RemovedWallet)
@blp.raises(
    errors.TransactionInProgress,
    errors.ControlsLocked,
    errors.WalletFrozen,
    errors.WalletNotEmpty,
    errors.BalanceFetchError,
)
def delete_wallet(query: dict[str, Any], body: dict[str, Any], wallet: WalletView) -> dict[str, Any]:
    """Delete a wallet with its transactions and controls permanently. Transfer its tokens out first."""
    refusal = None if query["force"] or body["force"] else balances.find_deletion_refusal(wallet)
    wallets.delete_wallet(wallet.id, agent_id=wallet.agent_id, refusal=refusal)
    return {"id": wallet.id, "deleted": True}


@blp.get("/<string:wallet_id>/balances")
@blp.response(200, schemas.WalletBalancesShape)
@blp.raises(errors.BalanceFetchError)
def get_balances(wallet: WalletView) -> dict[str, Any]:
    """Read the live balances on all chains."""
    return {"wallet_id": wallet.id, "balances": balances.read_all(wallet)}


@blp.get("/<string:wallet_id>/tokens")
@blp.response(200, schemas.ForeignTokensShape)
def list_tokens(wallet: WalletView) -> dict[str, Any]:
    """List what the wallet holds of tokens that this service does not know."""
    return {"wallet_id": wallet.id, **balances.read_foreign(wallet)}


@blp.post("/<string:wallet_id>/fund")
@idempotent(owner=guards.idempotency_owner, rebuild=funding.initial_response, note=IDEMPOTENCY_NOTE)
@blp.arguments(schemas.FundBody)
@blp.response(200, schemas.FundingShape)
@blp.raises(errors.LimitReached, errors.BalanceFetchError)
def fund(body: dict[str, Any], wallet: WalletView, claim: Claim) -> Mapping[str, Any]:
    """Request a deposit; the request is confirmed once deposits made after it reach the amount."""
    return funding.create_request(wallet, **body, claim=claim)


@blp.get("/<string:wallet_id>/transactions")
@blp.arguments(schemas.HistoryQuery, location="query")
@blp.response(200, schemas.TransactionPage)
@offers_csv(blp, "items", schemas.TransactionShape)
def list_transactions(query: dict[str, Any], wallet: WalletView) -> Page[TransactionView]:
    """List transactions, newest first."""
    page = query.pop("page")
    return history.page_of(wallet.id, page, filters=query, total_count=wallet.transaction_count)


@blp.get("/<string:wallet_id>/transactions/<string:transaction_id>")
@blp.response(200, schemas.TransactionDetail)
def get_transaction(transaction_id: str, wallet: WalletView) -> TransactionView:
    """Read one transaction with its events."""
    return history.get(transaction_id, wallet_id=wallet.id)


@blp.get("/<string:wallet_id>/controls")
@blp.response(200, schemas.ControlsStanding)
def get_controls(wallet: WalletView) -> dict[str, Any]:
    """Read the controls and their usage today, this week and this month (UTC)."""
    found = spending_controls.status_from_row(wallet.spending_status)
    if found.controls is None:
        message = "No spending controls are set: this wallet spends without limits. Set them with PUT."
        return {"wallet_id": wallet.id, "controls": None, "message": message}
    return {
        "wallet_id": wallet.id, "controls": found.controls, "usage_today": found.today, "usage_week": found.week,
        "usage_month": found.month,
    }  # fmt: skip


@blp.put("/<string:wallet_id>/controls")
@blp.arguments(schemas.ControlsBody)
@blp.response(200, schemas.UpdatedControls)
@blp.raises(errors.ControlsLocked)
def set_controls(body: dict[str, Any], wallet: WalletView) -> dict[str, Any]:
    """Create or change the controls; omitted fields keep their values.

    At least one field is required; an empty object is refused. A wallet's controls can be loosened 10 times a minute
    and 100 times a day, and tightened always.
    """
    assert_any_field(body, schemas.ControlsBody)
    refusal = limits.find_loosening_refusal(wallet.id)
    with unit_of_work() as session:
        changes = ControlsChange(**body)
        controls, done = spending_controls.put_controls(session, wallet.id, changes)
        if done.loosens:
            if refusal is not None:
                raise refusal
            after_commit(lambda: limits.count_loosening(wallet.id))
            act = AuditEvent(AuditAction.CONTROLS_LOOSENED, wallet.agent_id, **done.as_json(changes))
            trail.record(session, current_actor(), act)
    return {"wallet_id": wallet.id, "controls": controls, "updated": True}


_MAX_DURATION = timedelta(days=366)


def _rebuild(session_id: str) -> SpendingSession:
    with read_only_unit() as session:
        return sessions.get(session, session_id)


@blp.post("/<string:wallet_id>/sessions")
@idempotent(owner=guards.require_agent, rebuild=_rebuild, note=IDEMPOTENCY_NOTE)
@blp.arguments(schemas.SessionBody)
@blp.response(201, schemas.SpendingSessionShape)
@blp.raises(errors.LimitReached)
def open_session(body: dict[str, Any], wallet: WalletView, claim: Claim) -> SpendingSession:
    """Open a session: a transfer, withdrawal or x402 payment that names it stays within its budget, too."""
    now = clock.now()
    if not now < body["expires_at"] <= now + _MAX_DURATION:
        raise errors.InvalidInput.field("expires_at", f"must be in the future, at most {_MAX_DURATION.days} days")
    with unit_of_work() as session:
        opened = sessions.open_session(session, wallet.id, **body)
        claim.bind(session, opened.id)
        after = {"session_id": opened.id, "wallet_id": wallet.id, "max_usd": usd_string(opened.max_nanos)}
        act = AuditEvent(AuditAction.SESSION_OPENED, wallet.agent_id, after=after)
        trail.record(session, current_actor(), act)
        return opened


@blp.get("/<string:wallet_id>/sessions")
@blp.arguments(PageQuery, location="query")
@blp.response(200, schemas.SessionPage)
def list_sessions(query: dict[str, Any], wallet: WalletView) -> Page[SpendingSession]:
    """List the sessions of a wallet, newest first."""
    with read_only_unit() as session:
        return sessions.list_of(session, wallet.id, query["page"])


@blp.get("/<string:wallet_id>/sessions/<string:session_id>")
@blp.response(200, schemas.SpendingSessionShape)
def get_session(session_id: str, wallet: WalletView) -> SpendingSession:
    """Read a session and what is left of its budget."""
    with read_only_unit() as session:
        return sessions.get(session, session_id, wallet_id=wallet.id)
