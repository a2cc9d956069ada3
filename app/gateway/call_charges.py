"""Metering of one gateway call: money is held before it, and settled once on every exit.

A call of unknown cost holds its worst case under a lease that a running response renews; another holds its price. A
client that gets a failure instead of the upstream's response pays nothing.
"""

import re
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from http import HTTPStatus
from typing import Any

import structlog
from sqlalchemy.orm import Session

from app.core import clock, money
from app.errors import BudgetExceeded, InsufficientCredits
from app.gateway.dialects.request import injection
from app.gateway.dialects.request.cost_params import CostParams, Surface
from app.gateway.dialects.response.response_reader import ResponseReader, parse_object
from app.gateway.pricing.quotes import ESTIMATED, CallQuote
from app.identity import limits
from app.identity.principal import KeyKind, Principal
from app.payments.paid_call import PaidCall
from app.payments.x402 import gate
from app.payments.x402.gate import PaymentGrant
from app.ports.upstream import RelayOutcome, UpstreamRequest, UpstreamResponse
from app.state import app_state
from app.usage import service as usage
from app.usage.grouped import Hold, Settlement

MAX_BYTES = 1024 * 1024
_LIMITED = frozenset({"429", "-32429", "RATE_LIMITED", "RESOURCE_EXHAUSTED"})
_CODES = ("code", "error_code", "status", "statusCode", "status_code")
# Servers of JSON-RPC also use general codes (-32000, -32005, -32016), or none, with one of these messages.
_MESSAGE = re.compile(
    r"compute units per second|rate.?limit|too many requests|request limit|per second|capacity limit"
    r"|\A(?:request )?limit exceeded\W*\Z",
    re.IGNORECASE,
)
# A client chooses why its own contract reverts.
_EXECUTION = re.compile(r"revert|execut|simulat|instruction|transaction|require", re.IGNORECASE)
_EXECUTION_CODES = frozenset({3, -32015})
_HINTS = (b"error", b":429", b": 429", b'"429"')
# As the semantic conventions of OpenTelemetry name them.
_OPERATIONS = {
    Surface.CHAT: "chat", Surface.RESPONSES: "chat", Surface.MESSAGES: "chat", Surface.COMPLETIONS: "text_completion",
    Surface.GENERATE: "generate_content", Surface.EMBEDDINGS: "embeddings", Surface.EMBED_CONTENT: "embeddings",
}  # fmt: skip
_log = structlog.get_logger(__name__)
# Statuses caused by the operator's credential, its funds or its rate limit, not by the client.
_OPERATOR_ERRORS = frozenset(
    {HTTPStatus.UNAUTHORIZED, HTTPStatus.PAYMENT_REQUIRED, HTTPStatus.FORBIDDEN, HTTPStatus.TOO_MANY_REQUESTS}
)
_UPSTREAM_FAILURES = frozenset({RelayOutcome.TRUNCATED, RelayOutcome.TIMEOUT})


def _is_limited(answer: Any) -> bool:
    if not isinstance(answer, dict) or answer.get("result") is not None:
        return False
    error = answer.get("error")
    holders = [each for each in (answer, error, answer.get("status")) if isinstance(each, dict)]
    codes = [each[name] for each in holders for name in _CODES if isinstance(each.get(name), int | str)]
    if any(str(code) in _LIMITED for code in codes):
        return True
    message = error.get("message") if isinstance(error, dict) else error
    if not isinstance(message, str) or (isinstance(error, dict) and error.get("code") in _EXECUTION_CODES):
        return False
    return bool(_MESSAGE.search(message)) and not _EXECUTION.search(message)


# A setting, which three steps of a call convert.
_remembered_nanos = lru_cache(maxsize=16)(money.nanos_from_usd)


def max_call_nanos() -> int:
    return _remembered_nanos(app_state().settings.gateway_max_call_usd)


def models_of(params: CostParams | None) -> Iterator[str]:
    """Yield the models that may be billed besides the one that a request asks for."""
    if params is not None:
        yield from params.alternatives
        image = () if params.tools.image is None else (params.tools.image,)
        yield from (each.model for each in (*image, *params.tools.sub_calls))


class GatewayCharge(PaidCall):
    """The price of one call of a provider."""

    def __init__(
        self, payer: Principal | PaymentGrant, provider: str, quote: CallQuote, params: CostParams | None
    ) -> None:
        super().__init__(payer, provider, quote.model)
        if isinstance(payer, Principal):
            for model in models_of(params):
                payer.assert_may_call(provider, model)
            is_limited = params is not None and not params.is_output_unbounded
            limits.count_tokens(payer, quote.estimate.tokens_in + (quote.worst_case.tokens_out if is_limited else 0))
        self.params = params
        self._quote = quote
        self._operation = _OPERATIONS.get(params.surface, "call") if params is not None else "call"

    @property
    def is_streamed(self) -> bool:
        return self.params is not None and self.params.is_streamed

    def headers(self) -> Collection[tuple[str, str]]:
        applied = self.params.applied_limits if self.params is not None else {}
        found = [(f"X-{name.replace('_', '-').title()}-Applied", number) for name, number in applied.items()]
        return [*super().headers(), *found]

    def _on_no_response(self, *, is_upstream_failure: bool) -> None:
        del is_upstream_failure
        self.cancel()

    def cancel(self) -> None:
        """Release or refund everything: the client gets no response."""
        self._settle(lambda session: usage.cancel(session, self.id))

    def _is_undelivered(self, ending: RelayOutcome) -> bool:
        """Return whether the response broke off before any of it was relayed, so that the client gets a failure."""
        return ending is not RelayOutcome.COMPLETE and not self._is_streaming


