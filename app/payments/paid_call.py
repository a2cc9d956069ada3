"""A call that is paid for, from credits or by a payment of its own: lease, settlement with retries, headers.

Credits are held or charged before the call, and settled once on every exit.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from http import HTTPStatus

import structlog
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from app.core import clock, money
from app.core.identifiers import new_ordered_id
from app.credits import holds as credit_holds
from app.credits.holds import HoldResult
from app.db.unit_of_work import CommitUnknownError, striped_lock, unit_of_work
from app.identity.principal import Principal
from app.observability import counters, telemetry
from app.observability.telemetry import Span
from app.payments.x402.gate import PaymentGrant
from app.ports.upstream import RelayOutcome, UpstreamRequest, UpstreamResponse
from app.state import app_state, context_factory
from app.usage.grouped import ResultT, Settlement, Step, StepGroups
from app.usage.service import UsageCall

_log = structlog.get_logger(__name__)
_LEASE_MARGIN = timedelta(seconds=60)
_MAX_RENEWAL_INTERVAL = timedelta(seconds=60)
# As the semantic conventions of OpenTelemetry name them.
_PROVIDERS = {"gemini": "gcp.gemini"}
_RETRY_DELAYS_SECONDS = (1, 3)


class PaidCall(ABC):
    """One forwarded call and what it costs. By default, nothing of the response is changed.

    `begin`; then `on_no_response`, or `on_response_head`, what follows it here, and `end`. The methods after `begin`
    do not raise. Works in any thread, one at a time, even after the request has ended.
    """

    _operation = "call"
    # The response's: its head precedes its end.
    _status: int
    _payment: PaymentGrant | None

    def __init__(self, payer: Principal | PaymentGrant, provider: str, model: str) -> None:
        """Prepare a call that the credits of its caller pay for, or its own payment. Raises: ModelNotAllowed."""
        self.id = new_ordered_id()
        if isinstance(payer, Principal):
            payer.assert_may_call(provider, model)
            self._payment, self._account_id, self.client_id = None, payer.account_id, payer.client_id
            self._call = UsageCall(payer.key_id, provider, model, has_budgets=payer.has_budgets)
        else:
            self._payment, self._account_id, self.client_id = payer, "", payer.payment_id
            self._call = UsageCall("", provider, model)
        self._app_context = context_factory()
        settings = app_state().settings
        max_silence_seconds = settings.upstream_connect_timeout_seconds + settings.upstream_read_timeout_seconds
        # Longer than an upstream may be silent, so that a live call renews it in time.
        self._lease = timedelta(seconds=int(max_silence_seconds)) + _LEASE_MARGIN
        self._renewed_at = clock.now()
        # The charge of the call, the remaining credits, and perhaps what is left of a key's budget, in nano-dollars.
        self._bill: tuple[int, int, int | None] | None = None
        self._is_streaming = False
        self._span: Span | None = None
        self._tokens = (0, 0)

    @abstractmethod
    def begin(self, outgoing: UpstreamRequest) -> UpstreamRequest:
        """Hold or charge the price; return the request to send. Raises: InsufficientCredits, PaymentAlreadyUsed."""

    def on_no_response(self, *, is_upstream_failure: bool) -> None:
        """Release or refund everything: there is no response."""
        self._on_no_response(is_upstream_failure=is_upstream_failure)
        if self._span is not None:
            self._end_span(self._span, "no_response" if is_upstream_failure else "cancelled")

    @abstractmethod
    def _on_no_response(self, *, is_upstream_failure: bool) -> None: ...

    def on_response_head(self, incoming: UpstreamResponse) -> None:
        """Record the status of the response."""
        self._status = incoming.status

    def stream(self) -> None:
        """Record that the response is relayed as it arrives."""
        self._is_streaming = True

    def feed(self, piece: bytes) -> bytes:
        """Process a chunk of the response; return what the client gets of it."""
        return piece

    def finish(self) -> bytes:
        """Return the rest of what the client gets."""
        return b""

    def with_cost(self, rest: bytes) -> bytes:
        """Return the whole response, or the end of a stream, once the call was settled."""
        return rest

    def end(self, ending: RelayOutcome) -> None:
        """Settle the call."""
        self._end(ending)
        if self._bill is not None:
            self._count_revenue(self._bill[0])
        if self._span is not None:
            failed_status = str(self._status) if self._status >= HTTPStatus.BAD_REQUEST else ""
            self._end_span(self._span, failed_status if ending is RelayOutcome.COMPLETE else ending.value)

    @abstractmethod
    def _end(self, ending: RelayOutcome) -> None: ...

    def start_span(self, outgoing: UpstreamRequest, parent: Span | None) -> UpstreamRequest:
        """Start the span of the exchange, if traces are on; return the request with its `traceparent`."""
        self._span = telemetry.start_span(f"{self._operation} {self._call.model}".strip(), "CLIENT", parent=parent)
        return self.traced(outgoing)

    def traced(self, outgoing: UpstreamRequest) -> UpstreamRequest:
        """Return a request with the `traceparent` of the exchange's span, if there is one."""
        if self._span is None:
            return outgoing
        provider, model = self._call.provider, self._call.model
        self._span.set(
            gen_ai__operation__name=self._operation,
            gen_ai__provider__name=_PROVIDERS.get(provider, provider),
            gen_ai__request__model=model,
        )
        kept = [(name, value) for name, value in outgoing.headers if name.lower() not in ("traceparent", "tracestate")]
        return replace(outgoing, headers=(*kept, ("traceparent", self._span.traceparent)))

    def _end_span(self, span: Span, error: str) -> None:
        tokens_in, tokens_out = self._tokens
        span.set(
            gen_ai__usage__input_tokens=tokens_in, gen_ai__usage__output_tokens=tokens_out,
            purser__call_id=self.id, purser__cost_nano_usd=self._bill[0] if self._bill else 0,
        )  # fmt: skip
        span.end(error=error)
        self._span = None

    def headers(self) -> Collection[tuple[str, str]]:
        """Return the headers with the cost, once known, or of the payment; a stream reads them at its start."""
        if self._payment is not None:
            return [*self._payment.headers_for(self._status).items()]
        if self._bill is None:
            return []
        cost_nanos, credits_nanos, budget_nanos = self._bill
        headers = [("X-Cost-Usd", cost_nanos), ("X-Credits-Remaining", credits_nanos)]
        if budget_nanos is not None:
            # A key with limits is shown no more credits than it may spend.
            left_nanos = max(0, budget_nanos)
            headers[1] = "X-Credits-Remaining", min(credits_nanos, left_nanos)
            headers.append(("X-Budget-Remaining-Usd", left_nanos))
        return [(name, money.usd_string(nanos)) for name, nanos in headers]

    @contextmanager
    def _account_unit(self) -> Iterator[Session]:
        """Open a unit of work on the account; calls of one account queue for it."""
        with striped_lock(self._account_id), unit_of_work() as session:
            yield session

    def _run(self, step: Step[ResultT], alone: Callable[[Session], ResultT] | None = None) -> ResultT:
        """Run a step with other calls' steps, or alone. Raises: InsufficientCredits; CommitUnknownError."""
        unknown: CommitUnknownError | None = None
        try:
            result = app_state().part(StepGroups).run(step)
        except CommitUnknownError as error:
            # A step that was done is found by its id, and not repeated.
            result, unknown = None, error
        if result is not None:
            return result
        try:
            with self._account_unit() as session:
                return (alone or step.run)(session)
        except SQLAlchemyError:
            if unknown is not None:
                raise unknown from None
            raise

    def _settle(self, operation: Callable[[Session], HoldResult] | Settlement) -> None:
        """Settle, release or refund in a unit. After the last failed attempt, the lapsed lease charges the estimate."""

        def settled() -> None:
            if isinstance(operation, Settlement):
                outcome = self._run(operation)
                self._tokens = operation.metered.tokens_in, operation.metered.tokens_out
            else:
                with self._account_unit() as session:
                    outcome = operation(session)
            self._bill = outcome.charged_nanos, outcome.credits_nanos, outcome.budget_nanos
            if outcome.unpaid_nanos and not outcome.repeated:
                unpaid_usd = money.usd_string(outcome.unpaid_nanos)
                provider_name = self._call.provider
                _log.warning("call_unpaid", call_id=self.id, provider=provider_name, unpaid_usd=unpaid_usd)
                counters.UNPAID_USD.inc(outcome.unpaid_nanos / money.NANOS_PER_USD)

        self._retry(settled)

    def _mark_served(self, payment: PaymentGrant, record: Callable[[Session], None] | None = None) -> None:
        """Record that the payment's call was served, with retries."""
        if self._retry(lambda: payment.mark_served(record)):
            self._count_revenue(payment.price_nanos)

    def _count_revenue(self, nanos: int) -> None:
        # Without the id of a service.
        counters.REVENUE_USD.labels(self._call.provider.partition(":")[0]).inc(nanos / money.NANOS_PER_USD)

    def _retry(self, operation: Callable[[], None]) -> bool:
        for delay_seconds in (*_RETRY_DELAYS_SECONDS, None):
            try:
                with self._app_context():
                    operation()
            except Exception:
                # The client still gets its response; a settlement is idempotent.
                _log.exception("settlement_failed", call_id=self.id, again=delay_seconds is not None)
                if delay_seconds is not None:
                    time.sleep(delay_seconds)
            else:
                return True
        return False

    def _renew(self) -> None:
        """Renew the lease of the held credits, if it is time to."""
        now = clock.now()
        if self._payment is not None or now - self._renewed_at < min(_MAX_RENEWAL_INTERVAL, self._lease / 3):
            return
        self._renewed_at = now
        try:
            with self._app_context(), unit_of_work() as session:
                credit_holds.renew(session, self.id, lease=self._lease)
        except Exception:
            # The next chunk tries again; a hold that lapses before that is still settled at its actual cost.
            _log.exception("renewal_failed", call_id=self.id)
