"""Wire shapes of the wallets room."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import marshmallow as ma
from marshmallow import fields

from app.core.chains import ChainName
from app.wallets.lifecycle import EXCHANGE, Status, TransactionType
from app.web.fields import Address, Amount, Domain, Flag, Instant, Name, Text, Usd, UsdText
from app.web.schemas import EitherSpelling, Pagination, Schema, page_query

_ALLOWLIST_LENGTH = ma.validate.Length(max=500, error="must have at most 500 entries")
CHAIN = {"enum": [name.value for name in ChainName], "example": "base"}
CURRENCY = {"enum": ["ETH", "SOL", "USDC"], "example": "USDC"}


class Addresses(Schema):
    """A wallet's address on each chain; the EVM chains share one."""

    ethereum = fields.String(required=True)
    base = fields.String(required=True)
    solana = fields.String(required=True)


class ControlsShape(Schema):
    """A wallet's limits; 0 means unlimited, an empty list allows all."""

    daily_limit_usd = Usd(required=True, attribute="daily_limit_nanos")
    weekly_limit_usd = Usd(required=True, attribute="weekly_limit_nanos")
    monthly_limit_usd = Usd(required=True, attribute="monthly_limit_nanos")
    per_tx_limit_usd = Usd(required=True, attribute="per_tx_limit_nanos")
    allowed_addresses = fields.List(fields.String(), required=True)
    allowed_domains = fields.List(fields.String(), required=True)
    locked = fields.Boolean(metadata={"description": "True: the agent's own key may tighten but not loosen."})
    updated_at = Instant(required=True)


class WalletShape(Schema):
    """A wallet."""

    id = fields.UUID(required=True)
    name = fields.String(required=True)
    addresses = fields.Nested(Addresses, required=True)
    spending_controls = fields.Nested(ControlsShape, required=True, allow_none=True)
    transaction_count = fields.Integer(required=True)
    created_at = Instant(required=True)


class WalletPage(Schema):
    """A page of wallets, oldest first."""

    wallets = fields.List(fields.Nested(WalletShape), required=True, attribute="items")
    pagination = fields.Nested(Pagination, required=True)


class NewWalletBody(Schema):
    """What a new wallet may be called."""

    name = Name(load_default=None, allow_none=True, metadata={"example": "savings"})


class RemovedWallet(Schema):
    """A wallet that was deleted."""

    id = fields.UUID(required=True)
    deleted = fields.Boolean(required=True)


class HoldingShape(Schema):
    """What a wallet has of one token on one chain."""

    chain = fields.String(required=True)
    token = fields.String(required=True, attribute="amount.token.symbol")
    balance = fields.String(required=True, attribute="amount")
    usd_value = UsdText(attribute="usd_nanos")

    @ma.post_dump
    def _omit_unknown_value(self, row: dict[str, Any], **_kwargs: object) -> dict[str, Any]:
        if row.get("usd_value") is None:
            row.pop("usd_value", None)
        return row


class BalancesShape(Schema):
    """Live balances: always the same rows, zero included."""

    wallet_id = fields.UUID(required=True)
    balances = fields.List(fields.Nested(HoldingShape), required=True)


class MovementBody(EitherSpelling):
    """A transfer or withdrawal."""

    chain = Text(required=True, metadata=CHAIN)
    to = Text(required=True, metadata={"description": "The recipient's address."})
    amount = Amount(required=True, metadata={"type": "string", "example": "12.5"})
    currency = Text(required=True, metadata=CURRENCY)
    dry_run = Flag(
        load_default=False,
        metadata={"description": "Check limits and chain and answer with the quote; nothing is signed."},
    )


class MovementShape(Schema):
    """A movement as answered to its maker."""

    transaction_id = fields.UUID(required=True, attribute="id")
    tx_hash = fields.String(required=True, allow_none=True)
    from_ = fields.String(required=True, data_key="from", attribute="from_address")
    to = fields.String(required=True, attribute="to_address")
    amount = fields.String(required=True)
    currency = fields.String(required=True)
    chain = fields.String(required=True)
    status = fields.String(required=True, metadata={"enum": list(Status)})
    type = fields.String(required=True, metadata={"enum": ["transfer", "withdrawal"]})
    kind = fields.String(allow_none=True, metadata={"description": "What a transfer is for: `topup`."})
    explorer_url = fields.String(allow_none=True)
    error = fields.String(allow_none=True)


class QuoteShape(Schema):
    """What a dry run found: it would be tried, at this cost at most."""

    dry_run = fields.Boolean(required=True)
    from_ = fields.String(required=True, data_key="from")
    to = fields.String(required=True)
    amount = fields.String(required=True)
    currency = fields.String(required=True)
    chain = fields.String(required=True)
    value_usd = Usd(required=True, allow_none=True, attribute="value_nanos")
    network_fee = fields.String(required=True, metadata={"description": "At most, in the chain's own token."})
    network_fee_currency = fields.String(required=True)
    network_fee_usd = Usd(required=True, allow_none=True, attribute="fee_nanos")


