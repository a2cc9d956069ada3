"""JSON-RPC 2.0: calls with their results, replies, the table of providers' errors, and the failure of an endpoint.

Codes are shared between meanings (-32005: over the rate limit, a log query that is too wide, a node that is behind;
-32007: over the rate limit, a skipped slot of Solana), so the messages decide.
"""

import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

import structlog
from pydantic import AliasPath, Field

from app.core.foreign import ForeignModel, MalformedResponseError

T = TypeVar("T")

_RATE_LIMIT_CODES = frozenset({429, -32005, -32429})
"""Alchemy and most gateways; Infura and EIP-1474 ("limit exceeded"); Helius."""


class RpcErrorKind(StrEnum):
    """What an endpoint refuses: the values are reasons of failures."""

    RATE_LIMIT = "rate_limited"
    """Any request, for now; it was not executed."""
    UNHEALTHY = "unhealthy"
    """Any request, for now."""
    BATCH_LIMIT = "batch_refused"
    """As many calls, or as long a response, in one HTTP request."""
    CALL = "rpc_error"

    @property
    def is_outage(self) -> bool:
        """Return whether the endpoint should not be used for a while."""
        return self in (RpcErrorKind.RATE_LIMIT, RpcErrorKind.UNHEALTHY)


_TABLE = Path(__file__).with_name("refusals.toml")
_KINDS = [(words, RpcErrorKind(kind)) for words, kind in tomllib.loads(_TABLE.read_text("utf-8"))["kinds"]]


@dataclass(frozen=True, slots=True)
class RpcError:
    """An error object as JSON-RPC 2.0 defines it; `data` is present when a contract reverted."""

    code: int
    message: str
    data: str | None = None

    @property
    def kind(self) -> RpcErrorKind:
        if self.data is not None or "revert" in self.message.lower():
            return RpcErrorKind.CALL  # a contract chose this text
        by_code = RpcErrorKind.RATE_LIMIT if self.code in _RATE_LIMIT_CODES else RpcErrorKind.CALL
        return self.look_up(_KINDS) or by_code

    def look_up(self, table: Iterable[tuple[str, T]]) -> T | None:
        """Return the entry for the first words of a table that the message contains."""
        message = self.message.lower()
        return next((entry for words, entry in table if words in message), None)


def or_none(read: Callable[[object], T]) -> Callable[[object], T | None]:
    return lambda result: None if result is None else read(result)


UNREADABLE = RpcError(0, "unreadable")
"""Represents a result that exceeds the size limit, or does not have the shape that its method promises."""


class _Reply(ForeignModel):
    id: int | None = None


class _ErrorReply(ForeignModel):
    code: int = Field(validation_alias=AliasPath("error", "code"))
    message: str = Field(validation_alias=AliasPath("error", "message"))
    data: Any = Field(None, validation_alias=AliasPath("error", "data"))


def order_replies(replies: Sequence[Any], *, expected: int) -> Sequence[Mapping[str, object]]:
    """Return the replies in the order of the requests; servers may use any. Raises: MalformedResponseError."""
    numbers = [_Reply.read(reply).id for reply in replies[: expected + 1]]
    if numbers == [None] and expected == 1:
        numbers = [0]  # JSON-RPC 2.0 §5: null when the node could not read the request
    found = dict(zip(numbers, replies, strict=False))
    if len(replies) != expected or set(found) != set(range(expected)):
        raise MalformedResponseError("expected one reply per call")
    return [found[number] for number in range(expected)]


def _result_of(reply: Mapping[str, object]) -> object:
    """Return the result, which may be null. Raises: MalformedResponseError."""
    if "result" not in reply:
        raise MalformedResponseError("expected a result")
    return reply["result"]


def error_of(reply: object) -> RpcError:
    """Return the error of a reply, 8 KiB of each text at most. Raises: MalformedResponseError."""
    error = _ErrorReply.read(reply)
    return RpcError(error.code, error.message[:8192], error.data[:8192] if isinstance(error.data, str) else None)


_log = structlog.get_logger(__name__)


@dataclass(eq=False, repr=False)
class EndpointError(Exception):
    """An endpoint gave no usable response; another one may.

    `perhaps_executed` is False only if certainly no node has accepted a transaction of the request. `backs_off`: the
    endpoint should not be used for a while, and not at all for `retry_after_seconds`. `error` is the endpoint's own, if
    it sent one; `doctor` quotes it.
    """

    reason: str
    _: KW_ONLY
    perhaps_executed: bool = True
    backs_off: bool = True
    retry_after_seconds: int = 0
    error: RpcError | None = None

    @classmethod
    def of(cls, error: RpcError, *, retry_after_seconds: int = 0) -> Self:
        return cls(
            error.kind.value,
            perhaps_executed=error.kind is not RpcErrorKind.RATE_LIMIT,
            # After the refusal of one call the endpoint still works for others.
            backs_off=error.kind.is_outage,
            retry_after_seconds=retry_after_seconds,
            error=error,
        )


@dataclass(slots=True, eq=False, repr=False)
class RpcCall(Generic[T]):
    """One call and, once it was run, its result.

    `read` turns the result into a value or raises MalformedResponseError. An error that `tolerates` accepts is stored
    in `error`; any other, and each that does not depend on the call, makes the endpoint fail.
    """

    method: str
    params: Sequence[object]
    _: KW_ONLY
    read: Callable[[object], T]
    tolerates: Callable[[RpcError], bool] | None = None
    tolerates_malformed: bool = False
    """`tolerates` decides on a malformed result, too, as UNREADABLE."""
    error: RpcError | None = field(default=None, init=False)
    _answers: list[T] = field(default_factory=list, init=False)

    @property
    def sends(self) -> bool:
        return self.method in {"eth_sendRawTransaction", "sendTransaction"}

    @property
    def result(self) -> T:
        """Return the result of a call that was run and has no `error`."""
        return self._answers[0]

    @property
    def result_or_none(self) -> T | None:
        """Return the result of a call that was run, or None if it has an `error`."""
        return self._answers[0] if self._answers else None

    def set_reply(self, reply: Mapping[str, object]) -> None:
        """Store a reply. Raises: EndpointError for a malformed one that is not tolerated."""
        self.error, self._answers = None, []
        try:
            if reply.get("error") is not None:
                self.error = error_of(reply)
            else:
                self._answers = [self.read(_result_of(reply))]
        except MalformedResponseError as malformed:
            if not self.tolerates_malformed:
                raise EndpointError("unexpected_answer") from None
            self.set_unreadable(str(malformed))

    def set_unreadable(self, reason: str) -> None:
        """Store that the response cannot be used. Raises: EndpointError if that is not tolerated."""
        if self.tolerates is None or not self.tolerates(UNREADABLE):
            raise EndpointError("unexpected_answer")
        _log.warning("rpc_response_invalid", request=self.method, reason=reason)
        self.error, self._answers = UNREADABLE, []

    def assert_tolerated(self, *, retry_after_seconds: int = 0) -> None:
        """Fail unless the call has a result or a tolerated error. Raises: EndpointError."""
        if self.error is None:
            return
        is_tolerated = self.tolerates is not None and self.tolerates(self.error)
        if self.error.kind.is_outage or not is_tolerated:
            raise EndpointError.of(self.error, retry_after_seconds=retry_after_seconds)


def accept_any_error(_error: RpcError) -> bool:
    return True
