"""The common part of every forwarded call: its body, its permit, its exchange with the upstream, its price."""

import hashlib
from http import HTTPStatus

from werkzeug.wrappers import Response

from app.capacity.limiter import Permit
from app.errors import ServiceError
from app.forwarding import relay
from app.forwarding.relay import ForwardingOptions
from app.payments.paid_call import PaidCall
from app.ports.errors import PortError
from app.ports.upstream import UpstreamRequest
from app.state import app_state
from app.web import request_bodies
from app.web.client_request import ClientRequest

MAX_BODY_BYTES = 32 * 2**20
_KEY = "Idempotency-Key"


def body(request: ClientRequest, max_bytes: int = MAX_BODY_BYTES) -> bytes:
    """Return a request's body as it was sent. Raises: what `raw_body` does."""
    request.max_content_length = max_bytes
    return request_bodies.raw_body(request)


def decoded_body(request: ClientRequest, max_bytes: int = MAX_BODY_BYTES) -> bytes:
    """Return a request's body without its Content-Encoding. Raises: what `decoded_body` does."""
    request.max_content_length = max_bytes
    return request_bodies.decoded_body(request)


def idempotency_key(request: ClientRequest, *scope: str) -> dict[str, str]:
    """Return the header for an upstream: one key of two clients must not be one request there."""
    key = request.headers.get(_KEY)
    if not key:
        return {}
    scoped = hashlib.sha256("\n".join((*scope, key)).encode()).hexdigest()
    return {_KEY: f"purser-{scoped[:48]}"}


def forward(request: ClientRequest, outgoing: UpstreamRequest, paid: PaidCall, options: ForwardingOptions) -> Response:
    """Make the call for a request and relay its response. Raises: Overloaded, UpstreamError, UpstreamTimeout."""
    # A request makes one call, so the log of usage can be searched for it.
    paid.id = request.id
    permit = app_state().forwarding_limiter.acquire(options.account_id, options.quotas)
    try:
        if (connection := request.connection) is not None:
            permit.transfer_to(connection)
        paid_request = paid.begin(outgoing)
        request_bodies.release_decoded(request)
        return _exchange(request, paid_request, paid, options, permit)
    except BaseException:
        permit.release()
        raise


def _exchange(
    request: ClientRequest, outgoing: UpstreamRequest, paid: PaidCall, options: ForwardingOptions, permit: Permit
) -> Response:
    try:
        incoming = options.upstream.send(paid.start_span(outgoing, request.span))
        if incoming.status >= HTTPStatus.BAD_REQUEST and options.screen_error is not None:
            incoming = options.screen_error(incoming)
    except PortError as error:
        paid.on_no_response(is_upstream_failure=True)
        raise relay.upstream_error_of(error) from None
    except BaseException:
        paid.on_no_response(is_upstream_failure=False)
        raise
    try:
        paid.on_response_head(incoming)
        return relay.relay(request, incoming, paid, permit, options)
    except ServiceError:
        raise  # the relay has ended the call
    except BaseException:
        incoming.close()
        paid.on_no_response(is_upstream_failure=False)
        raise