class FixedCharge(GatewayCharge):
    """A known price: held before the call, charged unless it fails. A payment can then be used again.

    A small response is kept until its end, to be searched for a rate limit. A stream is charged for its head.
    """

    _kept: bytearray
    _size = 0

    def begin(self, outgoing: UpstreamRequest) -> UpstreamRequest:
        """Hold the price, or start an attempt with the payment. Raises: InsufficientCredits, PaymentAlreadyUsed.

        A process that dies keeps the price: the lease, which nothing renews, charges the same.
        """
        self._kept = bytearray()
        if self._payment is not None:
            self._payment.start_attempt()
            return outgoing
        price = self._quote.worst_case
        self._run(Hold(self.id, self._account_id, self._call, price.cost_nanos, price, self._lease))
        return outgoing

    def cancel(self) -> None:
        if self._payment is not None:
            self._retry(self._payment.release)
        else:
            super().cancel()

    def stream(self) -> None:
        """Settle a stream that credits pay for: its price is due with its head, which states it."""
        super().stream()
        if self._payment is None:
            self._settle_price(1, 0)

    def feed(self, piece: bytes) -> bytes:
        self._size += len(piece)
        if self._size <= MAX_BYTES:
            self._kept += piece
        return piece

    def _end(self, ending: RelayOutcome) -> None:
        # A client that disconnected may have received what it wanted; a stream that broke off empty served nothing.
        is_empty = ending in _UPSTREAM_FAILURES and not self._size
        if self._payment is None and self._is_streaming:
            if is_empty:
                self._settle(lambda session: usage.refund(session, self.id))
        elif self._is_undelivered(ending) or is_empty:
            self.cancel()
        else:
            self._settle_price(*self._limited_calls())

    def _settle_price(self, answers: int, limited: int) -> None:
        """Charge the price; nothing for a failure of the upstream or the operator, or for calls that were limited."""
        price = self._quote.worst_case
        if self._status >= HTTPStatus.INTERNAL_SERVER_ERROR or self._status in _OPERATOR_ERRORS or answers == limited:
            self.cancel()
        elif self._payment is not None:
            self._mark_served(self._payment)
        else:
            if limited:
                # Which calls they answer is not looked up: the cheapest are free.
                price = price._replace(cost_nanos=sum(sorted(self._quote.call_nanos)[limited:]))
            self._settle(Settlement(self.id, self._account_id, self._call, price))

    def _limited_calls(self) -> tuple[int, int]:
        """Return how many answers a small JSON response has, and how many of them report a rate limit."""
        if self._size > MAX_BYTES or not any(hint in self._kept for hint in _HINTS):
            return 1, 0
        parsed = parse_object(bytes(self._kept))
        answers = parsed if isinstance(parsed, list) and parsed else [parsed]
        return len(answers), sum(_is_limited(each) for each in answers)


