"""The money of one proxied call: its price is held before it, and charged exactly once when an answer has come.

Hold and charge are two units, so that a process that dies between them has charged nothing: the hold's lease, which
a call that lives renews, runs out, and the sweep ends it at no cost. Revenue and counters are written in the unit
that charges.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import timedelta
from http import HTTPStatus

import structlog
from flask import Flask, current_app, g

from app.catalog import statistics
from app.catalog.services import CallableService
from app.core import clock, money
from app.core.identifiers import new_id
from app.core.unit_of_work import unit_of_work
from app.credits import service as credits_service
from app.errors import InsufficientCredits
from app.identity.caller import Caller
from app.ports import provider
from app.usage import service as usage
from app.usage.service import Call, Metered
from app.web.forwarding import Ending

_log = structlog.get_logger(__name__)
_NOTHING = Metered(cost_nanos=0)
_LEASE_MARGIN = timedelta(seconds=60)
_MOST_BETWEEN_RENEWALS = timedelta(seconds=60)
_PAUSES_BETWEEN_TRIES = (1, 3)


@dataclass(frozen=True, slots=True)
class _Bill:
    """What a call was charged, and what the account has left."""

    cost_nanos: int
    left_nanos: int


class CallMeter:
    """Watches one call: `begin`; then `unanswered`, or `answered` and what `forwarding.Watcher` asks for."""

    def __init__(
        self, service: CallableService, caller: Caller, *, wallet_id: str | None, model: str
    ) -> None:
        """Take who pays for a call to which service, and the wallet that it counts for."""
        self.id = new_id()
        self._service = service
        self._account_id = caller.account_id
        self._call = Call(caller.key_id, f"service:{service.id}", model)
        self._wallet_id = wallet_id
        self._request_id: str = g.request_id
        self._app: Flask = current_app._get_current_object()  # type: ignore[attr-defined]  # noqa: SLF001 - the documented way
        settings = provider.settings()
        silence = settings.upstream_connect_timeout_seconds + settings.upstream_read_timeout_seconds
        # Longer than a service may be silent: whoever lives renews it in time.
        self._lease = timedelta(seconds=int(silence)) + _LEASE_MARGIN
        self._renewed_at = clock.now()
        self._sent_at = 0
        self._microseconds = 0
        self._status = 0
        self._is_streaming = False
        self._bill: _Bill | None = None

    def begin(self) -> None:
        """Hold the price. Raises: InsufficientCredits."""
        with unit_of_work():
            usage.begin(
                self._account_id,
                self._call,
                hold_id=self.id,
                worst=Metered(self._service.price_nanos),
                estimate=_NOTHING,
                lease=self._lease,
            )
            if not self._service.price_nanos:
                # What costs nothing is for those who could pay something.
                available_nanos = credits_service.balance(self._account_id).available_nanos
                if available_nanos <= 0:
                    raise InsufficientCredits(details={"credits_usd": money.usd_from_nanos(available_nanos)})
        self._sent_at = time.monotonic_ns()

    def unanswered(self, *, counts: bool) -> None:
        """Give the price back, because there is no answer; `counts` against the service's reliability or not."""

        def release() -> int:
            usage.cancel(self.id)
            if counts:
                statistics.count_failed(self._service.id)
            return 0

        self._settle(release)

    def answered(self, status: int) -> None:
        """Learn the head of the answer."""
        self._microseconds = (time.monotonic_ns() - self._sent_at) // 1000
        self._status = status

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

    def headers(self) -> Collection[tuple[str, str]]:
        """Return what the caller is told of the call."""
        told = [("X-Gateway-Request-Id", self._request_id)]
        if self._bill is not None:
            told.append(("X-Cost-Usd", money.decimal_string(self._bill.cost_nanos, 9)))
            told.append(("X-Credits-Remaining", money.decimal_string(self._bill.left_nanos, 9)))
        return told

    def _settle_answer(self) -> None:
        if self._status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            self.unanswered(counts=True)
        else:
            self._settle(self._charge)

    def _charge(self) -> int:
        receipt = usage.record(self.id, Metered(self._service.price_nanos))
        if not receipt.repeated:
            statistics.count_answered(
                self._service.id,
                wallet_id=self._wallet_id,
                charged_nanos=receipt.charged_nanos,
                microseconds=self._microseconds,
            )
        return receipt.charged_nanos

    def _renew(self) -> None:
        now = clock.now()
        if now - self._renewed_at < min(_MOST_BETWEEN_RENEWALS, self._lease / 3):
            return
        self._renewed_at = now
        try:
            with self._app.app_context(), unit_of_work():
                usage.renew(self.id, lease=self._lease)
        except Exception:
            # The next piece tries again; a hold that lapses meanwhile is charged all the same.
            _log.exception("renewal_failed", call_id=self.id)

    def _settle(self, verb: Callable[[], int]) -> None:
        """Run a settlement that returns the cost. What cannot be settled is left to the lease's end."""
        for pause in (*_PAUSES_BETWEEN_TRIES, None):
            try:
                with self._app.app_context(), unit_of_work():
                    cost_nanos = verb()
                    self._bill = _Bill(cost_nanos, credits_service.balance(self._account_id).credits_nanos)
            except Exception:
                # The caller is served all the same; repeating a settlement changes nothing.
                _log.exception("settlement_failed", call_id=self.id, again=pause is not None)
                if pause is not None:
                    time.sleep(pause)
            else:
                return
