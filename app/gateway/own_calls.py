"""Calls that the service itself makes through the gateway for an account: validated, priced and charged as its own."""

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from werkzeug.test import EnvironBuilder
from werkzeug.wrappers import Response

from app.core import money
from app.errors import InvalidInput, ProviderNotConfigured
from app.gateway.call import GatewayCall, forward_on_credits
from app.gateway.dialects.request.cost_params import Surface
from app.gateway.providers.table import Provider, ProviderTable
from app.identity.principal import Principal
from app.payments.x402 import guard
from app.state import app_state
from app.web.client_request import ClientRequest

_MAX_BODY_BYTES = 64 * 1024
# Where providers have the chat completions of OpenAI's API, below their base URLs.
_CHAT_PATHS = ("chat/completions", "v1/chat/completions", "v1beta/openai/chat/completions")


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
    slug, _, name = model.partition("/")
    provider = app_state().part(ProviderTable).find(slug)
    if not provider.is_configured:
        raise ProviderNotConfigured
    builder = EnvironBuilder(f"/v1/gateway/{slug}/{_chat_path(provider)}", method="POST", json={**body, "model": name})
    request = ClientRequest(builder.get_environ())
    call = GatewayCall(request, provider, slug, guard.payable(request), _MAX_BODY_BYTES, timeout_seconds)
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


def _chat_path(provider: Provider) -> str:
    """Return the path of the provider's chat completions. Raises: InvalidInput if it has none."""
    for path in _CHAT_PATHS:
        for route in provider.routes:
            if route.surface is Surface.CHAT and route.method == "POST" and route.path.regex.fullmatch(path):
                return path
    raise InvalidInput(f"{provider.slug} has no chat completions.")
