"""Wire shapes of the gateway room."""

from __future__ import annotations

from marshmallow import fields

from app.web.fields import Usd
from app.web.schemas import Schema


class PriceShape(Schema):
    """How a provider's calls are priced."""

    model = fields.String(
        required=True,
        metadata={
            "description": "`per_call`, `per_path`, `per_method` (of JSON-RPC) or `per_token`.",
            "enum": ["per_call", "per_path", "per_method", "per_token"],
        },
    )
    usd = Usd(
        required=True,
        allow_none=True,
        attribute="nanos",
        metadata={
            "description": "The price of a call that has no price of its own; null where tokens decide."
        },
    )
    prices = fields.Dict(
        keys=fields.String(),
        values=Usd(),
        required=True,
        metadata={"description": "Paths or methods with prices of their own, in US dollars."},
    )
    table = fields.String(
        required=True,
        allow_none=True,
        metadata={"description": "The price table and its version, for tokens."},
    )


class ProviderShape(Schema):
    """An upstream that calls are forwarded to."""

    slug = fields.String(required=True)
    aliases = fields.List(fields.String(), required=True)
    kind = fields.String(required=True)
    route = fields.String(required=True, metadata={"description": "What to use as the base URL of a client."})
    configured = fields.Boolean(
        required=True, metadata={"description": "Without the operator's credential calls answer 503."}
    )
    chains = fields.List(
        fields.String(),
        required=True,
        metadata={"description": "What `{chain}` may be; empty where there is none."},
    )
    pricing = fields.Nested(PriceShape, required=True)
    x402_price_usd = Usd(
        required=True, metadata={"description": "The least that a call costs a payer without a key."}
    )


class ProviderList(Schema):
    """All providers."""

    providers = fields.List(fields.Nested(ProviderShape), required=True)


class UpstreamAnswerShape(Schema):
    """Whatever the upstream answers, with its status and headers; not necessarily JSON."""
