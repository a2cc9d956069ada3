"""The routes of movements, `POST /v1/wallets/{id}/…`: one for each kind, all of the same form."""

import functools
from typing import Any

from flask import jsonify

from app.approvals import service
from app.approvals.schemas import AwaitingApproval
from app.idempotency.decorator import idempotent
from app.idempotency.service import Claim
from app.identity import guards, principal
from app.wallets.api.routes import IDEMPOTENCY_NOTE, LIMIT_ERRORS, blp
from app.wallets.core.lifecycle import MovementStatus
from app.wallets.core.wallets import WalletView
from app.wallets.kinds import WALLET_MOVEMENTS
from app.wallets.kinds.definition import WalletMovement
from app.wallets.transactions import failures
from app.wallets.views import history
from app.web import error_responses
from app.web.client_request import current_request
from app.web.request_bodies import parsed_body

PREFER_NOTE = "`respond-async` returns immediately; `wait=N` waits up to N (at most 25) seconds for confirmation."
_DRY_RUN_FIELDS = ("dry_run", "dryRun")


def is_not_dry_run() -> bool:
    body = parsed_body(current_request())
    return not any(body.get(name) is True for name in _DRY_RUN_FIELDS)


def rebuild_from_record(subject_id: str) -> Any:
    """Return a transaction in its current state, or the response of its failure, or of its approval."""
    return service.rebuilt(subject_id, _rebuild_transaction)


def _rebuild_transaction(transaction_id: str) -> Any:
    view = history.current_view(transaction_id)
    if view.status == MovementStatus.FAILED:
        return error_responses.error_response(failures.recorded_failure(view))
    return view


def _add_route(kind: WalletMovement[Any]) -> None:
    """Add the route of a kind. It is idempotent, with `Prefer`; the order is sent, or quoted if it is a dry run."""
    content = {"application/json": {"schema": {"oneOf": [kind.result, kind.quote_result]}}}
    responses = {"200": {"description": f"The {kind.noun}, or the quote of a dry run.", "content": content}}

    @blp.post(f"/<string:wallet_id>/{kind.parse.__name__}")
    @idempotent(
        owner=guards.idempotency_owner, rebuild=rebuild_from_record, note=IDEMPOTENCY_NOTE, applies=is_not_dry_run
    )
    @blp.arguments(kind.body)
    @blp.response(200, kind.result)
    @blp.alt_response(service.ACCEPTED, schema=AwaitingApproval, description=service.DESCRIPTION)
    @blp.doc(responses=responses)
    @blp.raises(*LIMIT_ERRORS, *kind.errors)
    @blp.header("Prefer", PREFER_NOTE)
    @functools.wraps(kind.parse)
    def view(body: dict[str, Any], *, wallet: WalletView, claim: Claim) -> Any:
        body["session_id"] = principal.session_of(
            guards.current_principal(), body.get("session_id"), is_counted="session_id" in kind.body.fields
        )
        order = kind.parse(body)
        if body["dry_run"]:
            return jsonify(kind.quote_result().dump(kind.quote(wallet, order)))
        return kind.request(wallet, order, body=body, claim=claim)


for _kind in WALLET_MOVEMENTS:
    _add_route(_kind)
