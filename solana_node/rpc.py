"""JSON-RPC 2.0: from a decoded request body to a response body, batches included; independent of transport."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Final

from solana_node.chain import Chain
from solana_node.errors import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    InvalidParamsError,
    JsonObject,
    RpcError,
)
from solana_node.methods import accounts, cluster, control, sending, transactions

METHODS: Final[dict[str, Callable[..., object]]] = {
    **cluster.METHODS,
    **accounts.METHODS,
    **sending.METHODS,
    **transactions.METHODS,
    **control.METHODS,
}
_SIGNATURES: Final = {name: inspect.signature(method) for name, method in METHODS.items()}


def call(chain: Chain, method: str, params: Sequence[object] = ()) -> Any:
    """Execute one method on the current chain.

    Raises:
        RpcError: by the method, or the method or its parameters are unknown.
    """
    if method not in METHODS:
        raise RpcError(METHOD_NOT_FOUND, "Method not found")
    try:
        bound = _SIGNATURES[method].bind(chain, *params)
    except TypeError as error:
        raise InvalidParamsError(f"Invalid params: {error}") from None
    with chain.locked():
        return METHODS[method](*bound.args)


def methods_in(body: object) -> list[str]:
    """Return the methods in a request body, single or batch."""
    requests = body if isinstance(body, list) else [body]
    return [str(request.get("method")) for request in requests if isinstance(request, dict)]


def answer(chain: Chain, body: object) -> JsonObject | list[JsonObject]:
    """Return the response to a decoded request body, single or batch. Never raises."""
    if isinstance(body, list):
        # All in one slot: clients treat responses many slots apart as those of different nodes.
        with chain.locked():
            answers = [_answer_one(chain, request) for request in body]
        return answers or _error(None, INVALID_REQUEST, "Invalid request")
    return _answer_one(chain, body)


def _answer_one(chain: Chain, request: object) -> JsonObject:
    if not isinstance(request, dict):
        return _error(None, INVALID_REQUEST, "Invalid request")
    request_id, method = request.get("id"), request.get("method")
    params = request.get("params") or []
    if request.get("jsonrpc") != "2.0" or not isinstance(method, str) or not isinstance(params, list):
        return _error(request_id, INVALID_REQUEST, "Invalid request")
    try:
        return {"jsonrpc": "2.0", "result": call(chain, method, params), "id": request_id}
    except RpcError as error:
        return {"jsonrpc": "2.0", "error": error.body, "id": request_id}
    except Exception as error:  # any failure by a malformed parameter is returned
        return _error(request_id, INTERNAL_ERROR, f"Internal error: {type(error).__name__}: {error}")


def _error(request_id: object, code: int, message: str) -> JsonObject:
    return {"jsonrpc": "2.0", "error": {"code": code, "message": message}, "id": request_id}
