"""`call_service`: one call of a service or provider, paid with credits, or by x402's transport for MCP.

It is the one tool without an operation of its own in the OpenAPI document: its arguments and result are here.
"""

import base64
import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from decimal import Decimal
from functools import partial
from http import HTTPStatus
from operator import attrgetter
from typing import Any

import marshmallow as ma
from flask import Response, jsonify
from marshmallow import fields

from app.buying.schemas import body_members
from app.catalog.proxy import routes as proxy
from app.catalog.proxy.call import MAX_PRICE_HEADER, SESSION_HEADER, WALLET_HEADER
from app.core import money
from app.core.identifiers import new_id
from app.db.unit_of_work import unit_of_work
from app.errors import IdempotencyConflict, InvalidInput, RateLimited, ServiceError
from app.gateway import routes as gateway
from app.gateway.call import read_and_close
from app.gateway.providers.table import ProviderTable
from app.idempotency import service as idempotency
from app.idempotency.service import Claim, IdempotencyKey, KeyScope
from app.identity import guards
from app.payments.presented import SIGNED_HEADER
from app.payments.x402 import terms
from app.state import app_state
from app.web import error_responses, request_bodies
from app.web.client_request import ClientRequest
from app.web.fields import Text, Usd, one_of
from app.web.request_bodies import flatten_errors
from app.web.schemas import Schema, canonical_json, validated_fields
from app.web.view_calls import environ_of, respond

_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
# Clients read the patterns in JavaScript and RE2; `Text` refuses the line break that `$` would accept.
_IS_ID = ma.validate.Regexp(r"^[A-Za-z0-9_-]{1,64}$", error="must be an id")
_IS_PATH = ma.validate.Regexp(r"^[!-~]*$", error="must be a path as in a URL, escaped")
_MAX_BODY = 256 * 1024


class ServiceCallBody(Schema):
    """One call of a service through this service's gateway."""

    service = Text(
        required=True,
        validate=ma.validate.Regexp(r"^[A-Za-z0-9_-]{1,64}$", error="must be the id of a service or provider"),
    )
    path = Text(
        load_default="", validate=[_IS_PATH, ma.validate.Length(max=2000, error="must have at most {max} characters")]
    )
    method = one_of(_METHODS, load_default="GET", metadata={"default": "GET"})
    body = fields.String(
        load_default=None, allow_none=True, validate=ma.validate.Length(max=_MAX_BODY, error="is too long")
    )
    max_price_usd = Usd(load_default=None, allow_none=True)
    wallet_id = Text(load_default=None, allow_none=True, validate=_IS_ID)
    session_id = Text(load_default=None, allow_none=True, validate=_IS_ID)


class ServiceCallResult(Schema):
    """The response of a service, whatever its status. It was written by that service."""

    status = fields.Integer(required=True)
    content_type = fields.String(required=True)
    body = fields.String(required=True)
    body_encoding = fields.String(required=True, metadata={"enum": ["text", "base64"]})
    truncated = fields.Boolean(required=True)
    body_sha256 = fields.String()
    cost_usd = fields.String(required=True, allow_none=True)


_MAX_RESPONSE_BYTES = 2**20
_MAX_STORED_BYTES = 64 * 1024
_MAX_STORED_KIB_PER_DAY = 8 * 1024
_CATALOG_HEADERS = {"max_price_usd": MAX_PRICE_HEADER, "wallet_id": WALLET_HEADER, "session_id": SESSION_HEADER}
_BODY, _RESULT = ServiceCallBody(), ServiceCallResult()


def call_service(
    request: ClientRequest,
    arguments: Mapping[str, Any],
    *,
    key_headers: Mapping[str, str],
    payment: Any,
    request_id: str | None,
) -> Response:
    """Call a service and return its response as a result, or the error that refused the call.

    `payment` is a signed payment of x402. Under a `request_id`, an agent's call is made and charged once.
    """
    try:
        call = _BODY.load(arguments)
        headers = {**key_headers, **_payment_header(payment)}
        claim = _claim(call, request_id)
    except ma.ValidationError as error:
        fields = flatten_errors(error.messages)
        name, problems = next(iter(fields.items()))
        return error_responses.error_response(InvalidInput(f"{name}: {problems[0]}", details={"fields": fields}))
    except ServiceError as error:
        return error_responses.error_response(error)
    if isinstance(claim, IdempotencyKey):
        return _replay(claim)
    response = _call(request, call, headers)
    if response.status_code == HTTPStatus.OK and _may_be_charged(response.get_json()):
        claim.store_response(response.status_code, _storable(response, claim))
    else:
        claim.withdraw()
    return response


