"""Calls that the service itself makes through the gateway for an account: validated, priced and charged as its own."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
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


@dataclass(frozen=True, slots=True)
class ChatResult:
    """The response of a chat completion, and what was charged for it."""

    status: int
    body: bytes
    cost_nanos: int


def chat(
    payer: Principal, model: str, body: Mapping[str, Any], *, max_cost_nanos: int, timeout_seconds: int
) -> ChatResult:
    """Complete a chat with `provider/model`, charged to an account's credits.

    Raises: InvalidInput if it may cost more than `max_cost_nanos`; ServiceError, as `call.forward` does.
    """
    builder = EnvironBuilder("/v1/chat/completions", method="POST", json={**body, "model": model})
    first = candidates(ClientRequest(builder.get_environ()), Surface.CHAT)[0]
    call = replace(first, max_bytes=_MAX_BODY_BYTES, timeout_seconds=timeout_seconds)
    if call.quote.worst_case.cost_nanos > max_cost_nanos:
        raise InvalidInput("This call may cost more than is left for it.")
    response = forward_on_credits(call, payer)
    try:
        content = _read(response)
    finally:
        response.close()
    cost_usd = response.headers.get("X-Cost-Usd")
    # A response that came as a stream is charged at its end.
    cost_nanos = call.quote.worst_case.cost_nanos if cost_usd is None else money.nanos_from_usd(Decimal(cost_usd))
    return ChatResult(response.status_code, content, cost_nanos)


def _read(response: Response) -> bytes:
    """Return a response, cut where it is longer than any that is of use."""
    content = b""
    for piece in response.iter_encoded():
        content += piece
        if len(content) > _MAX_BODY_BYTES:
            break
    return content[:_MAX_BODY_BYTES]
