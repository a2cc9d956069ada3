"""What a response means: its content, its error, and whether the request is sent again."""

from __future__ import annotations

import random
from typing import Any

import httpx

from purser import errors

_LONGEST_PAUSE = 60.0
# With these codes the service has done nothing.
_REFUSED = frozenset({"RATE_LIMITED", "OVERLOADED", "STARTING"})
_NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)


def content_of(response: httpx.Response) -> Any:
    kind = response.headers.get("Content-Type", "")
    if "json" in kind:
        return response.json()
    return response.text if kind.startswith("text/") else response.content


def error_of(response: httpx.Response) -> errors.PurserError:
    try:
        parsed = response.json()
    except ValueError:
        parsed = None
    body: dict[str, Any] = parsed if isinstance(parsed, dict) else {}
    status, code = response.status_code, str(body.get("code") or "")
    other = errors.ServerError if httpx.codes.is_server_error(status) else errors.ValidationError
    found = errors.BY_STATUS.get(status, other)
    if code.endswith("_FAILED"):
        found = errors.MovementFailed
    elif code.endswith("_LIMIT_EXCEEDED"):
        found = errors.LimitExceeded
    message, waited = body.get("error"), response.headers.get("Retry-After", "")
    return found(
        message if isinstance(message, str) else f"HTTP {status}", code=code, status=status, body=body,
        retry_after=float(waited) if waited.isdecimal() else None, receipt=response.headers.get("X-Receipt"),
    )  # fmt: skip


def pause_before_retry(error: errors.PurserError, attempt: int, *, is_repeatable: bool) -> float | None:
    """Return after how many seconds to send the same request again, or None.

    A request that is not repeatable is sent again only if the service certainly did nothing with it.
    """
    is_refused = isinstance(error.__cause__, _NOT_SENT) or error.code in _REFUSED
    states_when = error.status in {409, 429, 503} and error.retry_after is not None
    is_of_proxy = error.status in {429, 502, 503, 504} and not error.code
    is_transient = is_of_proxy or isinstance(error, errors.ConnectionFailed)
    if not (is_refused or (is_repeatable and (states_when or is_transient))):
        return None
    growing = min(8.0, 0.25 * 2**attempt) * (1 + random.random())  # noqa: S311
    pause = growing if error.retry_after is None else error.retry_after
    return pause if pause <= _LONGEST_PAUSE else None