def _storable(response: Response, claim: Claim) -> bytes:
    """Return what is stored of a response for a retry: without its body if that is large, or much is stored already.

    A free call must not fill the database.
    """
    content = response.get_data()
    principal = guards.find_principal()
    if principal is None or not claim.is_bound:
        return content
    if len(content) <= _MAX_STORED_BYTES:
        with suppress(RateLimited):
            quota = f"{_MAX_STORED_KIB_PER_DAY} per day"
            app_state().rate_limiter.spend(quota, "stored", principal.account_id, cost=1 + len(content) // 1024)
            return content
    result = response.get_json()
    digest = hashlib.sha256(result["body"].encode()).hexdigest()
    return jsonify({**result, "body": "", "truncated": True, "body_sha256": digest}).get_data()


def _may_be_charged(result: Mapping[str, Any]) -> bool:
    if result["status"] < HTTPStatus.BAD_REQUEST:
        return True
    cost = result["cost_usd"]
    return result["status"] < HTTPStatus.INTERNAL_SERVER_ERROR and (cost is None or Decimal(cost) > 0)


def _claim(call: Mapping[str, Any], request_id: str | None) -> Claim | IdempotencyKey:
    if request_id is None or guards.find_principal() is None:
        return Claim.none()
    scope = KeyScope(guards.idempotency_owner(), "POST", "/mcp/call_service", request_id)
    claim = idempotency.claim_key(scope, canonical_json(validated_fields(_BODY, call)))
    if isinstance(claim, Claim):
        # Bound before the call: a claim that outlives its lease is never executed again.
        with unit_of_work() as session:
            claim.bind(session, new_id())
    return claim


def _replay(stored: IdempotencyKey) -> Response:
    found = stored.read()
    if found is None:
        conflict = IdempotencyConflict(
            "The first call under this request_id is still running, or its response was lost; it may have been "
            "charged, as get_usage shows. Use a new request_id to call again."
        )
        return error_responses.error_response(conflict)
    status, body = found
    response = Response(body, status=status, mimetype="application/json")
    response.headers["Idempotent-Replayed"] = "true"
    return response


def _payment_header(payment: Any) -> dict[str, str]:
    if payment is None:
        return {}
    if not isinstance(payment, dict):
        raise InvalidInput.field("x402/payment", "must be an object")
    return {SIGNED_HEADER: base64.b64encode(json.dumps(payment, default=attrgetter("text")).encode()).decode()}


def _call(request: ClientRequest, call: Mapping[str, Any], headers: dict[str, str]) -> Response:
    name: str = call["service"]
    is_provider = app_state().part(ProviderTable).has(name)
    options = _catalog_headers(call)
    if is_provider and options:
        problem = "is for services of the catalog; GET /v1/providers has the prices of providers"
        return error_responses.error_response(InvalidInput.field(next(iter(options)), problem))
    headers |= {_CATALOG_HEADERS[field]: value for field, value in options.items()}
    path, _, query = call["path"].partition("?")
    prefix = (gateway.gateway if is_provider else proxy.paid_services).url_prefix
    body = request_bodies.body_environ((call["body"] or "").encode("utf-8", "replace"))
    target = f"{prefix}/{name}/{path.removeprefix('/')}"
    environ = environ_of(request, call["method"], target, query, headers=headers, body=body)
    environ["CONTENT_TYPE"] = "application/json"
    serve = gateway.serve if is_provider else proxy.serve_payer
    return respond(request, environ, partial(_serve, serve, name), route=f"{prefix}/<name>")


def _catalog_headers(call: Mapping[str, Any]) -> dict[str, str]:
    """Return what only the proxy of the catalog reads, by the name of the argument."""
    found = {name: call[name] for name in _CATALOG_HEADERS if call[name] is not None}
    if "max_price_usd" in found:
        found["max_price_usd"] = f"{money.usd_from_nanos(found['max_price_usd']):f}"
    return found


def _serve(serve: Any, name: str, inner: ClientRequest) -> Response:
    relayed = serve(inner, name)
    body, is_truncated = read_and_close(relayed, _MAX_RESPONSE_BYTES)
    found = {
        "status": relayed.status_code, "content_type": relayed.headers.get("Content-Type", ""), **body_members(body),
        "truncated": is_truncated, "cost_usd": relayed.headers.get("X-Cost-Usd"),
    }  # fmt: skip
    result = jsonify(_RESULT.dump(found))
    if settled := relayed.headers.get(terms.RESPONSE_HEADER):
        result.headers[terms.RESPONSE_HEADER] = settled
    return result
