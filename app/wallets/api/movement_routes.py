"""`POST /v1/wallets/{id}/transfer`, `/withdraw`, `/swap` and `/bridge`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from types import ModuleType
from typing import Any, TypeVar

from flask import jsonify

from app.approvals import asking
from app.approvals.execution import Action, ApprovedRequest
from app.approvals.lifecycle import ApprovalKind
from app.approvals.schemas import AwaitingApproval
from app.errors import (
    AddressNotAllowed,
    BridgeFailed,
    GasPending,
    ServiceError,
    SwapFailed,
    TransferFailed,
    WithdrawalFailed,
)
from app.idempotency.decorator import idempotent
from app.idempotency.service import Claim
from app.identity import guards
from app.wallets.api.movement_schemas import (
    BridgeBody,
    BridgeQuoteShape,
    BridgeShape,
    MovementBody,
    MovementShape,
    QuoteShape,
    SwapBody,
    SwapQuoteShape,
    SwapShape,
)
from app.wallets.api.routes import IDEMPOTENCY_NOTE, LIMIT_ERRORS, blp
from app.wallets.bridges import service as bridges
from app.wallets.core import parsing, wallets
from app.wallets.core.lifecycle import MovementStatus, TransactionType
from app.wallets.core.parsing import BridgeOrder, MovementOrder, SwapOrder
from app.wallets.core.wallets import WalletView
from app.wallets.swaps import service as swaps
from app.wallets.transactions import failures
from app.wallets.transfers import service as transfers
from app.wallets.views import history
from app.web import error_responses, prefer
from app.web.client_request import current_request
from app.web.parsing import parsed_body
from app.web.schemas import Schema

View = TypeVar("View", bound=Callable[..., Any])

PREFER_NOTE = "`respond-async` returns immediately; `wait=N` waits up to N (at most 25) seconds for confirmation."
_DRY_RUN_FIELDS = ("dry_run", "dryRun")
_NOT_OF_ORDER = ("dry_run", "approval_note")
_NO_WAIT = Decimal(0)
APPROVED_ACTIONS: dict[ApprovalKind, Action] = {}
"""What executes the approved requests of these routes."""


def _order_fields(body: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in body.items() if name not in _NOT_OF_ORDER}


def is_not_dry_run() -> bool:
    """Return whether the current request is to be executed, and not only tried."""
    body = parsed_body(current_request())
    return not any(body.get(name) is True for name in _DRY_RUN_FIELDS)


def rebuild_from_record(subject_id: str) -> Any:
    """Return a transaction in its current state, or the response of its failure, or of its approval."""
    return asking.rebuilt(subject_id, _rebuild_transaction)


def _rebuild_transaction(transaction_id: str) -> Any:
    view = history.current_view(transaction_id)
    if view.status == MovementStatus.FAILED:
        return error_responses.error_response(failures.recorded_failure(view))
    return view


def moves_money(
    noun: str,
    use_case: ModuleType,
    *,
    kind: ApprovalKind,
    body: type[Schema],
    result: type[Schema],
    quote: type[Schema],
    errors: tuple[type[ServiceError], ...],
) -> Callable[[View], View]:
    """Declare a route that moves money, of a function that parses its body into an order.

    It is idempotent, with `Prefer`. The use case sends the order, or quotes it if it is a dry run.
    """
    schemas = {"oneOf": [result, quote]}
    description = f"The {noun}, or the quote of a dry run."
    responses = {"200": {"description": description, "content": {"application/json": {"schema": schemas}}}}

    def decorate(parse: View) -> View:
        schema = body()

        @functools.wraps(parse)
        def view(body: dict[str, Any], *, wallet: WalletView, **options: Any) -> Any:
            order = parse(_order_fields(body))
            if body["dry_run"]:
                return jsonify(quote().dump(use_case.quote(wallet, order)))
            wait, claim = prefer.wait_seconds(), options["claim"]
            return asking.or_ask(
                kind,
                lambda: use_case.send(wallet, order, wait_seconds=wait, claim=claim),
                schema=schema,
                body=body,
                claim=claim,
                try_out=lambda approved: use_case.quote(replace(wallet, approved=approved), order),
            )

        def execute(request: ApprovedRequest, claim: Claim) -> None:
            order = parse(_order_fields(schema.load(request.body)))
            use_case.send(wallets.get_approved(request), order, wait_seconds=_NO_WAIT, claim=claim)

        APPROVED_ACTIONS[kind] = execute

        decorated: Any = view
        for decorator in (
            blp.header("Prefer", PREFER_NOTE),
            blp.raises(*LIMIT_ERRORS, *errors),
            blp.doc(responses=responses),
            blp.alt_response(asking.ACCEPTED, schema=AwaitingApproval, description=asking.DESCRIPTION),
            blp.response(200, result),
            blp.arguments(body),
            idempotent(
                owner=guards.require_agent,
                rebuild=rebuild_from_record,
                note=IDEMPOTENCY_NOTE,
                applies=is_not_dry_run,
            ),
        ):
            decorated = decorator(decorated)
        registered: View = decorated
        return registered

    return decorate


@blp.post("/<string:wallet_id>/transfer")
@moves_money(
    "movement", transfers, kind=ApprovalKind.TRANSFER, body=MovementBody, result=MovementShape, quote=QuoteShape,
    errors=(AddressNotAllowed, TransferFailed),
)  # fmt: skip
def transfer(body: dict[str, Any]) -> MovementOrder:
    """Transfer tokens. `pending` means that it was sent and the service completes it; read the transaction later."""
    return parsing.parse_movement(TransactionType.TRANSFER, **body)


@blp.post("/<string:wallet_id>/withdraw")
@moves_money(
    "movement", transfers, kind=ApprovalKind.WITHDRAWAL, body=MovementBody, result=MovementShape, quote=QuoteShape,
    errors=(AddressNotAllowed, WithdrawalFailed),
)  # fmt: skip
def withdraw(body: dict[str, Any]) -> MovementOrder:
    """Withdraw tokens to an external address; like a transfer, but listed in the history as a withdrawal."""
    return parsing.parse_movement(TransactionType.WITHDRAWAL, **body)


@blp.post("/<string:wallet_id>/swap")
@moves_money(
    "swap", swaps, kind=ApprovalKind.SWAP, body=SwapBody, result=SwapShape, quote=SwapQuoteShape,
    errors=(SwapFailed, GasPending),
)  # fmt: skip
def swap(body: dict[str, Any]) -> SwapOrder:
    """Swap tokens on one chain, for the wallet itself. `pending` means that it was sent and the service completes it.

    The output is at least `minimum_output_amount`, or the swap reverts. Only the possible loss counts against the
    limits: the value of the input less the minimum output.
    """
    return parsing.parse_swap(**body)


@blp.post("/<string:wallet_id>/bridge")
@moves_money(
    "bridge", bridges, kind=ApprovalKind.BRIDGE, body=BridgeBody, result=BridgeShape, quote=BridgeQuoteShape,
    errors=(BridgeFailed, GasPending),
)  # fmt: skip
def bridge(body: dict[str, Any]) -> BridgeOrder:
    """Move tokens to the wallet's address on another chain. Returns `pending`; the service completes the bridge.

    Only the fee counts against the limits. Once tokens have left the source chain, it stays `pending` until they
    arrive, with what it waits for in `error`, and is retried indefinitely. `legs` lists its transactions.
    """
    return parsing.parse_bridge(**body)
