"""Wire schemas of the gateway."""

from marshmallow import INCLUDE, fields

from app.web.fields import Usd
from app.web.schemas import Schema


class ProviderPricingShape(Schema):
    """How a provider's calls are priced."""

    model = fields.String(
        required=True,
        metadata={
            "description": "By call, path, JSON-RPC method, tokens, or as the upstream's response reports it.",
            "enum": ["per_call", "per_path", "per_method", "per_token", "reported"],
        },
    )
    usd = Usd(
        required=True,
        allow_none=True,
        attribute="nanos",
        metadata={"description": "The price of every call; null if it depends on the route, the method or the tokens."},
    )
    prices = fields.Dict(
        keys=fields.String(),
        values=Usd(),
        required=True,
        metadata={"description": "Prices of individual routes or JSON-RPC methods, in US dollars."},
    )
    table = fields.String(
        required=True, allow_none=True, metadata={"description": "The price table and its version, for tokens."}
    )


class ProviderShape(Schema):
    """An upstream that calls are forwarded to."""

    slug = fields.String(required=True)
    aliases = fields.List(fields.String(), required=True)
    kind = fields.String(required=True)
    route = fields.String(required=True, metadata={"description": "The base URL for a client."})
    configured = fields.Boolean(
        required=True,
        metadata={"description": "Whether the operator has set a credential; calls without it get a 503."},
    )
    chains = fields.List(
        fields.String(),
        required=True,
        metadata={"description": "The values of `{chain}`; empty for a provider without it."},
    )
    routes = fields.List(
        fields.String(),
        required=True,
        metadata={
            "description": "The methods and paths that are forwarded; others get 403 `ROUTE_NOT_ALLOWED`. "
            "`{name}` is one segment, `{name**}` several, `{a|b}` one of the listed words."
        },
    )
    pricing = fields.Nested(ProviderPricingShape, required=True)
    x402_price_usd = Usd(
        required=True, metadata={"description": "The minimum price of a call that is paid for with x402."}
    )


class ProviderList(Schema):
    """All providers."""

    providers = fields.List(fields.Nested(ProviderShape), required=True)


class ModelShape(Schema):
    """A model that the endpoints of language models accept."""

    id = fields.String(required=True)
    object = fields.String(required=True)
    created = fields.Integer(required=True)
    owned_by = fields.String(required=True)
    pricing = fields.Dict(keys=fields.String(), values=fields.String(), required=True, allow_none=True)


class ModelList(Schema):
    """The models that the endpoints of language models accept."""

    object = fields.String(required=True)
    data = fields.List(fields.Nested(ModelShape), required=True)


class UpstreamAnswerShape(Schema):
    """The upstream's response with its status and headers; not necessarily JSON."""

    class Meta(Schema.Meta):
        """Any members."""

        unknown = INCLUDE
