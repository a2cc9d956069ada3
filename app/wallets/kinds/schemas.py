"""Shared parts of the schemas of movements: bodies, responses, and quotes of dry runs."""

from __future__ import annotations

from marshmallow import fields

from app.wallets.api.schemas import GAS_FEE
from app.wallets.core.lifecycle import MovementStatus
from app.web.fields import AmountField, StrictBoolean, Usd
from app.web.schemas import Schema


def amount_field(**metadata: str) -> AmountField:
    return AmountField(required=True, metadata={"type": "string", "example": "12.5", **metadata})


MAX_NETWORK_FEE = Usd(
    load_default=None,
    allow_none=True,
    metadata={
        "example": 1,
        "description": "Refuse rather than sign for a higher network fee (`network_fee_usd`, or `gas_fee`). Fees "
        "follow the market: allow twice what a dry run returned.",
    },
)


def dry_run_field(what: str) -> StrictBoolean:
    text = f"Check the limits, simulate {what} and return a quote; nothing is signed."
    return StrictBoolean(load_default=False, metadata={"description": text})


class MovementState(Schema):
    transaction_id = fields.UUID(required=True, attribute="id")
    tx_hash = fields.String(required=True, allow_none=True)
    status = fields.String(required=True, metadata={"enum": list(MovementStatus)})
    explorer_url = fields.String(allow_none=True)
    error = fields.String(allow_none=True)


def value_field(**metadata: str) -> Usd:
    return Usd(required=True, allow_none=True, attribute="movement.value_nanos", metadata=metadata)


def network_fee_field(chain: str) -> fields.String:
    return fields.String(required=True, metadata={"description": f"The maximum, in {chain} native token."})


class MovementQuoteShape(Schema):
    dry_run = fields.Boolean(required=True)
    network_fee = network_fee_field("the chain's")
    network_fee_currency = fields.String(required=True, attribute="network_fee.token.symbol")
    network_fee_usd = Usd(required=True, allow_none=True, attribute="network_fee_nanos")
    gas_fee = fields.String(required=True, allow_none=True, metadata=GAS_FEE)
