"""Calls that the service itself makes through the gateway for an account: validated, priced and charged as its own."""

from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from typing import Any

from werkzeug.test import EnvironBuilder
from werkzeug.wrappers import Response

from app.core import money
from app.errors import InvalidInput
from app.gateway.call import candidates, forward_on_credits
from app.gateway.dialects.request.cost_params import Surface
from app.identity.principal import Principal
from app.web.client_request import ClientRequest

_MAX_BODY_BYTES = 64 * 1024


def chat(
    payer: Principal, model: str, body: Mapping[str, Any], *, max_cost_nanos: int, timeout_seconds: int
) -> tuple[int, bytes, int]:
    """Complete a chat with `provider/model`, charged to an account's credits; return status, body and cost in nanos.

    Raises: InvalidInput if it may cost more than `max_cost_nanos`; ServiceError, as `call.forward` does.
    """
    builder = EnvironBuilder("/v1/chat/completions", method="POST", json={**body, "model": model})
    first = candidates(ClientRequest(builder.get_environ()), Surface.CHAT)[0]
    call = replace(first, max_bytes=_MAX_BODY_BYTES, timeout_seconds=timeout_seconds)
    if call.quote.worst_case.cost_nanos > max_cost_nanos:
        raise InvalidInput("This call may cost more than is left for it.")
    response = forward_on_credits(call, payer)
    content, _ = read_and_close(response, _MAX_BODY_BYTES)
    cost_usd = response.headers.get("X-Cost-Usd")
    # A response that came as a stream is charged at its end.
    cost_nanos = call.quote.worst_case.cost_nanos if cost_usd is None else money.nanos_from_usd(Decimal(cost_usd))
    return response.status_code, content, cost_nanos


def read_and_close(response: Response, most_bytes: int) -> tuple[bytes, bool]:
    """Return the content of a response, and whether it was cut because it is longer."""
    found = bytearray()
    try:
        for piece in response.iter_encoded():
            found += piece
            if len(found) > most_bytes:
                break
    finally:
        response.close()
    return bytes(found[:most_bytes]), len(found) > most_bytes
