"""JSON-RPC calls with their results, and the failure of an endpoint to answer them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Generic, Self, TypeVar

import structlog

from app.adapters.jsonrpc.replies import UNREADABLE, RpcError, RpcErrorKind, error_of, result_of
from app.core.foreign import MalformedResponseError

T = TypeVar("T")

_SENDS = frozenset({"eth_sendRawTransaction", "sendTransaction"})
_log = structlog.get_logger(__name__)


class EndpointError(Exception):
    """An endpoint gave no usable response; another one may.

    `perhaps_executed` is False only if certainly no node has accepted a transaction of the request. `backs_off`: the
    endpoint should not be used for a while, and not at all for `retry_after_seconds`.
    """

    def __init__(
        self, reason: str, *, perhaps_executed: bool = True, backs_off: bool = True, retry_after_seconds: int = 0
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.perhaps_executed = perhaps_executed
        self.backs_off = backs_off
        self.retry_after_seconds = retry_after_seconds

    @classmethod
    def of(cls, error: RpcError, *, retry_after_seconds: int = 0) -> Self:
        return cls(
            error.kind.value,
            perhaps_executed=error.kind is not RpcErrorKind.RATE_LIMIT,
            # After the refusal of one call the endpoint still works for others.
            backs_off=error.kind.is_outage,
            retry_after_seconds=retry_after_seconds,
        )


class WrongChainError(EndpointError):
    def __init__(self) -> None:
        super().__init__("wrong_chain", perhaps_executed=False)


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
        return self.method in _SENDS

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
            if reply.get("error") is None:
                self._answers = [self.read(result_of(reply))]
            else:
                self.error = error_of(reply)
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
