"""The money of one forwarded call: taken before it, settled once on every way out of it.

A call of unknown cost holds its worst case under a lease that a live answer renews; a fixed price is charged
beforehand and given back. Whoever gets a failure instead of the upstream's answer pays nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from http import HTTPStatus

import structlog

from app.core import clock, money
from app.credits import service as credits_service
from app.errors import InsufficientCredits
from app.gateway.dialects.answers import Answer
from app.gateway.dialects.facts import CallFacts
from app.gateway.pricing import Quote, TokenPrices
from app.gateway.providers import Provider
from app.identity.caller import Caller
from app.payments.desk import Ticket
from app.ports import provider as ports
from app.ports.upstream import Incoming
from app.usage import service as usage
from app.usage.metering import MeteredCall, refuse_empty
from app.usage.service import Call
from app.web.forwarding import Ending

_log = structlog.get_logger(__name__)
# The operator's fault, not the caller's: the credential, its funds, its rate.
_OPERATORS_FAULT = frozenset(
    {
        HTTPStatus.UNAUTHORIZED,
        HTTPStatus.PAYMENT_REQUIRED,
        HTTPStatus.FORBIDDEN,
        HTTPStatus.TOO_MANY_REQUESTS,
    }
)


class Meter(MeteredCall, ABC):
    """Watches one call: `begin`; then `unanswered`, or `answered`, `feed`, `finish` and `end`."""

    def __init__(self, row: Provider, caller: Caller | None, quote: Quote) -> None:
        """Take who pays for which call; nobody by an account where a payment does."""
        call = Call(caller.key_id if caller else "", row.slug, quote.model)
        super().__init__(caller.account_id if caller else "", call)
        self._quote = quote
        self._status = 0
        self._is_streaming = False

    @property
    def is_streamed(self) -> bool:
        """Tell whether the answer is expected piece by piece."""
        return False

    @abstractmethod
    def begin(self) -> None:
        """Take the money for the call. Raises: InsufficientCredits."""

    def unanswered(self, *, counts: bool) -> None:
        """Give everything back, whosever fault it is that there is no answer."""
        del counts
        self.cancel()

    @abstractmethod
    def cancel(self) -> None:
        """Give everything back, because the caller gets no answer."""

    def answered(self, incoming: Incoming) -> None:
        """Learn the head of the answer."""
        self._status = incoming.status
        if incoming.status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.PAYMENT_REQUIRED}:
            _log.error("provider_refuses_us", provider=self._call.provider, status=incoming.status)

    def feed(self, piece: bytes) -> bytes:
        """See a piece of the answer; return what the caller gets of it."""
        return piece

    def finish(self) -> bytes:
        """Return what is left for the caller."""
        return b""

    @abstractmethod
    def end(self, ending: Ending) -> None:
        """Settle the call."""

    def stream(self) -> None:
        """Learn that the answer is passed on as it arrives."""
        self._is_streaming = True

    def _is_unseen(self, ending: Ending) -> bool:
        """Tell whether the caller gets a failure in place of an answer that broke off before it was passed on."""
        return ending is not Ending.COMPLETE and not self._is_streaming

    def _has_failed(self, ending: Ending) -> bool:
        """Tell whether the caller got nothing of its own: no answer, an upstream's failure or the operator's."""
        return (
            self._is_unseen(ending)
            or self._status >= HTTPStatus.INTERNAL_SERVER_ERROR
            or self._status in _OPERATORS_FAULT
        )


class FixedMeter(Meter):
    """A call whose price is known: charged in one unit before it, given back when it fails."""

    def begin(self) -> None:
        """Charge the price. Raises: InsufficientCredits."""
        with self._unit():
            receipt = usage.charge(self._account_id, self._call, charge_id=self.id, metered=self._quote.worst)
            if not receipt.charged_nanos:
                refuse_empty(receipt.balance)
        self._billed(receipt)

    def cancel(self) -> None:
        """Give the price back."""

        def refund() -> None:
            usage.refund(self.id)

        self._settle(refund)

    def end(self, ending: Ending) -> None:
        """Keep the price for an answer that is the caller's: below 500, and no refusal of the operator."""
        if self._has_failed(ending):
            self.cancel()


