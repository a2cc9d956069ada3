"""`/v1/wallets`: wallets, their balances, movements, funding and history. Only the caller's own are there (404)."""

from __future__ import annotations

from typing import Any

from flask import jsonify, request

from app.core.pagination import Page
from app.core.unit_of_work import reading
from app.errors import (
    AddressNotAllowed,
    BalanceFetchError,
    ControlsLocked,
    IdempotencyConflict,
    LimitReached,
    NotFound,
    TransactionInProgress,
    TransferFailed,
    Unauthorized,
    WalletFrozen,
    WithdrawalFailed,
)
from app.identity import guards
from app.ports import provider
from app.wallets import balances, funding, history, orders, schemas, service, transfers
from app.wallets.history import Filters, TransactionView
from app.wallets.lifecycle import TransactionType
from app.wallets.quotable import LIMITS, done_or_quoted, is_for_real, rebuilt_as
from app.wallets.service import WalletView
from app.web import idempotency, prefer
from app.web.blueprint import Blueprint
from app.web.idempotency import idempotent

blp = Blueprint(
    "wallets",
    __name__,
    guard=guards.ANY_KEY,
    url_prefix="/v1/wallets",
    description="Wallets on Ethereum, Base and Solana, under limits that hold.",
)
IDEMPOTENCY_NOTE = (
    "Repeating a request with the same key answers with the first answer and moves nothing again."
)
PREFER_NOTE = "`respond-async` answers at once; `wait=N` waits up to N (at most 25) seconds for confirmation."


@blp.before_request
def _find_wallet() -> None:
    """Replace the id in the path by the caller's wallet, before the body is parsed: 401 and 404 win over 400."""
    arguments = request.view_args
    if request.method == "POST" and not arguments:
        guards.require_agent()
    if arguments and "wallet_id" in arguments:
        arguments["wallet"] = service.owned(arguments.pop("wallet_id"), agent_id=guards.caller().agent_id)


def _rebuild_wallet(wallet_id: str) -> tuple[int, Any]:
    return 201, schemas.WalletShape().dump(service.detail(wallet_id))


def _rebuild_funding(request_id: str) -> tuple[int, Any]:
    with reading():
        return 200, schemas.FundingShape().dump(funding.as_first_answered(request_id))


@blp.get("")
@blp.arguments(schemas.WalletQuery, location="query")
@blp.response(200, schemas.WalletPage)
@blp.raises(Unauthorized)
def list_wallets(query: dict[str, Any]) -> Page[WalletView]:
    """List the caller's wallets, oldest first."""
    return service.list_of(guards.caller().agent_id, query["page"])


@blp.post("")
@idempotent(owner=guards.require_agent, rebuild=_rebuild_wallet)
@blp.arguments(schemas.NewWalletBody)
@blp.response(201, schemas.WalletShape)
@blp.raises(Unauthorized, LimitReached, IdempotencyConflict)
@blp.header(idempotency.HEADER, IDEMPOTENCY_NOTE)
def create_wallet(body: dict[str, Any]) -> WalletView:
    """Make a further wallet; it has no controls unless the agent's are locked, which it inherits."""
    return service.add(guards.require_agent(), name=body["name"])


@blp.get("/<string:wallet_id>")
@blp.response(200, schemas.WalletShape)
@blp.raises(Unauthorized, NotFound)
def get_wallet(wallet: WalletView) -> WalletView:
    """Read one wallet."""
    return service.with_controls(wallet)


@blp.delete("/<string:wallet_id>")
@blp.response(200, schemas.RemovedWallet)
@blp.raises(Unauthorized, NotFound, TransactionInProgress, ControlsLocked, WalletFrozen)
def delete_wallet(wallet: WalletView) -> dict[str, Any]:
    """Delete a wallet with its transactions and controls, for good. Move what it holds out first."""
    service.remove(wallet.id, agent_id=wallet.agent_id)
    return {"id": wallet.id, "deleted": True}


@blp.get("/<string:wallet_id>/balances")
@blp.response(200, schemas.BalancesShape)
@blp.raises(Unauthorized, NotFound, BalanceFetchError)
def get_balances(wallet: WalletView) -> dict[str, Any]:
    """Read the live balances on all chains."""
    return {"wallet_id": wallet.id, "balances": balances.of_wallet(wallet)}


