"""The definition of a kind of movement, what their schemas share, and the route of one; `app.movements` lists all."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, Generic, Protocol, TypeVar

from flask import Response, jsonify
from marshmallow import fields
from sqlalchemy.orm import Session

from app.approvals import service
from app.approvals.schemas import ApprovableMovement, ApprovedRequest, AwaitingApproval
from app.errors import ServiceError
from app.idempotency.decorator import idempotent
from app.idempotency.service import Claim
from app.identity import guards, principal
from app.wallets.api.routes import IDEMPOTENCY_NOTE, LIMIT_ERRORS, blp
from app.wallets.core import wallets
from app.wallets.core.lifecycle import MovementStatus
from app.wallets.core.wallets import WalletView
from app.wallets.transactions import failures
from app.wallets.views import history
from app.web import error_responses
from app.web.client_request import current_request, wait_seconds
from app.web.fields import AmountField, StrictBoolean, Usd
from app.web.request_bodies import parsed_body
from app.web.schemas import Schema

OrderT = TypeVar("OrderT")
OrderT_contra = TypeVar("OrderT_contra", contravariant=True)
_NO_WAIT = Decimal(0)
AMOUNT = AmountField(required=True, metadata={"type": "string", "example": "12.5"})
VALUE_USD = Usd(required=True, allow_none=True, attribute="movement.value_nanos")
MAX_NETWORK_FEE = Usd(load_default=None, allow_none=True, metadata={"example": 1})


class Send(Protocol[OrderT_contra]):
    """The use case: prepares, records and sends an order."""

    def __call__(self, wallet: WalletView, order: OrderT_contra, *, wait_seconds: Decimal | None, claim: Claim) -> Any:
        """Execute an order once, and bind what is recorded to the claim. Raises: ServiceError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MovementDefinition(ApprovableMovement, Generic[OrderT]):
    """A kind of movement, as routes, approvals, workers and pages use it."""

    parse: Callable[[dict[str, Any]], OrderT]
    send: Send[OrderT]
    quote: Callable[[WalletView, OrderT], object] | None = None
    """Checks and simulates like `send`, without signing, before the owner is asked; None if `send` does so itself."""
    details: Callable[[Session, Sequence[Any]], Mapping[str, object]] | None = None
    """Reads what it adds to the views of its transactions, by their ids."""

    def request(self, wallet: WalletView, order: OrderT, *, body: Mapping[str, Any], claim: Claim) -> Any | Response:
        """Return what `send` returns, or the answer 202 if the owner has to approve it. Raises: ServiceError."""
        quote, wait = self.quote, wait_seconds()
        return service.or_ask(
            self, lambda: self.send(wallet, order, wait_seconds=wait, claim=claim), body=body, claim=claim,
            try_out=quote and (lambda approved: quote(replace(wallet, approved=approved), order)),
        )  # fmt: skip

    def execute(self, request: ApprovedRequest, claim: Claim) -> None:
        order = self.parse(self.body.load(request.body))
        wallet = replace(wallets.get_owned(request.wallet_id, agent_id=request.agent_id), approved=request.approved)
        self.send(wallet, order, wait_seconds=_NO_WAIT, claim=claim)


@dataclass(frozen=True, slots=True, kw_only=True)
class WalletMovement(MovementDefinition[OrderT]):
    """A kind with a route below `/v1/wallets/{id}/`: its name and documentation are those of the function `parse`."""

    quote: Callable[[WalletView, OrderT], object]
    follows_market: bool = True
    noun: str
    result: type[Schema]
    quote_result: type[Schema]
    errors: tuple[type[ServiceError], ...]


def dry_run_field(what: str) -> StrictBoolean:
    text = f"Check the limits, simulate {what} and return a quote; nothing is signed."
    return StrictBoolean(load_default=False, metadata={"description": text})


class MovementState(Schema):
    transaction_id = fields.UUID(required=True, attribute="id")
    tx_hash = fields.String(required=True, allow_none=True)
    status = fields.String(required=True, metadata={"enum": list(MovementStatus)})
    explorer_url = fields.String(allow_none=True)
    error = fields.String(allow_none=True)


class MovementQuoteShape(Schema):
    dry_run = fields.Boolean(required=True)
    network_fee = fields.String(required=True)
    network_fee_currency = fields.String(required=True, attribute="network_fee.token.symbol")
    network_fee_usd = Usd(required=True, allow_none=True, attribute="network_fee_nanos")
    gas_fee = fields.String(required=True, allow_none=True)


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


def add_route(kind: WalletMovement[Any]) -> None:
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
