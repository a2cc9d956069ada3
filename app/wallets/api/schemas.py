"""Schemas of wallets, balances, funding, history and controls."""

from typing import Any

import marshmallow as ma
from marshmallow import fields

from app.core.chains import ChainName
from app.core.movement_kinds import MovementKind
from app.ports.bridges import BridgeLegKind
from app.wallets.core.lifecycle import PERPDEX_CHAIN, MovementStatus, TransactionType
from app.wallets.core.parsing import GasSource
from app.web.fields import (
    Address,
    AmountField,
    DomainField,
    Identifier,
    Instant,
    Moment,
    Name,
    StrictBoolean,
    Symbol,
    Usd,
    UsdOrNone,
    UsdText,
    one_of,
)
from app.web.schemas import AcceptsCamelCase, Schema, page_query, page_schema

_ALLOWLIST_LENGTH = ma.validate.Length(max=500, error="must have at most 500 entries")
CHAIN = {"enum": [name.value for name in ChainName], "example": "base"}
CURRENCY = {"enum": ["ETH", "SOL", "USDC"], "example": "USDC"}


def _gas_field(description: str) -> fields.Enum[GasSource]:
    metadata = {"type": "string", "description": description}
    return fields.Enum(GasSource, by_value=True, load_default=GasSource.AUTO, metadata=metadata)


GAS = _gas_field(
    "The payer of the network fee: the wallet (`own`), or the service, for a fee in USDC (`sponsored`: USDC only). "
    "`auto` is `sponsored` where that is possible and the wallet holds too little of the native token."
)
GAS_PURCHASE = _gas_field(
    "What happens if the wallet holds too little of a native token: `auto` and `sponsored` buy it from the service for "
    "USDC first, as a payment of its own (`kind` is `gas`); `own` refuses. A dry run cannot simulate before that: then "
    "`gas_fee` is set."
)
SESSION_ID = Identifier(
    load_default=None,
    allow_none=True,
    error_messages={"invalid_uuid": "must be the id of a session of this wallet"},
    metadata={"description": "A session that this counts against, besides the wallet's limits."},
)


class Addresses(Schema):
    """A wallet's address on each chain; the EVM chains share one."""

    ethereum = fields.String(required=True)
    base = fields.String(required=True)
    solana = fields.String(required=True)


class NewAgentControls(Schema):
    """The limits of a new agent's wallet."""

    daily_limit_usd = Usd(required=True, attribute="daily_limit_nanos")
    weekly_limit_usd = Usd(required=True, attribute="weekly_limit_nanos")
    monthly_limit_usd = Usd(required=True, attribute="monthly_limit_nanos")
    per_tx_limit_usd = Usd(required=True, attribute="per_tx_limit_nanos")


class ClaimedControls(NewAgentControls):
    """The wallet's spending controls."""

    allowed_addresses = fields.List(fields.String(), required=True)
    allowed_domains = fields.List(fields.String(), required=True)
    updated_at = Instant(required=True)


class ControlsShape(ClaimedControls):
    """A wallet's limits; 0 means unlimited, an empty list allows everything."""

    locked = fields.Boolean()
    approval_threshold_usd = UsdOrNone(attribute="approval_threshold_nanos")
    approve_new_recipients = fields.Boolean()
    approve_new_domains = fields.Boolean()


class WalletShape(Schema):
    """A wallet."""

    id = fields.UUID(required=True)
    name = fields.String(required=True)
    addresses = fields.Nested(Addresses, required=True)
    spending_controls = fields.Nested(ControlsShape, required=True, allow_none=True)
    transaction_count = fields.Integer(required=True)
    created_at = Instant(required=True)
    exported_at = Instant(required=True, allow_none=True)


WalletPage = page_schema("WalletPage", "wallets", WalletShape, "A page of wallets, oldest first.")


class NewWalletBody(Schema):
    """The name of a new wallet."""

    name = Name(load_default=None, allow_none=True, metadata={"example": "savings"})


class RemovedWallet(Schema):
    """A wallet that was deleted."""

    id = fields.UUID(required=True)
    deleted = fields.Boolean(required=True)