class FundBody(Schema):
    """What shall be deposited."""

    chain = Text(required=True, metadata=CHAIN)
    amount = Amount(required=True, metadata={"type": "string", "example": "100"})
    currency = Text(required=True, metadata=CURRENCY)


class FundingShape(Schema):
    """A funding request, pending when made."""

    funding_request_id = fields.UUID(required=True, attribute="id")
    wallet_id = fields.UUID(required=True)
    deposit_address = fields.String(required=True)
    amount = fields.String(required=True)
    currency = fields.String(required=True, attribute="amount.token.symbol")
    chain = fields.String(required=True)
    status = fields.String(required=True)
    message = fields.String(required=True)


class EventShape(Schema):
    """One move of a transaction's state."""

    status = fields.String(required=True)
    reason = fields.String(required=True, allow_none=True)
    at = Instant(required=True)


class LegShape(Schema):
    """One part of a bridge, mostly a transaction of its own."""

    leg = fields.String(
        required=True, metadata={"enum": ["approve", "source", "attestation", "account", "destination"]}
    )
    chain = fields.String(required=True)
    status = fields.String(required=True, metadata={"enum": list(Status)})
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
    output_amount = fields.String(
        allow_none=True, metadata={"description": "What a swap brings; swaps only."}
    )
    output_currency = fields.String(metadata={"description": "Swaps only."})
    minimum_output_amount = fields.String(allow_none=True, metadata={"description": "Swaps only."})
    tx_hash = fields.String(required=True, allow_none=True)
    previous_hashes = fields.List(fields.String(), required=True)
    status = fields.String(required=True, metadata={"enum": list(Status)})
    error = fields.String(required=True, allow_none=True)
    cost_usd = Usd(
        required=True,
        attribute="cost_nanos",
        metadata={"description": "The value that counts against the wallet's limits."},
    )
    explorer_url = fields.String(required=True, allow_none=True)
    created_at = Instant(required=True)
    confirmed_at = Instant(required=True, allow_none=True)
    destination_chain = fields.String(
        attribute="bridge.destination_chain", metadata={"description": "Bridges only."}
    )
    received_amount = fields.String(
        allow_none=True, attribute="bridge.received_amount", metadata={"description": "Bridges only."}
    )
    refunded_amount = fields.String(
        allow_none=True, attribute="bridge.refunded_amount", metadata={"description": "Bridges only."}
    )
    legs = fields.List(
        fields.Nested(LegShape), attribute="bridge.legs", metadata={"description": "Bridges only."}
    )

    @ma.post_dump
    def _omit_output_of_others(self, row: dict[str, Any], **_kwargs: object) -> dict[str, Any]:
        if row.get("output_currency") is None:
            for name in ("output_amount", "output_currency", "minimum_output_amount"):
                row.pop(name, None)
        return row


class TransactionDetail(TransactionShape):
    """A transaction with the moves of its state, oldest first."""

    events = fields.List(fields.Nested(EventShape), required=True)


class TransactionPage(Schema):
    """A page of transactions, newest first."""

    transactions = fields.List(fields.Nested(TransactionShape), required=True, attribute="items")
    pagination = fields.Nested(Pagination, required=True)


def _one_of(values: Iterable[str]) -> ma.validate.OneOf:
    return ma.validate.OneOf([str(value) for value in values], error="must be one of {choices}")


class HistoryQuery(page_query(default=50, maximum=200)):  # type: ignore[misc]
    """Which transactions are asked for."""

    status = Text(load_default=None, validate=_one_of(Status))
    chain = Text(load_default=None, validate=_one_of([*ChainName, EXCHANGE]))
    type = Text(load_default=None, validate=_one_of(TransactionType))


WalletQuery = page_query(default=50, maximum=200)


class WindowShape(Schema):
    """What was spent in a calendar window (UTC) and what is left of its limit."""

    spent_usd = Usd(required=True, attribute="spent_nanos")
    remaining_usd = Usd(required=True, attribute="remaining_nanos")
    unlimited = fields.Boolean(required=True)
    resets_at = Instant(required=True)


class ControlsStanding(Schema):
    """A wallet's controls and how far they are used; `controls` is null where none are set."""

    wallet_id = fields.UUID(required=True)
    controls = fields.Nested(ControlsShape, required=True, allow_none=True)
    usage_today = fields.Nested(WindowShape)
    usage_week = fields.Nested(WindowShape)
    usage_month = fields.Nested(WindowShape)
    message = fields.String()


class ControlsBody(Schema):
    """The limits to set; what is left out keeps its value."""

    daily_limit_usd = Usd(attribute="daily_limit_nanos")
    weekly_limit_usd = Usd(attribute="weekly_limit_nanos")
    monthly_limit_usd = Usd(attribute="monthly_limit_nanos")
    per_tx_limit_usd = Usd(attribute="per_tx_limit_nanos")
    allowed_addresses = fields.List(Address(), validate=_ALLOWLIST_LENGTH)
    allowed_domains = fields.List(Domain(), validate=_ALLOWLIST_LENGTH)


class UpdatedControls(Schema):
    """The controls after an update."""

    wallet_id = fields.UUID(required=True)
    controls = fields.Nested(ControlsShape, required=True)
    updated = fields.Boolean(required=True)
