"""JSON-RPC 2.0: from a decoded request body to a response body, batches included. Knows no transport."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Final

from sandbox.solana.chain import Chain
from sandbox.solana.errors import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    InvalidParamsError,
    JsonObject,
    RpcError,
)
from sandbox.solana.methods import accounts, cluster, control, landed, sending

METHODS: Final[dict[str, Callable[..., object]]] = {
    **cluster.METHODS,
    **accounts.METHODS,
    **sending.METHODS,
    **landed.METHODS,
    **control.METHODS,
}
_SIGNATURES: Final = {name: inspect.signature(method) for name, method in METHODS.items()}


def call(chain: Chain, method: str, params: Sequence[object] = ()) -> Any:
    """Carry out one method at the present moment of the chain.

    Raises:
        RpcError: as the method's own, and for a method or parameters that do not exist.
    """
    if method not in METHODS:
        raise RpcError(METHOD_NOT_FOUND, "Method not found")
    try:
        bound = _SIGNATURES[method].bind(chain, *params)
    except TypeError as error:
        raise InvalidParamsError(f"Invalid params: {error}") from None
    with chain.current():
        return METHODS[method](*bound.args)


def methods_in(body: object) -> list[str]:
    """List the methods a request body names, one or a batch."""
    requests = body if isinstance(body, list) else [body]
    return [str(request.get("method")) for request in requests if isinstance(request, dict)]


def answer(chain: Chain, body: object) -> JsonObject | list[JsonObject]:
    """Answer a decoded request body, one or a batch. Never raises: a node answers, it does not die."""
    if isinstance(body, list):
        return [_answer_one(chain, request) for request in body] or _error(
            None, INVALID_REQUEST, "Invalid request"
        )
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
    except Exception as error:  # whatever a malformed parameter broke, the caller hears of it
        return _error(request_id, INTERNAL_ERROR, f"Internal error: {type(error).__name__}: {error}")


def _error(request_id: object, code: int, message: str) -> JsonObject:
    return {"jsonrpc": "2.0", "error": {"code": code, "message": message}, "id": request_id}
