"""`POST /v1/wallets/{id}/transfer`, `/withdraw`, `/swap` and `/bridge`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from decimal import Decimal
from types import ModuleType
from typing import Any, TypeVar

from flask import jsonify
from marshmallow import fields

from app.approvals import asking
from app.approvals.execution import Action, ApprovedRequest
from app.approvals.lifecycle import ApprovalKind
from app.approvals.schemas import APPROVAL_NOTE, AwaitingApproval
from app.errors import (
    AddressNotAllowed,
    BridgeFailed,
    ServiceError,
    SwapFailed,
    TransferFailed,
    WithdrawalFailed,
)
from app.idempotency.decorator import idempotent
from app.idempotency.service import Claim
from app.identity import guards
from app.wallets.api.routes import IDEMPOTENCY_NOTE, LIMIT_ERRORS, blp
from app.wallets.api.schemas import CHAIN, CURRENCY, GAS, GAS_FEE, SESSION_ID, LegShape
from app.wallets.bridges import service as bridges
from app.wallets.core import parsing, wallets
from app.wallets.core.lifecycle import MovementKind, MovementStatus, TransactionType
from app.wallets.core.parsing import BridgeOrder, MovementOrder, SwapOrder
from app.wallets.core.wallets import WalletView
from app.wallets.swaps import service as swaps
from app.wallets.transactions import failures
from app.wallets.transfers import service as transfers
from app.wallets.views import history
from app.web import error_responses, prefer
from app.web.client_request import current_request
from app.web.fields import AmountField, StrictBoolean, Text, Usd, WholeNumber
from app.web.parsing import parsed_body
from app.web.schemas import AcceptsCamelCase, Schema

View = TypeVar("View", bound=Callable[..., Any])

PREFER_NOTE = (
    "`respond-async` returns immediately; `wait=N` waits up to N (at most 25) seconds for confirmation."
)
_DRY_RUN_FIELDS = ("dry_run", "dryRun")
_NOT_OF_ORDER = ("dry_run", "approval_note")
_NO_WAIT = Decimal(0)
APPROVED_ACTIONS: dict[ApprovalKind, Action] = {}
"""What executes the approved requests of these routes."""


def _amount(**metadata: str) -> AmountField:
    return AmountField(required=True, metadata={"type": "string", "example": "12.5", **metadata})


def _dry_run(what: str) -> StrictBoolean:
    text = f"Check the limits, simulate {what} and return a quote; nothing is signed."
    return StrictBoolean(load_default=False, metadata={"description": text})


class MovementBody(AcceptsCamelCase):
    """A transfer or withdrawal."""

    chain = Text(required=True, metadata=CHAIN)
    to = Text(required=True, metadata={"description": "The recipient's address."})
    amount = _amount()
    currency = Text(required=True, metadata=CURRENCY)
    gas = GAS
    session_id = SESSION_ID
    approval_note = APPROVAL_NOTE
    dry_run = _dry_run("the transaction")


class SwapBody(AcceptsCamelCase):
    """A swap. Names in camelCase are also accepted: `inputToken`, `outputToken`, `slippageBps`, `dryRun`."""

    chain = Text(required=True, metadata=CHAIN)
    input_token = Text(required=True, metadata={**CURRENCY, "description": "The token to sell."})
    output_token = Text(
        required=True,
        metadata={**CURRENCY, "description": "The token to buy.", "example": "ETH"},
    )
    amount = _amount(description="The exact amount of `input_token` to sell.")
    slippage_bps = WholeNumber(
        load_default=50,
        metadata={
            "description": "How far the output may fall below the quote, in hundredths of a percent, up to the "
            "operator's maximum.",
            "default": 50,
        },
    )
    approval_note = APPROVAL_NOTE
    dry_run = _dry_run("the swap")


class BridgeBody(AcceptsCamelCase):
    """A bridge. Names in camelCase are also accepted: `sourceChain`, `destinationChain`, `dryRun`."""

    source_chain = Text(required=True, metadata={**CHAIN, "description": "The chain to send from."})
    destination_chain = Text(
        required=True,
        metadata={
            **CHAIN,
            "description": "The chain to receive on, in the same wallet.",
            "example": "ethereum",
        },
    )
    token = Text(
        required=True,
        metadata={**CURRENCY, "description": "USDC between any two chains, ETH between Ethereum and Base."},
    )
    amount = _amount(description="The amount to send, including the fee.")
    approval_note = APPROVAL_NOTE
    dry_run = _dry_run("the transactions")


class _MovementState(Schema):
    transaction_id = fields.UUID(required=True, attribute="id")
    tx_hash = fields.String(required=True, allow_none=True)
    status = fields.String(required=True, metadata={"enum": list(MovementStatus)})
    explorer_url = fields.String(allow_none=True)
    error = fields.String(allow_none=True)


class MovementShape(_MovementState):
    """The response to a transfer or withdrawal."""

    from_ = fields.String(required=True, data_key="from", attribute="from_address")
    to = fields.String(required=True, attribute="to_address")
    amount = fields.String(required=True)
    currency = fields.String(required=True)
    chain = fields.String(required=True)
    type = fields.String(required=True, metadata={"enum": ["transfer", "withdrawal"]})
    kind = fields.String(allow_none=True, metadata={"description": "The purpose of a transfer: `topup`."})
    gas_fee = fields.String(required=True, allow_none=True, metadata=GAS_FEE)


class SwapShape(_MovementState):
    """The response to a swap."""

    input_token = fields.String(required=True, attribute="currency")
    output_token = fields.String(required=True, attribute="output_currency")
    input_amount = fields.String(required=True, attribute="amount")
    output_amount = fields.String(
        required=True,
        allow_none=True,
        metadata={
            "description": "The quote while `pending`; the actual output on the chain once `confirmed`."
        },
    )
    minimum_output_amount = fields.String(
        required=True,
        allow_none=True,
        metadata={"description": "The swap reverts if the output is less."},
    )
    chain = fields.String(required=True)
    type = fields.String(required=True, metadata={"enum": [TransactionType.SWAP.value]})


class BridgeShape(_MovementState):
    """The response to a bridge."""

    tx_hash = fields.String(
        required=True, allow_none=True, metadata={"description": "The transaction on the source chain."}
    )
    source_chain = fields.String(required=True, attribute="chain")
    destination_chain = fields.String(required=True, attribute="bridge.destination_chain")
    token = fields.String(required=True, attribute="currency")
    amount = fields.String(required=True)
    status = fields.String(
        required=True,
        metadata={
            "enum": list(MovementStatus),
            "description": "`pending` until the tokens arrived; once they were sent, `failed` only after a refund "
            "(`error` is `refunded`) or a write-off by the operator (`written_off`).",
        },
    )
    type = fields.String(required=True, metadata={"enum": ["transfer"]})
    kind = fields.String(required=True, metadata={"enum": [MovementKind.BRIDGE.value]})
    route = fields.String(required=True, attribute="bridge.route")
    fee = fields.String(
        required=True,
        attribute="bridge.fee",
        metadata={
            "description": "The bridge's fee: the maximum at first, then the actual one. Excludes network fees."
        },
    )
    received_amount = fields.String(
        required=True,
        allow_none=True,
        attribute="bridge.received_amount",
        metadata={"description": "The amount received on the destination chain; null until then."},
    )
    refunded_amount = fields.String(
        required=True,
        allow_none=True,
        attribute="bridge.refunded_amount",
        metadata={"description": "The amount refunded on the source chain, if it was not delivered."},
    )
    legs = fields.List(fields.Nested(LegShape), required=True, attribute="bridge.legs")
    error = fields.String(
        allow_none=True,
        metadata={"description": "What a `pending` bridge waits for, if known."},
    )


def _value(**metadata: str) -> Usd:
    return Usd(required=True, allow_none=True, attribute="movement.value_nanos", metadata=metadata)


def _network_fee(chain: str) -> fields.String:
    return fields.String(required=True, metadata={"description": f"The maximum, in {chain} native token."})


class _Quote(Schema):
    dry_run = fields.Boolean(required=True)
    network_fee = _network_fee("the chain's")
    network_fee_currency = fields.String(required=True, attribute="network_fee.token.symbol")
    network_fee_usd = Usd(required=True, allow_none=True, attribute="network_fee_nanos")


class QuoteShape(_Quote):
    """The quote of a dry run: limits and simulation passed; costs are maxima."""

    from_ = fields.String(required=True, data_key="from", attribute="movement.sender")
    to = fields.String(required=True, attribute="movement.recipient")
    amount = fields.String(required=True, attribute="movement.amount")
    currency = fields.String(required=True, attribute="movement.amount.token.symbol")
    chain = fields.String(required=True, attribute="movement.chain")
    gas_fee = fields.String(required=True, allow_none=True, metadata=GAS_FEE)
    value_usd = _value()


class SwapQuoteShape(_Quote):
    """The quote of a dry run of a swap: limits and simulation passed; costs are maxima."""

    input_token = fields.String(required=True, attribute="movement.amount.token.symbol")
    output_token = fields.String(required=True, attribute="output.token.symbol")
    input_amount = fields.String(required=True, attribute="movement.amount")
    output_amount = fields.String(required=True, attribute="output")
    minimum_output_amount = fields.String(required=True, attribute="minimum")
    slippage_bps = fields.Integer(required=True)
    chain = fields.String(required=True, attribute="movement.chain")
    route = fields.String(
        required=True,
        metadata={"description": "The exchange and pools; their fees are deducted from the output."},
    )
    value_usd = _value(
        description="What counts against the limits: the value of the input less the minimum output."
    )


class BridgeQuoteShape(_Quote):
    """The quote of a dry run of a bridge: limits and simulation passed; costs are maxima."""

    source_chain = fields.String(required=True, attribute="movement.chain")
    destination_chain = fields.String(required=True)
    token = fields.String(required=True, attribute="movement.amount.token.symbol")
    amount = fields.String(required=True, attribute="movement.amount")
    route = fields.String(required=True)
    fee = fields.String(required=True, metadata={"description": "The maximum, deducted from the amount."})
    value_usd = _value(description="What counts against the limits: the fee.")
    network_fee = _network_fee("the source chain's")
    estimated_seconds = fields.Integer(required=True)


def _order_fields(body: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in body.items() if name not in _NOT_OF_ORDER}


def _is_not_dry_run() -> bool:
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
        @functools.wraps(parse)
        def view(body: dict[str, Any], *, wallet: WalletView, **options: Any) -> Any:
            order = parse(_order_fields(body))
            if body["dry_run"]:
                return jsonify(quote().dump(use_case.quote(wallet, order)))
            wait, claim = prefer.wait_seconds(), options["claim"]
            return asking.or_ask(
                kind,
                lambda: use_case.send(wallet, order, wait_seconds=wait, claim=claim),
                body=body,
                claim=claim,
            )

        def execute(request: ApprovedRequest, claim: Claim) -> None:
            order = parse(_order_fields(body().load(request.body)))
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
                applies=_is_not_dry_run,
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
    errors=(SwapFailed,),
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
    errors=(BridgeFailed,),
)  # fmt: skip
def bridge(body: dict[str, Any]) -> BridgeOrder:
    """Move tokens to the wallet's address on another chain. Returns `pending`; the service completes the bridge.

    Only the fee counts against the limits. Once tokens have left the source chain, it stays `pending` until they
    arrive, with what it waits for in `error`, and is retried indefinitely. `legs` lists its transactions.
    """
    return parsing.parse_bridge(**body)
