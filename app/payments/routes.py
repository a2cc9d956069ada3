"""`/v1/balance` and `/v1/credits`: the remaining credits of a key, and top-ups with USDC from the agent's wallets."""

from typing import Any

from flask import Response
from marshmallow import fields

from app.approvals import service
from app.approvals.schemas import APPROVAL_NOTE, AwaitingApproval
from app.core.chains import USDC
from app.core.movement_kinds import MovementKind
from app.credits import accounts as credit_accounts
from app.db.unit_of_work import read_only_unit
from app.errors import NotFound, TransferFailed, Unauthorized
from app.idempotency.decorator import idempotent
from app.idempotency.service import Claim
from app.identity import budgets, guards
from app.identity.principal import session_of
from app.payments import topups
from app.payments.topups import TopUpOrder
from app.wallets.api.routes import LIMIT_ERRORS
from app.wallets.core import wallets
from app.wallets.kinds.definition import MovementDefinition, rebuild_from_record
from app.wallets.kinds.transfer import MovementShape
from app.wallets.views.history import TransactionView
from app.web.blueprint import Blueprint
from app.web.fields import AmountField, Symbol, Text, Usd
from app.web.schemas import EXAMPLE_ID, Schema


class TopUpBody(Schema):
    """A top-up request."""

    wallet_id = Text(required=True, metadata={"example": EXAMPLE_ID})
    amount = AmountField(required=True, metadata={"type": "string", "example": "10"})
    chain = Symbol(required=True, metadata={"enum": ["ethereum", "base", "solana"]})
    approval_note = APPROVAL_NOTE


TOP_UP = MovementDefinition(
    name=MovementKind.TOPUP, title="Credit top-up", body=TopUpBody(),
    parse=lambda body: TopUpOrder(body["chain"], body["amount"]), quote=topups.quote, send=topups.send,
)  # fmt: skip
balance = Blueprint("balance", guard=guards.ANY_KEY, url_prefix="/v1/balance")
blp = Blueprint("credits", guard=guards.AGENT_KEY, url_prefix="/v1/credits")


class BalanceShape(Schema):
    """The remaining credits of an account, the total spent, and what is owed for top-ups that were reorganised away."""

    credits_usd = Usd(required=True, attribute="credits_nanos")
    total_spent = Usd(required=True, attribute="spent_nanos")
    owed_usd = Usd(required=True, attribute="owed_nanos")


class TopUpShape(MovementShape):
    """The transfer to the treasury. Its value is credited once it is confirmed."""

    kind = fields.String(required=True, metadata={"enum": ["topup"]})


@balance.get("")
@balance.response(200, BalanceShape)
@balance.raises(Unauthorized)
def get_balance() -> dict[str, int]:
    """Read the remaining credits and the total spent, in US dollars; a key with limits reads what its budget allows."""
    principal = guards.current_principal()
    with read_only_unit() as session:
        found = credit_accounts.balance(session, principal.account_id)
        if principal.limits is None:
            owed_nanos = topups.owed_nanos(session, principal.account_id)
            return {**found._asdict(), "credits_nanos": found.credits_nanos, "owed_nanos": owed_nanos}
        [own] = budgets.read(session, [principal.key_id])
    left_nanos = found.credits_nanos if own.remaining_nanos is None else own.remaining_nanos
    credits_nanos = min(left_nanos, found.credits_nanos)
    return {"credits_nanos": credits_nanos, "spent_nanos": own.used_nanos, "owed_nanos": 0}


@blp.post("/topup")
@idempotent(
    owner=guards.idempotency_owner,
    rebuild=rebuild_from_record,
    note="Repeating a request with the same key transfers nothing again.",
)
@blp.arguments(TOP_UP.body)
@blp.response(200, TopUpShape)
@blp.alt_response(service.ACCEPTED, schema=AwaitingApproval, description=service.DESCRIPTION)
@blp.raises(NotFound, *LIMIT_ERRORS, TransferFailed)
@blp.header("Prefer", "`respond-async` returns immediately; `wait=N` waits up to N (at most 25) seconds.")
def top_up(body: dict[str, Any], claim: Claim) -> TransactionView | Response:
    """Buy credits with USDC of a wallet, under its limits; they are granted once the transfer is confirmed."""
    principal = guards.current_principal()
    wallet = wallets.get_owned(body["wallet_id"], agent_id=principal.agent_of_wallet(body["wallet_id"]))
    session_of(principal, None, is_counted=False)
    return TOP_UP.request(wallet, TOP_UP.parse(body), body={**body, "currency": USDC.symbol}, claim=claim)