class HoldingShape(Schema):
    """The balance of one token on one chain."""

    chain = fields.String(required=True)
    token = fields.String(required=True, attribute="amount.token.symbol")
    balance = fields.String(required=True, attribute="amount")
    usd_value = UsdText(attribute="usd_nanos")


class WalletBalancesShape(Schema):
    """Live balances: always the same rows, zero included."""

    wallet_id = fields.UUID(required=True)
    balances = fields.List(fields.Nested(HoldingShape), required=True)


class ForeignTokenShape(Schema):
    """A token that this service does not know; anybody can write `claimed_symbol` and `claimed_name`."""

    chain = fields.String(required=True)
    currency = fields.String(required=True, attribute="token.amount.token.symbol")
    contract = fields.String(required=True, attribute="token.amount.token.contract")
    decimals = fields.Integer(required=True, attribute="token.amount.token.decimals")
    balance = fields.String(required=True, attribute="token.amount")
    claimed_symbol = fields.String(required=True, allow_none=True, attribute="token.symbol")
    claimed_name = fields.String(required=True, allow_none=True, attribute="token.name")
    withdrawal_refusal = fields.String(required=True, allow_none=True, attribute="token.refusal")


class ForeignTokensShape(Schema):
    """The foreign tokens of a wallet, and the chains that cannot be read."""

    wallet_id = fields.UUID(required=True)
    tokens = fields.List(fields.Nested(ForeignTokenShape), required=True)
    unreadable_chains = fields.List(fields.String(), required=True)


class FundBody(Schema):
    """The deposit that is requested."""

    chain = Symbol(required=True, metadata=CHAIN)
    amount = AmountField(required=True, metadata={"type": "string", "example": "100"})
    currency = Symbol(required=True, metadata=CURRENCY)


class FundingShape(Schema):
    """A new funding request, always pending."""

    funding_request_id = fields.UUID(required=True, attribute="id")
    wallet_id = fields.UUID(required=True)
    deposit_address = fields.String(required=True)
    amount = fields.String(required=True)
    currency = fields.String(required=True)
    chain = fields.String(required=True)
    status = fields.String(required=True)
    message = fields.String(required=True)


class TransactionEventShape(Schema):
    """One status change of a transaction."""

    status = fields.String(required=True)
    reason = fields.String(required=True, allow_none=True)
    at = Instant(required=True)


class BridgeLegShape(Schema):
    """One leg of a movement between chains, usually an on-chain transaction."""

    leg = fields.String(required=True, metadata={"enum": list(BridgeLegKind)})
    chain = fields.String(required=True)
    status = fields.String(required=True, metadata={"enum": list(MovementStatus)})
    tx_hash = fields.String(required=True, allow_none=True)
    explorer_url = fields.String(required=True, allow_none=True)
    error = fields.String(required=True, allow_none=True)
    confirmed_at = Instant(required=True, allow_none=True)


class TransactionShape(Schema):
    """A transaction."""

    id = fields.UUID(required=True)
    wallet_id = fields.UUID(required=True)
    type = fields.String(required=True, metadata={"enum": list(TransactionType)})
    kind = fields.String(required=True, allow_none=True)
    chain = fields.String(required=True)
    from_address = fields.String(required=True, allow_none=True)
    to_address = fields.String(required=True)
    amount = fields.String(required=True)
    currency = fields.String(required=True)
    output_amount = fields.String(allow_none=True)
    output_currency = fields.String()
    minimum_output_amount = fields.String(allow_none=True)
    gas_fee = fields.String(required=True, allow_none=True)
    tx_hash = fields.String(required=True, allow_none=True)
    previous_hashes = fields.List(fields.String(), required=True)
    status = fields.String(required=True, metadata={"enum": list(MovementStatus)})
    error = fields.String(required=True, allow_none=True)
    cost_usd = Usd(required=True, attribute="cost_nanos")
    explorer_url = fields.String(required=True, allow_none=True)
    created_at = Instant(required=True)
    confirmed_at = Instant(required=True, allow_none=True)
    destination_chain = fields.String(attribute="details.destination_chain")
    received_amount = fields.String(allow_none=True, attribute="details.received_amount")
    refunded_amount = fields.String(allow_none=True, attribute="details.refunded_amount")
    legs = fields.List(fields.Nested(BridgeLegShape), attribute="details.legs")

    @ma.post_dump
    def _omit_output_unless_swap(self, row: dict[str, Any], **_kwargs: object) -> dict[str, Any]:
        if row.get("output_currency") is None:
            for name in ("output_amount", "output_currency", "minimum_output_amount"):
                row.pop(name, None)
        return row