class PaidMeter(Meter):
    """A call that a payment of its own pays for: served on a ticket, which is good again when it fails."""

    def __init__(self, row: Provider, quote: Quote, ticket: Ticket, *, is_streamed: bool) -> None:
        """Take the ticket."""
        super().__init__(row, None, quote)
        self._ticket = ticket
        self._streams = is_streamed
        self._has_passed = False

    @property
    def is_streamed(self) -> bool:
        """Tell whether the request asks for a stream."""
        return self._streams

    def begin(self) -> None:
        """Use a try of the ticket up. Raises: PaymentAlreadyUsed."""
        self._ticket.begin()

    def cancel(self) -> None:
        """Make the ticket good again."""
        self._keep_trying(self._ticket.give_back)

    def feed(self, piece: bytes) -> bytes:
        """Note that something of the answer is passed on."""
        self._has_passed = self._has_passed or bool(piece)
        return piece

    def end(self, ending: Ending) -> None:
        """Keep the payment for an answer that is the caller's, whole or in part."""
        # A stream of which nothing came served nobody; a caller who left may have had what it wanted.
        came_to_nothing = ending in {Ending.BROKEN, Ending.TIMEOUT} and not self._has_passed
        failed = came_to_nothing or self._has_failed(ending)
        self._keep_trying(self._ticket.give_back if failed else self._ticket.finish)

    def headers(self) -> Collection[tuple[str, str]]:
        """Return how the payment was settled, for clients of the standard."""
        return [*super().headers(), *self._ticket.headers.items()]


class HeldMeter(Meter):
    """A call whose cost the answer tells: its worst case is held, and settled to what it was."""

    def __init__(
        self,
        row: Provider,
        caller: Caller,
        quote: Quote,
        *,
        prices: TokenPrices,
        facts: CallFacts,
    ) -> None:
        """Take what reads and prices the answer."""
        super().__init__(row, caller, quote)
        self._prices = prices
        self._facts = facts
        self._answer: Answer | None = None
        self._most_nanos = money.nanos_from_usd(ports.settings().gateway_max_call_usd)

    @property
    def is_streamed(self) -> bool:
        """Tell whether the request asks for a stream."""
        return self._facts.is_streamed

    def begin(self) -> None:
        """Hold the worst case. Raises: InsufficientCredits with what would be affordable."""
        try:
            with self._unit():
                if not self._quote.minimum_nanos:
                    refuse_empty(credits_service.balance(self._account_id))
                usage.begin(
                    self._account_id,
                    self._call,
                    hold_id=self.id,
                    worst=self._quote.worst,
                    estimate=self._quote.estimate,
                    lease=self._lease,
                    at_least_nanos=self._quote.minimum_nanos,
                )
        except InsufficientCredits as refusal:
            raise self._explained(refusal) from None

    def cancel(self) -> None:
        """Release the hold."""

        def release() -> None:
            usage.cancel(self.id)

        self._settle(release)

    def answered(self, incoming: Incoming) -> None:
        """Begin to read the usage."""
        super().answered(incoming)
        named = {name.lower(): value for name, value in incoming.headers}
        self._answer = Answer(
            self._facts,
            status=incoming.status,
            content_type=named.get("content-type"),
            content_encoding=named.get("content-encoding"),
        )

    def feed(self, piece: bytes) -> bytes:
        """Read a piece, and show that the call lives."""
        self._renew()
        return self._answer.feed(piece) if self._answer is not None else piece

    def finish(self) -> bytes:
        """Return what was kept back to be read."""
        return self._answer.flush() if self._answer is not None else b""

    def end(self, ending: Ending) -> None:
        """Charge what the answer told, or what is likely; nothing where the caller gets a failure of ours."""
        if self._answer is None or self._is_unseen(ending):
            self.cancel()
            return
        try:
            reading = self._answer.finish(is_broken=ending is not Ending.COMPLETE)
            metered = self._prices.settle(self._facts, reading, clock.now(), most_nanos=self._most_nanos)
        except Exception:
            # The caller has its answer; the end of the lease charges the estimate.
            _log.exception("pricing_failed", call_id=self.id)
            return
        if metered.price_version is None:
            self.cancel()
            return
        self._settle(lambda: usage.record(self.id, metered))

    def _explained(self, refusal: InsufficientCredits) -> InsufficientCredits:
        affordable = self._quote.affordable(money.nanos_from_usd(refusal.details["credits_usd"]))
        if not affordable:
            return refusal
        fitting = affordable["affordable_max_tokens"]
        mend = f"with max_tokens of {fitting} there are" if fitting else "not even for its input"
        message = f"There are not enough credits left for this call; {mend}."
        return InsufficientCredits(message, details={**refusal.details, **affordable})