@blp.post("/<string:wallet_id>/transfer")
@idempotent(owner=guards.require_agent, rebuild=rebuilt_as(schemas.MovementShape), applies=is_for_real)
@blp.arguments(schemas.MovementBody)
@blp.response(200, schemas.MovementShape)
@blp.doc(responses=done_or_quoted("movement", schemas.MovementShape, schemas.QuoteShape))
@blp.raises(Unauthorized, NotFound, *LIMITS, AddressNotAllowed, IdempotencyConflict, TransferFailed)
@blp.header(idempotency.HEADER, IDEMPOTENCY_NOTE)
@blp.header("Prefer", PREFER_NOTE)
def transfer(body: dict[str, Any], wallet: WalletView) -> Any:
    """Transfer tokens. `pending` means: sent, and finished by the service; ask for the transaction later."""
    return _move(wallet, body, TransactionType.TRANSFER)


@blp.post("/<string:wallet_id>/withdraw")
@idempotent(owner=guards.require_agent, rebuild=rebuilt_as(schemas.MovementShape), applies=is_for_real)
@blp.arguments(schemas.MovementBody)
@blp.response(200, schemas.MovementShape)
@blp.doc(responses=done_or_quoted("movement", schemas.MovementShape, schemas.QuoteShape))
@blp.raises(Unauthorized, NotFound, *LIMITS, AddressNotAllowed, IdempotencyConflict, WithdrawalFailed)
@blp.header(idempotency.HEADER, IDEMPOTENCY_NOTE)
@blp.header("Prefer", PREFER_NOTE)
def withdraw(body: dict[str, Any], wallet: WalletView) -> Any:
    """Withdraw tokens to an external address; like a transfer, with a type of its own in the history."""
    return _move(wallet, body, TransactionType.WITHDRAWAL)


def _move(wallet: WalletView, body: dict[str, Any], type_: TransactionType) -> Any:
    order = orders.parse_movement(
        type_, chain=body["chain"], to=body["to"], amount=body["amount"], currency=body["currency"]
    )
    if body["dry_run"]:
        found = transfers.quote(wallet, order)
        quote = {
            "dry_run": True,
            "from_": wallet.address_on(order.chain),
            "to": order.recipient,
            "amount": order.amount,
            "currency": order.amount.token.symbol,
            "chain": order.chain.value,
            "value_nanos": found.value_nanos,
            "network_fee": found.fee,
            "network_fee_currency": found.fee.token.symbol,
            "fee_nanos": found.fee_nanos,
        }
        return jsonify(schemas.QuoteShape().dump(quote))
    wait = prefer.wait_seconds(provider.settings().confirmation_wait_seconds)
    return transfers.send(wallet, order, wait_seconds=wait)


@blp.post("/<string:wallet_id>/fund")
@idempotent(owner=guards.require_agent, rebuild=_rebuild_funding)
@blp.arguments(schemas.FundBody)
@blp.response(200, schemas.FundingShape)
@blp.raises(Unauthorized, NotFound, LimitReached, IdempotencyConflict, BalanceFetchError)
@blp.header(idempotency.HEADER, IDEMPOTENCY_NOTE)
def fund(body: dict[str, Any], wallet: WalletView) -> funding.FundingRequest:
    """Ask for a deposit; the request is confirmed once deposits made after it reach the amount."""
    return funding.request(wallet, chain=body["chain"], amount=body["amount"], currency=body["currency"])


@blp.get("/<string:wallet_id>/transactions")
@blp.arguments(schemas.HistoryQuery, location="query")
@blp.response(200, schemas.TransactionPage)
@blp.raises(Unauthorized, NotFound)
def list_transactions(query: dict[str, Any], wallet: WalletView) -> Page[TransactionView]:
    """List transactions, newest first."""
    filters = Filters(status=query["status"], chain=query["chain"], type=query["type"])
    return history.page_of(wallet.id, query["page"], filters=filters, recorded=wallet.transaction_count)


@blp.get("/<string:wallet_id>/transactions/<string:transaction_id>")
@blp.response(200, schemas.TransactionDetail)
@blp.raises(Unauthorized, NotFound)
def get_transaction(transaction_id: str, wallet: WalletView) -> TransactionView:
    """Read one transaction with its events."""
    return history.one(transaction_id, wallet_id=wallet.id)
