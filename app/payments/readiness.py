"""On which chains signed payments can be taken just now: the settler holds gas, and the recipient can receive.

Asked of the chains now and then, not by every caller who is told the terms.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from datetime import datetime, timedelta

import structlog
from flask import current_app
from sqlalchemy import select

from app.core import clock
from app.core.chains import ChainName
from app.core.unit_of_work import unit_of_work
from app.extensions import db
from app.payments import treasury
from app.payments.models import PaymentSupply
from app.ports import provider
from app.ports.errors import PortError
from app.ports.till import Readiness
from app.wallets import network_fees

_log = structlog.get_logger(__name__)
_EXTENSION = "payment_readiness"
_KEPT = timedelta(seconds=15)
# The settler must afford some submissions that are on their way already.
_SUBMISSIONS_AHEAD = 5
# On Ethereum gas may be worth more than the payment.
_LEAST_MULTIPLE_OF_FEE = 20


@dataclass(slots=True)
class _Known:
    at: datetime
    state: Readiness | None


class Board:
    """What one process knows of the chains' readiness."""

    def __init__(self) -> None:
        """Know nothing yet."""
        self._known: dict[ChainName, _Known] = {}
        self._locks = {name: threading.Lock() for name in ChainName}

    def of(self, chain: ChainName) -> Readiness | None:
        """Return what was read last, at most some seconds ago; None while the chain cannot be read."""
        known = self._known.get(chain)
        if known is not None and clock.now() - known.at < _KEPT:
            return known.state
        lock = self._locks[chain]
        # One asks; the others make do with what was known, if anything was.
        if not lock.acquire(blocking=known is None):
            return known.state if known else None
        try:
            known = self._known.get(chain)
            if known is None or clock.now() - known.at >= _KEPT:
                self._known[chain] = known = _Known(clock.now(), read(chain))
            return known.state
        finally:
            lock.release()

    def forget(self) -> None:
        """Ask anew."""
        self._known.clear()


def board() -> Board:
    """Return the running application's."""
    found: Board = current_app.extensions.setdefault(_EXTENSION, Board())
    return found


def takes_signed(chain: ChainName, price_nanos: int) -> bool:
    """Tell whether a signed payment of this price can be submitted on a chain."""
    state = board().of(chain)
    if state is None or not is_supplied(state) or not state.recipient_is_open:
        return False
    return chain is not ChainName.ETHEREUM or is_worth(chain, price_nanos, state.fee_units)


def is_worth(chain: ChainName, price_nanos: int, fee_units: int) -> bool:
    """Tell whether a price is far enough above what its submission costs."""
    fee_nanos = network_fees.fee_nanos(chain, fee_units)
    return fee_nanos is not None and price_nanos >= _LEAST_MULTIPLE_OF_FEE * fee_nanos


def is_supplied(state: Readiness) -> bool:
    """Tell whether the settler holds enough for the next submissions."""
    return state.native_units >= _SUBMISSIONS_AHEAD * state.fee_units


def note(chain: ChainName, state: Readiness) -> None:
    """Keep what a look has shown, for who must not wait for a chain; in one unit."""
    with unit_of_work() as session:
        session.merge(
            PaymentSupply(
                chain=chain.value, submissions_left=_submissions(state), looked_at=clock.now()
            )
        )  # fmt: skip


def noted() -> dict[str, tuple[int, int]]:
    """Return by chain how many submissions the settler could pay for, and how many seconds ago. In the current unit."""
    now = clock.now()
    return {
        row.chain: (row.submissions_left, max(0, int((now - row.looked_at).total_seconds())))
        for row in db.session.scalars(select(PaymentSupply).order_by(PaymentSupply.chain))
    }


def submissions_left() -> dict[ChainName, int]:
    """Return how many signed payments the settler can still submit, by chain that can be read."""
    if not treasury.is_made():
        return {}
    states = {chain: board().of(chain) for chain in provider.current().tills}
    return {chain: _submissions(state) for chain, state in states.items() if state is not None}


def _submissions(state: Readiness) -> int:
    return state.native_units // max(state.fee_units, 1)


def read(chain: ChainName) -> Readiness | None:
    """Ask the chain now; None when it cannot be read."""
    try:
        settler, recipient = treasury.settler(chain), treasury.recipient(chain)
        return provider.current().tills[chain].readiness(settler, recipient)
    except PortError as error:
        _log.warning("payment_readiness_unreadable", chain=chain, reason=error.reason)
        return None