class TransactionDetail(TransactionShape):
    """A transaction with its status changes, oldest first."""

    events = fields.List(fields.Nested(TransactionEventShape), required=True)


TransactionPage = page_schema(
    "TransactionPage", "transactions", TransactionShape, "A page of transactions, newest first."
)


class DeletionBody(Schema):
    """Whether a wallet is deleted although it holds tokens."""

    force = StrictBoolean(load_default=False)


class DeletionQuery(Schema):
    """The same in the query."""

    force = fields.Boolean(load_default=False)


class HistoryQuery(page_query(default=50, maximum=200, has_period=True)):  # type: ignore[misc]
    """Filters and pagination of a history."""

    status = one_of(map(str, MovementStatus), load_default=None)
    chain = one_of(map(str, [*ChainName, PERPDEX_CHAIN]), load_default=None)
    type = one_of(map(str, TransactionType), load_default=None)
    kind = one_of(map(str, MovementKind), load_default=None)
    request_id = Identifier(
        load_default=None, metadata={"description": "Only those that the request with this `X-Request-Id` caused."}
    )


class SpendingWindowShape(Schema):
    """The amount spent in a calendar window (UTC) and the rest of its limit."""

    spent_usd = Usd(required=True, attribute="spent_nanos")
    remaining_usd = Usd(required=True, attribute="remaining_nanos")
    unlimited = fields.Boolean(required=True)
    resets_at = Instant(required=True)


class ControlsStanding(Schema):
    """A wallet's controls and their usage; `controls` is null if none are set."""

    wallet_id = fields.UUID(required=True)
    controls = fields.Nested(ControlsShape, required=True, allow_none=True)
    usage_today = fields.Nested(SpendingWindowShape)
    usage_week = fields.Nested(SpendingWindowShape)
    usage_month = fields.Nested(SpendingWindowShape)
    message = fields.String()


class ControlsBody(Schema):
    """The controls to set; omitted fields keep their values."""

    daily_limit_usd = Usd(attribute="daily_limit_nanos")
    weekly_limit_usd = Usd(attribute="weekly_limit_nanos")
    monthly_limit_usd = Usd(attribute="monthly_limit_nanos")
    per_tx_limit_usd = Usd(attribute="per_tx_limit_nanos")
    allowed_addresses = fields.List(Address(), validate=_ALLOWLIST_LENGTH)
    allowed_domains = fields.List(DomainField(), validate=_ALLOWLIST_LENGTH)
    approval_threshold_usd = UsdOrNone(attribute="approval_threshold_nanos")
    approve_new_recipients = StrictBoolean()
    approve_new_domains = StrictBoolean()


class UpdatedControls(Schema):
    """The controls after an update."""

    wallet_id = fields.UUID(required=True)
    controls = fields.Nested(ControlsShape, required=True)
    updated = fields.Boolean(required=True)


class SessionBody(AcceptsCamelCase):
    """A budget for one task."""

    max_usd = Usd(required=True, attribute="max_nanos", metadata={"example": 5})
    expires_at = Moment(required=True, metadata={"example": "2030-01-01T00:00:00Z"})
    domains = fields.List(DomainField(), load_default=list, validate=_ALLOWLIST_LENGTH)


class SpendingSessionShape(Schema):
    """A session: what names it counts against its budget and against the wallet's limits."""

    id = fields.UUID(required=True)
    wallet_id = fields.UUID(required=True)
    max_usd = Usd(required=True, attribute="max_nanos")
    spent_usd = Usd(required=True, attribute="counted_nanos")
    remaining_usd = Usd(required=True, attribute="remaining_nanos")
    domains = fields.List(fields.String(), required=True)
    expires_at = Instant(required=True)
    created_at = Instant(required=True)


SessionPage = page_schema("SessionPage", "sessions", SpendingSessionShape, "A page of sessions, newest first.")
