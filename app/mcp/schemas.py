"""Arguments and result of `call_service`, the one tool without an operation of its own in the OpenAPI document."""

import marshmallow as ma
from marshmallow import fields

from app.web.fields import Text, Usd
from app.web.schemas import Schema

_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
# Clients read the patterns in JavaScript and RE2; `Text` refuses the line break that `$` would accept.
_IS_ID = ma.validate.Regexp(r"^[A-Za-z0-9_-]{1,64}$", error="must be an id")
_MAX_BODY = 256 * 1024


class ServiceCallBody(Schema):
    """One call of a service through this service's gateway."""

    service = Text(
        required=True,
        validate=ma.validate.Regexp(r"^[A-Za-z0-9_-]{1,64}$", error="must be the id of a service or provider"),
        metadata={
            "description": "The id of a service in the catalog, or a provider (GET /v1/providers), such as brave."
        },
    )
    path = Text(
        load_default="",
        validate=[
            ma.validate.Regexp(r"^[!-~]*$", error="must be a path as in a URL, escaped"),
            ma.validate.Length(max=2000, error="must have at most {max} characters"),
        ],
        metadata={"description": "The path below the service, with its query, as in a URL."},
    )
    method = Text(
        load_default="GET", validate=ma.validate.OneOf(_METHODS, error="must be one of {choices}"),
        metadata={"default": "GET"},
    )  # fmt: skip
    body = fields.String(
        load_default=None, allow_none=True, validate=ma.validate.Length(max=_MAX_BODY, error="is too long"),
        metadata={"description": "The body as text, normally JSON."},
    )  # fmt: skip
    max_price_usd = Usd(
        load_default=None, allow_none=True,
        metadata={"description": "Refuse a call of a service in the catalog with a higher price."},
    )  # fmt: skip
    wallet_id = Text(
        load_default=None, allow_none=True, validate=_IS_ID,
        metadata={"description": "The wallet with which a service of the catalog is called; the first by default."},
    )  # fmt: skip
    session_id = Text(
        load_default=None, allow_none=True, validate=_IS_ID,
        metadata={"description": "A spending session of the wallet, against which a catalog call is counted."},
    )  # fmt: skip


class ServiceCallResult(Schema):
    """The response of a service, whatever its status. It was written by that service."""

    status = fields.Integer(required=True, metadata={"description": "The service's own."})
    content_type = fields.String(required=True)
    body = fields.String(required=True)
    body_encoding = fields.String(required=True, metadata={"enum": ["text", "base64"]})
    truncated = fields.Boolean(
        required=True,
        metadata={"description": "The response is longer than 1 MiB, or `body` was not stored for this retry."},
    )
    body_sha256 = fields.String(
        metadata={"description": "In a retry, if `body` was not stored (longer than 64 KiB): its SHA-256."}
    )
    cost_usd = fields.String(
        required=True, allow_none=True, metadata={"description": "Null if it is not known, or paid by x402."}
    )