class HeldCharge(GatewayCharge):
    """A cost that the response states: the worst case is held, then settled to the actual cost.

    The output is bounded to what the hold pays for, so that no more is delivered than can be charged.
    """

    params: CostParams

    def __init__(self, caller: Principal, provider: str, quote: CallQuote, params: CostParams | None) -> None:
        if quote.rule is None or params is None:
            raise LookupError("a call without a rule for its response has a fixed price")
        super().__init__(caller, provider, quote, params)
        self._rule = quote.rule
        self._reader: ResponseReader | None = None
        self._max_nanos = self._held_nanos = max_call_nanos()

    def begin(self, outgoing: UpstreamRequest) -> UpstreamRequest:
        """Hold what the call may cost, or all credits left, and lower its limits to what the hold covers.

        Raises: InsufficientCredits with what would be affordable.
        """
        try:
            held_nanos = self._held_nanos = self._hold_credits()
        except InsufficientCredits as refusal:
            left_nanos = money.nanos_from_usd(refusal.details["credits_usd"])
            self._quote = self._quote.within(left_nanos, clock.now())
            self.params = self._quote.params or self.params
            try:
                held_nanos = self._hold_credits()
            except InsufficientCredits as final_refusal:
                raise self._with_affordable_output(final_refusal) from None
            outgoing = replace(outgoing, body=self.params.body)
        bound = self._quote.output_bound(held_nanos)
        if bound is None:
            return outgoing
        try:
            self.params = injection.limit_output(self.params, bound)
        except BaseException:
            self.cancel()
            raise
        return replace(outgoing, body=self.params.body)

    def on_response_head(self, incoming: UpstreamResponse) -> None:
        super().on_response_head(incoming)
        self._reader = ResponseReader(self.params, incoming)

    def feed(self, piece: bytes) -> bytes:
        self._renew()
        return self._reader.feed(piece) if self._reader is not None else piece

    def finish(self) -> bytes:
        return self._reader.flush() if self._reader is not None else b""

    def _end(self, ending: RelayOutcome) -> None:
        """Charge the reported usage, or an estimate if there is none; nothing if the client gets our own error."""
        if self._reader is None or self._is_undelivered(ending):
            self.cancel()
            return
        try:
            reading = self._reader.finish(is_broken=ending is not RelayOutcome.COMPLETE)
            if ending is RelayOutcome.CLIENT_DISCONNECTED:
                # It left before the first word: the provider charges for the input.
                reading = reading._replace(is_blank=False)
            if ending in _UPSTREAM_FAILURES and reading.usage is None:
                # The charge is that of a stream which ends with an error, but for its content.
                has_failed = reading.has_failed or not (reading.has_content or reading.bytes_unread)
                reading = reading._replace(has_failed=has_failed)
            metered = self._rule.settle(self.params, reading, clock.now())
        except Exception:
            # The client has its response; when the lease ends, the estimate is charged.
            _log.exception("pricing_failed", call_id=self.id)
            return
        if metered.price_version is None:
            self.cancel()
            return
        is_estimated = metered.price_version.endswith(ESTIMATED)
        max_nanos = min(self._max_nanos, self._held_nanos) if is_estimated else self._max_nanos
        if metered.cost_nanos > max_nanos:
            metered = metered._replace(cost_nanos=max_nanos)
        self._settle(Settlement(self.id, self._account_id, self._call, metered))

    def _hold_credits(self) -> int:
        """Hold the cost of the request as sent, its bounded worst case or what is left, in this order."""
        quote = self._quote
        limits = sorted({quote.unbounded_nanos, quote.worst_case.cost_nanos}, reverse=True)
        nanos = [min(limit, self._max_nanos) for limit in limits if limit >= quote.worst_case.cost_nanos]
        steps = [Hold(self.id, self._account_id, self._call, each, quote.estimate, self._lease) for each in nanos]

        def alone(session: Session) -> int:
            for step in steps[:-1]:
                with suppress(InsufficientCredits):
                    return step.run(session)
            return steps[-1].run(session, minimum_nanos=quote.minimum_nanos)

        return self._run(steps[0], alone)

    def _with_affordable_output(self, refusal: InsufficientCredits) -> InsufficientCredits:
        affordable = self._quote.affordable(money.nanos_from_usd(refusal.details["credits_usd"]))
        if not affordable:
            return refusal
        affordable_tokens = affordable["affordable_max_tokens"]
        advice = (
            f"Limit its output to {affordable_tokens} tokens, and a thinking budget to less."
            if affordable_tokens
            else "What is left does not even cover its input."
        )
        lack = "The credits left do"
        if isinstance(refusal, BudgetExceeded):
            shared = refusal.details.get("budget")
            lack = "The budget of this key does" if shared is None else f"The shared budget {shared!r} does"
        message = f"{lack} not cover this call. {advice}"
        return type(refusal)(message, details={**refusal.details, **affordable})


class MeteredCharge(HeldCharge):
    """The cost of a call that is paid for, once it is known, by a payment that states a maximum."""

    def __init__(self, grant: PaymentGrant, provider: str, quote: CallQuote, params: CostParams | None) -> None:
        # The holder of the payment's account, which no key and no agent has.
        holder = Principal(KeyKind.GATEWAY, grant.payment_id, grant.payment_id, agent_id=None)
        super().__init__(holder, provider, quote, params)
        self._grant = grant

    def _hold_credits(self) -> int:
        """Hold all that the payment states: no other call is on its account, and no key."""
        with self._account_unit() as session:
            return usage.begin(
                session, self._account_id, self._call, hold_id=self.id, nanos=self._max_nanos,
                estimate=self._quote.estimate, lease=self._lease, minimum_nanos=self._quote.minimum_nanos,
            )  # fmt: skip

    def headers(self) -> Collection[tuple[str, str]]:
        """Return the cost and, for what is not a stream, the receipt."""
        kept = (each for each in super().headers() if each[0] != "X-Credits-Remaining")
        return [*kept, *self._grant.headers_for(self._status).items()]

    def _on_no_response(self, *, is_upstream_failure: bool) -> None:
        super()._on_no_response(is_upstream_failure=is_upstream_failure)
        self.collect()

    def _end(self, ending: RelayOutcome) -> None:
        super()._end(ending)
        self.collect()

    def collect(self) -> None:
        """Submit what the call has cost; wait for it to land unless the response is a stream. Workers try again."""
        try:
            with self._app_context():
                self._grant = gate.settle_metered(self._grant, waits=not self._is_streaming)
        except Exception:
            _log.exception("metered_settlement_failed", payment_id=self._grant.payment_id)
