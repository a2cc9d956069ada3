"""The money of one proxied call: its price is held before it, and charged exactly once when an answer has come.

Hold and charge are two units, so that a process that dies between them has charged nothing: the hold's lease, which
a call that lives renews, runs out, and the sweep ends it at no cost. Revenue and counters are written in the unit
that charges.
"""

from __future__ import annotations

import time
from http import HTTPStatus

from app.catalog import statistics
from app.catalog.services import CallableService
from app.credits import service as credits_service
from app.identity.caller import Caller
from app.ports.upstream import Incoming
from app.usage import service as usage
from app.usage.metering import MeteredCall, refuse_empty
from app.usage.service import Call, Metered, Receipt
from app.web.forwarding import Ending

_NOTHING = Metered(cost_nanos=0)


class CallMeter(MeteredCall):
    """Watches one call: `begin`; then `unanswered`, or `answered` and what `forwarding.Watcher` asks for."""

    def __init__(
        self, service: CallableService, caller: Caller, *, wallet_id: str | None, model: str
    ) -> None:
        """Take who pays for a call to which service, and the wallet that it counts for."""
        super().__init__(caller.account_id, Call(caller.key_id, f"service:{service.id}", model))
        self._service = service
        self._wallet_id = wallet_id
        self._sent_at = 0
        self._microseconds = 0
        self._status = 0
        self._is_streaming = False

    def begin(self) -> None:
        """Hold the price. Raises: InsufficientCredits."""
        with self._unit():
            usage.begin(
                self._account_id,
                self._call,
                hold_id=self.id,
                worst=Metered(self._service.price_nanos),
                estimate=_NOTHING,
                lease=self._lease,
            )
            if not self._service.price_nanos:
                refuse_empty(credits_service.balance(self._account_id))
        self._sent_at = time.monotonic_ns()

    def unanswered(self, *, counts: bool) -> None:
        """Give the price back, because there is no answer; `counts` against the service's reliability or not."""

        def release() -> None:
            usage.cancel(self.id)
            if counts:
                statistics.count_failed(self._service.id)

        self._settle(release)

    def answered(self, incoming: Incoming) -> None:
        """Learn the head of the answer."""
        self._microseconds = (time.monotonic_ns() - self._sent_at) // 1000
        self._status = incoming.status

    def feed(self, piece: bytes) -> bytes:
        """Pass a piece on as it is, and show that the call lives."""
        if not self._is_streaming:
            self._renew()
        return piece

    def finish(self) -> bytes:
        """Keep nothing back."""
        return b""

    def stream(self) -> None:
        """Settle an answer that is passed on as it arrives: its head has come, which is what the price is for."""
        self._is_streaming = True
        self._settle_answer()

    def end(self, ending: Ending) -> None:
        """Settle a whole answer, unless it broke off and the caller gets a failure in its place."""
        if self._is_streaming:
            return
        if ending is Ending.COMPLETE:
            self._settle_answer()
        else:
            self.unanswered(counts=True)

    def _settle_answer(self) -> None:
        if self._status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            self.unanswered(counts=True)
        else:
            self._settle(self._charge)

    def _charge(self) -> Receipt:
        receipt = usage.record(self.id, Metered(self._service.price_nanos))
        if not receipt.repeated:
            statistics.count_answered(
                self._service.id,
                wallet_id=self._wallet_id,
                charged_nanos=receipt.charged_nanos,
                microseconds=self._microseconds,
            )
        return receipt
