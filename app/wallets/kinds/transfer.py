"""Transfers, and withdrawals, which differ in their names only."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from marshmallow import fields

from app.approvals.schemas import APPROVAL_NOTE
from app.core.chains import USDC, AddressError, address_for_chain
from app.core.money import TokenAmount
from app.core.movement_kinds import MovementKind
from app.errors import AddressNotAllowed, TransferFailed, WithdrawalFailed
from app.idempotency.service import Claim
from app.ports.chain import CONTRACT
from app.ports.errors import PortError
from app.state import app_state
from app.wallets import transfers
from app.wallets.api.schemas import CHAIN, CURRENCY, GAS, SESSION_ID
from app.wallets.core import parsing
from app.wallets.core.lifecycle import TransactionType
from app.wallets.core.parsing import GasSource
from app.wallets.core.wallets import WalletView
from app.wallets.kinds import definition
from app.wallets.kinds.definition import MAX_NETWORK_FEE, MovementQuoteShape, MovementState, WalletMovement
from app.wallets.transfers import TransferOrder
from app.web.fields import Recipient, Symbol
from app.web.schemas import AcceptsCamelCase

_ALL = "max"
_MAX_TRIES = 3


class MovementBody(AcceptsCamelCase):
    """A transfer or withdrawal."""

    chain = Symbol(required=True, metadata=CHAIN)
    to = Recipient(required=True)
    amount = definition.AMOUNT
    currency = Symbol(required=True, metadata=CURRENCY)
    gas = GAS
    session_id = SESSION_ID
    max_network_fee_usd = MAX_NETWORK_FEE
    approval_note = APPROVAL_NOTE
    dry_run = definition.dry_run_field("the transaction")


class WithdrawalBody(MovementBody):
    """A withdrawal, also of a foreign token, by the `currency` that `GET /v1/wallets/{id}/tokens` lists."""

    currency = Symbol(required=True, metadata={"example": "USDC"})


class MovementShape(MovementState):
    """The response to a transfer or withdrawal."""

    from_ = fields.String(required=True, data_key="from", attribute="from_address")
    to = fields.String(required=True, attribute="to_address")
    amount = fields.String(required=True)
    currency = fields.String(required=True)
    chain = fields.String(required=True)
    type = fields.String(required=True, metadata={"enum": ["transfer", "withdrawal"]})
    kind = fields.String(allow_none=True)
    gas_fee = fields.String(required=True, allow_none=True)


class TransferQuoteShape(MovementQuoteShape):
    """The quote of a dry run: limits and simulation passed; costs are maxima."""

    from_ = fields.String(required=True, data_key="from", attribute="movement.sender")
    to = fields.String(required=True, attribute="movement.recipient")
    amount = fields.String(required=True, attribute="movement.amount")
    currency = fields.String(required=True, attribute="movement.amount.token.symbol")
    chain = fields.String(required=True, attribute="movement.chain")
    value_usd = definition.VALUE_USD
    recipient_is = fields.String(required=True, allow_none=True, metadata={"enum": [CONTRACT, None]})
    similar_recipients = fields.List(fields.String(), required=True)


def parse_movement(type_: TransactionType, body: Mapping[str, Any]) -> TransferOrder:
    """Parse a transfer or withdrawal; what its schema does not require may be absent. Raises: InvalidInput."""
    problems: dict[str, list[str]] = {}
    name, gas = parsing.parse_chain(body["chain"], problems), body.get("gas", GasSource.AUTO)
    takes_all = body["amount"] == _ALL
    parse = parsing.parse_withdrawn if type_ is TransactionType.WITHDRAWAL else parsing.parse_token
    token = parse(name, body["currency"], problems, field="currency")
    if takes_all:
        parsed = None if token is None else TokenAmount(0, token)
    else:
        parsed = parsing.parse_amount_of(token, body["amount"], problems)
    recipient = None
    if name is not None:
        try:
            recipient = address_for_chain(body["to"], name)
        except AddressError as error:
            problems["to"] = [str(error)]
    if name is not None and recipient is not None and parsed is not None:
        refusal = app_state().ports.chains[name].recipient_rejection(recipient, parsed.token)
        if refusal:
            problems["to"] = [refusal]
    if gas is GasSource.SPONSORED and name is not None and parsed is not None:
        sponsors = app_state().ports.sponsors
        if parsed.token != USDC or name not in sponsors:
            problems["gas"] = [f"can be sponsored for USDC on {', '.join(sponsors) or 'no chain'}"]
    if problems or name is None or recipient is None or parsed is None:
        raise parsing.invalid_fields(problems)
    return TransferOrder(
        type_, name, recipient, parsed, gas=gas, session_id=body.get("session_id"),
        max_fee_nanos=body.get("max_network_fee_usd"), takes_all=takes_all,
    )  # fmt: skip


def transfer(body: dict[str, Any]) -> TransferOrder:
    """Transfer tokens. `pending` means that it was sent and the service completes it; read the transaction later."""
    return parse_movement(TransactionType.TRANSFER, body)


def withdraw(body: dict[str, Any]) -> TransferOrder:
    """Withdraw tokens to an external address; like a transfer, but listed in the history as a withdrawal."""
    return parse_movement(TransactionType.WITHDRAWAL, body)


@dataclass(frozen=True, kw_only=True)
class _TransferKind(WalletMovement[TransferOrder]):
    def request(self, wallet: WalletView, order: TransferOrder, *, body: Mapping[str, Any], claim: Claim) -> Any:
        if not order.takes_all:
            return super().request(wallet, order, body=body, claim=claim)
        for remaining in reversed(range(_MAX_TRIES)):
            exact = transfers.settled(wallet, order)
            exact = replace(exact, takes_all=exact.takes_all and remaining > 0)
            try:
                # The owner approves an amount.
                return super().request(wallet, exact, body={**body, "amount": str(exact.amount)}, claim=claim)
            except PortError:  # another movement took some of it
                continue
        raise AssertionError("the last try is recorded")


TRANSFER = _TransferKind(
    name=MovementKind.TRANSFER, title="Transfer", noun="movement", errors=(AddressNotAllowed, TransferFailed),
    body=MovementBody(), result=MovementShape, quote_result=TransferQuoteShape,
    parse=transfer, quote=transfers.quote, send=transfers.send,
)  # fmt: skip
WITHDRAWAL = replace(
    TRANSFER, name=MovementKind.WITHDRAWAL, title="Withdrawal", errors=(AddressNotAllowed, WithdrawalFailed),
    body=WithdrawalBody(), parse=withdraw,
)  # fmt: skip
