"""The charge of one proxied call: held or paid before it, captured exactly once after the response.

On credits, hold and charge are two units, so that a process that dies between them has charged nothing: the hold's
lease, which a running call renews, expires, and the sweep releases it; only the budget of a session stays charged. A
payment that was accepted can be presented again. Revenue and counters are written in the unit that charges, or that
records the payment as used.
"""

import time
from http import HTTPStatus

from sqlalchemy.orm import Session

from app.catalog import statistics
from app.catalog.services.service import CallableService
from app.credits.holds import HoldResult
from app.db.unit_of_work import unit_of_work
from app.errors import InsufficientCredits
from app.identity.principal import Principal
from app.payments.paid_call import PaidCall
from app.payments.x402.gate import PaymentGrant
from app.ports.upstream import RelayOutcome, UpstreamRequest, UpstreamResponse
from app.spending import holds as spending_holds
from app.spending.policy import SpendingRequest
from app.usage import service as usage
from app.usage.grouped import Hold
from app.usage.service import MeteredUsage


class ServiceCall(PaidCall):
    """A call at the price of its service; a session of the wallet may be charged as well."""

    def __init__(
        self,
        service: CallableService,
        payer: Principal | PaymentGrant,
        *,
        wallet_id: str | None = None,
        model: str,
        session_charge: SpendingRequest | None = None,
    ) -> None:
        super().__init__(payer, service.provider, model)
        self._service = service
        self._wallet_id = wallet_id
        self._session_charge = session_charge
        self._sent_at = 0
        self._microseconds = 0

    def begin(self, outgoing: UpstreamRequest) -> UpstreamRequest:
        """Secure the price. Raises: InsufficientCredits, SessionLimitExceeded, PaymentAlreadyUsed."""
        if self._payment is not None:
            self._payment.start_attempt()
        else:
            self._hold()
        self._sent_at = time.monotonic_ns()
        return outgoing

    def _on_no_response(self, *, is_upstream_failure: bool) -> None:
        """Charge nothing; `is_upstream_failure` counts against the service's reliability."""

        def count(session: Session) -> None:
            if is_upstream_failure:
                statistics.record_failed_call(session, self._service.id)

        if self._payment is not None:
            payment = self._payment
            self._retry(lambda: payment.release(count))
            return

        def release(session: Session) -> HoldResult:
            outcome = usage.cancel(session, self.id)
            count(session)
            return outcome

        self._settle(release)
        self._refund_session()

    def on_response_head(self, incoming: UpstreamResponse) -> None:
        super().on_response_head(incoming)
        self._microseconds = (time.monotonic_ns() - self._sent_at) // 1000

    def stream(self) -> None:
        """Settle a streamed response: the price is due for its head."""
        super().stream()
        self._settle_answer()

    def feed(self, piece: bytes) -> bytes:
        if not self._is_streaming:
            self._renew()
        return piece

    def _end(self, ending: RelayOutcome) -> None:
        """Settle a complete response; charge nothing if it was interrupted and the client gets an error."""
        if self._is_streaming:
            return
        if ending is RelayOutcome.COMPLETE:
            self._settle_answer()
        else:
            self._on_no_response(is_upstream_failure=True)

    def _settle_answer(self) -> None:
        if self._status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            self._on_no_response(is_upstream_failure=True)
        elif self._payment is not None:
            payment = self._payment
            self._mark_served(payment, lambda session: self._count(session, payment.price_nanos))
        else:
            self._settle(self._charge)

    def _charge(self, session: Session) -> HoldResult:
        outcome = usage.settle(session, self.id, MeteredUsage(self._service.price_nanos))
        if not outcome.repeated:
            self._count(session, outcome.charged_nanos)
        return outcome

    def _count(self, session: Session, charged_nanos: int) -> None:
        statistics.record_answered_call(
            session, self._service.id, wallet_id=self._wallet_id, charged_nanos=charged_nanos,
            microseconds=self._microseconds,
        )  # fmt: skip

    def _hold(self) -> None:
        if self._session_charge is not None:
            with unit_of_work() as session:
                spending_holds.charge_session(session, self._wallet_id or "", self._session_charge, reference=self.id)
        price_nanos = self._service.price_nanos
        try:
            self._run(Hold(self.id, self._account_id, self._call, price_nanos, MeteredUsage(cost_nanos=0), self._lease))
        except InsufficientCredits:
            self._refund_session()
            raise

    def _refund_session(self) -> None:
        if self._session_charge is None:
            return

        # The session's wallet is locked before credits are, so this cannot be in their unit.
        def refund() -> None:
            with unit_of_work() as session:
                spending_holds.refund_session(session, self.id)

        self._retry(refund)
