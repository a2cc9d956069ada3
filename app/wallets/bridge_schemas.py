"""Wire shapes of bridges."""

from __future__ import annotations

from marshmallow import fields

from app.wallets.lifecycle import Kind, Status
from app.wallets.schemas import CHAIN, CURRENCY, LegShape
from app.web.fields import Amount, Flag, Text, Usd
from app.web.schemas import EitherSpelling, Schema


class BridgeBody(EitherSpelling):
    """A bridge. Each name may be spelled in camelCase, too: `sourceChain`, `destinationChain`, `dryRun`."""

    source_chain = Text(required=True, metadata={**CHAIN, "description": "The chain that is left."})
    destination_chain = Text(
        required=True,
        metadata={**CHAIN, "description": "Where it goes, to the wallet itself.", "example": "ethereum"},
    )
    token = Text(
        required=True,
        metadata={**CURRENCY, "description": "USDC between any two chains, ETH between Ethereum and Base."},
    )
    amount = Amount(
        required=True,
        metadata={"type": "string", "example": "12.5", "description": "How much leaves, the fee included."},
    )
    dry_run = Flag(
        load_default=False,
        metadata={
            "description": "Check limits, services and chains and answer with the quote; nothing is signed."
        },
    )


class BridgeShape(Schema):
    """A bridge as answered to its maker."""

    transaction_id = fields.UUID(required=True, attribute="id")
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
            "enum": list(Status),
            "description": "`pending` until it has arrived; what has left is `failed` only once it came back "
            "(`error` is `refunded`) or an operator has closed it (`written_off`).",
        },
    )
    type = fields.String(required=True, metadata={"enum": ["transfer"]})
    kind = fields.String(required=True, metadata={"enum": [Kind.BRIDGE.value]})
    route = fields.String(required=True, attribute="bridge.route")
    fee = fields.String(
        required=True,
        attribute="bridge.fee",
        metadata={"description": "Kept on the way: at most, then what it was. Network fees are besides."},
    )
    received_amount = fields.String(
        required=True,
        allow_none=True,
        attribute="bridge.received_amount",
        metadata={"description": "What has arrived, by the destination chain's word; null until then."},
    )
    legs = fields.List(fields.Nested(LegShape), required=True, attribute="bridge.legs")
    explorer_url = fields.String(allow_none=True)
    error = fields.String(
        allow_none=True,
        metadata={"description": "What a `pending` bridge waits for, where that needs saying."},
    )


class BridgeQuoteShape(Schema):
    """What a dry run of a bridge found: it would be tried, at this cost at most."""

    dry_run = fields.Boolean(required=True)
    source_chain = fields.String(required=True)
    destination_chain = fields.String(required=True)
    token = fields.String(required=True)
    amount = fields.String(required=True)
    route = fields.String(required=True)
    fee = fields.String(required=True, metadata={"description": "At most, out of the amount."})
    value_usd = Usd(
        required=True,
        allow_none=True,
        attribute="value_nanos",
        metadata={"description": "What counts against the limits: the fee."},
    )
    network_fee = fields.String(
        required=True, metadata={"description": "At most, in the source chain's own token."}
    )
    network_fee_currency = fields.String(required=True)
    network_fee_usd = Usd(required=True, allow_none=True, attribute="fee_nanos")
    estimated_seconds = fields.Integer(required=True)
