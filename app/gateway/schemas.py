"""Wire schemas of the gateway."""

from marshmallow import INCLUDE, fields

from app.web.fields import Usd
from app.web.schemas import Schema


class ProviderPricingShape(Schema):
    """How a provider's calls are priced."""

    model = fields.String(
        required=True, metadata={"enum": ["per_call", "per_path", "per_method", "per_token", "reported"]}
    )
    usd = Usd(required=True, allow_none=True, attribute="nanos")
    prices = fields.Dict(keys=fields.String(), values=Usd(), required=True)
    table = fields.String(required=True, allow_none=True)


class ProviderShape(Schema):
    """An upstream that calls are forwarded to."""

    slug = fields.String(required=True)
    aliases = fields.List(fields.String(), required=True)
    kind = fields.String(required=True)
    route = fields.String(required=True)
    configured = fields.Boolean(required=True)
    chains = fields.List(fields.String(), required=True)
    routes = fields.List(fields.String(), required=True)
    pricing = fields.Nested(ProviderPricingShape, required=True)
    x402_price_usd = Usd(required=True)


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
