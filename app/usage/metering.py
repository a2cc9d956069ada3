"""What every metered call does, whoever prices it: it takes turns, lives, is settled in the end, and tells its cost."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import structlog
from flask import Flask, current_app, g

from app.core import clock, money
from app.core.identifiers import new_id
from app.core.turns import turn
from app.core.unit_of_work import unit_of_work
from app.credits import service as credits_service
from app.credits.service import Balance
from app.errors import InsufficientCredits
from app.ports import provider
from app.usage import service as usage
from app.usage.service import Call, Receipt

_log = structlog.get_logger(__name__)
_LEASE_MARGIN = timedelta(seconds=60)
_MOST_BETWEEN_RENEWALS = timedelta(seconds=60)
_PAUSES_BETWEEN_TRIES = (1, 3)


@dataclass(frozen=True, slots=True)
class _Bill:
    """What a call was charged, and what the account has left."""

    cost_nanos: int
    left_nanos: int


class MeteredCall:
    """One call that an account pays for. Works in any thread, also when the request that began the call is over."""

    def __init__(self, account_id: str, call: Call) -> None:
        """Take who pays for which call."""
        self.id = new_id()
        self._account_id = account_id
        self._call = call
        self._request_id: str = g.request_id
        self._app: Flask = current_app._get_current_object()  # type: ignore[attr-defined]  # noqa: SLF001 - the documented way
        settings = provider.settings()
        silence = settings.upstream_connect_timeout_seconds + settings.upstream_read_timeout_seconds
        # Longer than an upstream may be silent: whoever lives renews it in time.
        self._lease = timedelta(seconds=int(silence)) + _LEASE_MARGIN
        self._renewed_at = clock.now()
        self._bill: _Bill | None = None

    def headers(self) -> Collection[tuple[str, str]]:
        """Return what the caller is told of the call, as far as it is known."""
        told = [("X-Gateway-Request-Id", self._request_id)]
        if self._bill is not None:
            told.append(("X-Cost-Usd", money.decimal_string(self._bill.cost_nanos, 9)))
            told.append(("X-Credits-Remaining", money.decimal_string(self._bill.left_nanos, 9)))
        return told

    @contextmanager
    def _unit(self) -> Iterator[None]:
        """Open a unit of work on the account, when it is this call's turn."""
        with turn(self._account_id), unit_of_work():
            yield

    def _billed(self, receipt: Receipt) -> None:
        self._bill = _Bill(receipt.charged_nanos, receipt.balance.credits_nanos)

    def _settle(self, verb: Callable[[], Receipt | None]) -> None:
        """Run a settlement in a unit; it returns None where nothing is charged.

        What cannot be settled is left to the lease's end.
        """

        def settled() -> None:
            with self._unit():
                receipt = verb()
                nothing = None if receipt else credits_service.balance(self._account_id)
            if receipt:
                self._billed(receipt)
            elif nothing:
                self._bill = _Bill(0, nothing.credits_nanos)

        self._keep_trying(settled)

    def _keep_trying(self, verb: Callable[[], None]) -> None:
        for pause in (*_PAUSES_BETWEEN_TRIES, None):
            try:
                with self._app.app_context():
                    verb()
            except Exception:
                # The caller is served all the same; repeating a settlement changes nothing.
                _log.exception("settlement_failed", call_id=self.id, again=pause is not None)
                if pause is not None:
                    time.sleep(pause)
            else:
                return

    def _renew(self) -> None:
        """Show that the call lives, now and then."""
        now = clock.now()
        if now - self._renewed_at < min(_MOST_BETWEEN_RENEWALS, self._lease / 3):
            return
        self._renewed_at = now
        try:
            with self._app.app_context(), unit_of_work():
                usage.renew(self.id, lease=self._lease)
        except Exception:
            # The next piece tries again; a hold that lapses meanwhile is settled to its true cost all the same.
            _log.exception("renewal_failed", call_id=self.id)


def refuse_empty(balance: Balance) -> None:
    """Refuse an account that has nothing: what costs nothing is for those who could pay something.

    Raises: InsufficientCredits.
    """
    if balance.available_nanos <= 0:
        raise InsufficientCredits(details={"credits_usd": money.usd_from_nanos(balance.available_nanos)})
