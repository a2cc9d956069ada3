"""Wire shapes of swaps."""

from __future__ import annotations

from marshmallow import fields

from app.wallets.lifecycle import Status, TransactionType
from app.wallets.schemas import CHAIN, CURRENCY
from app.web.fields import Amount, Flag, Text, Usd, Whole
from app.web.schemas import EitherSpelling, Schema


class SwapBody(EitherSpelling):
    """A swap. Each name may be spelled in camelCase, too: `inputToken`, `outputToken`, `slippageBps`, `dryRun`."""

    chain = Text(required=True, metadata=CHAIN)
    input_token = Text(required=True, metadata={**CURRENCY, "description": "The token that is given."})
    output_token = Text(
        required=True,
        metadata={**CURRENCY, "description": "The token that is wanted.", "example": "ETH"},
    )
    amount = Amount(
        required=True,
        metadata={"type": "string", "example": "12.5", "description": "How much is given, all of it."},
    )
    slippage_bps = Whole(
        load_default=50,
        metadata={
            "description": "How much less than quoted the swap may bring, in hundredths of a percent, up to the "
            "operator's maximum.",
            "default": 50,
        },
    )
    dry_run = Flag(
        load_default=False,
        metadata={
            "description": "Check limits, exchange and chain and answer with the quote; nothing is signed."
        },
    )


class SwapShape(Schema):
    """A swap as answered to its maker."""

    transaction_id = fields.UUID(required=True, attribute="id")
    tx_hash = fields.String(required=True, allow_none=True)
    input_token = fields.String(required=True, attribute="currency")
    output_token = fields.String(required=True, attribute="output_currency")
    input_amount = fields.String(required=True, attribute="amount")
    output_amount = fields.String(
        required=True,
        allow_none=True,
        metadata={
            "description": "As quoted while `pending`; what the chain says it brought once `confirmed`."
        },
    )
    minimum_output_amount = fields.String(
        required=True,
        allow_none=True,
        metadata={"description": "With less than this it does not take place."},
    )
    chain = fields.String(required=True)
    status = fields.String(required=True, metadata={"enum": list(Status)})
    type = fields.String(required=True, metadata={"enum": [TransactionType.SWAP.value]})
    explorer_url = fields.String(allow_none=True)
    error = fields.String(allow_none=True)


class SwapQuoteShape(Schema):
    """What a dry run of a swap found: it would be tried, at this cost at most."""

    dry_run = fields.Boolean(required=True)
    input_token = fields.String(required=True)
    output_token = fields.String(required=True)
    input_amount = fields.String(required=True)
    output_amount = fields.String(required=True)
    minimum_output_amount = fields.String(required=True)
    slippage_bps = fields.Integer(required=True)
    chain = fields.String(required=True)
    route = fields.String(
        required=True, metadata={"description": "By which way; its fees are in the output."}
    )
    value_usd = Usd(
        required=True,
        allow_none=True,
        attribute="value_nanos",
        metadata={
            "description": "What counts against the limits: the value given less the least that comes back."
        },
    )
    network_fee = fields.String(required=True, metadata={"description": "At most, in the chain's own token."})
    network_fee_currency = fields.String(required=True)
    network_fee_usd = Usd(required=True, allow_none=True, attribute="fee_nanos")
