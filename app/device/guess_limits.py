"""Limits on guessing claim codes, per client address and service-wide.

The last miss that is allowed in a window locks an address, each time for twice as long. Misses are in the database, so
that a restart or an emptied Redis loses none. After a miss, the unit must return and not raise: raising would roll
back the count.
"""

from datetime import datetime, timedelta

from limits import RateLimitItem, parse
from sqlalchemy import Integer, String, case, select
from sqlalchemy.orm import Mapped, Session, mapped_column

from app.core import clock, identifiers
from app.db.tables import UtcDateTime, insert_into
from app.errors import RateLimited
from app.extensions import Model
from app.observability import counters
from app.state import app_state


class GuessCounter(Model):
    """Misses of one client address (its keyed hash) or service-wide (`all`) in the current window."""

    __tablename__ = "guess_counters"

    scope: Mapped[str] = mapped_column(String(64), primary_key=True)
    window_start: Mapped[datetime] = mapped_column(UtcDateTime)
    misses: Mapped[int] = mapped_column(Integer)
    locked_until: Mapped[datetime | None] = mapped_column(UtcDateTime)
    strikes: Mapped[int] = mapped_column(Integer)


SERVICE_WIDE_MISSES = 300
SERVICE_WIDE_WINDOW = timedelta(hours=1)
MAX_LOCK = timedelta(days=1)
STRIKES_EXPIRE_AFTER = timedelta(days=1)
"""This long after the end of a lock, its duration starts over."""


def retry_after_seconds(counter: GuessCounter, now: datetime) -> int:
    """Return the remaining time of a lock, rounded up; 0 without a lock."""
    return 0 if counter.locked_until is None else _seconds_until(counter.locked_until, now)


def count_miss(counter: GuessCounter, limit: RateLimitItem, now: datetime) -> None:
    """Count a miss; the last one allowed in a window locks, each time for twice as long."""
    window = timedelta(seconds=limit.get_expiry())
    if now >= counter.window_start + window:
        counter.window_start, counter.misses = now, 0
    if counter.locked_until is not None and now >= counter.locked_until + STRIKES_EXPIRE_AFTER:
        counter.strikes = 0
    counter.misses += 1
    if counter.misses < limit.amount:
        return
    # Bounded before the multiplication: 2 ** strikes would soon exceed the range of a timedelta.
    lock = min(window * 2 ** min(counter.strikes, 16), MAX_LOCK)
    counter.window_start, counter.misses = now, 0
    counter.locked_until, counter.strikes = now + lock, counter.strikes + 1
    counters.LOCKOUTS.inc()


_SERVICE_WIDE_SCOPE = "all"


def miss_limit() -> RateLimitItem | None:
    text = app_state().settings.device_miss_limit
    return parse(text) if text else None


def scope_key(network: str) -> str:
    """Return the keyed hash that a client address is counted under; the table does not reveal the address."""
    secret = app_state().settings.secret_key.get_secret_value()
    return identifiers.keyed_digests("guesses", network.encode(), [secret])[0].hex()


def lock_counter(session: Session, network: str) -> None:
    """Lock the address's counter until the unit ends: concurrent guesses are counted one by one.

    Raises: RateLimited while the address is locked.
    """
    if miss_limit() is None:
        return
    now = clock.now()
    row = {"scope": scope_key(network), "window_start": now, "misses": 0, "strikes": 0}
    insert = insert_into(session, GuessCounter).values(row)
    # An update that changes nothing locks an existing row.
    session.execute(insert.on_conflict_do_update(index_elements=["scope"], set_={"scope": insert.excluded.scope}))
    locked = retry_after_seconds(_counter(session, network), now)
    if locked:
        raise RateLimited("Too many wrong codes from your address; try again later.", retry_after_seconds=locked)


def service_wide_retry_after(session: Session) -> int:
    """Return for how many seconds the service-wide limit is exceeded; 0 when it is not."""
    if miss_limit() is None:
        return 0
    now = clock.now()
    query = select(GuessCounter.window_start, GuessCounter.misses).where(GuessCounter.scope == _SERVICE_WIDE_SCOPE)
    row = session.execute(query).one_or_none()
    if row is None or row.misses < SERVICE_WIDE_MISSES:
        return 0
    return _seconds_until(row.window_start + SERVICE_WIDE_WINDOW, now)


def record_miss(session: Session, network: str, *, service_wide: bool = True) -> None:
    """Count a wrong code for its address, then service-wide (one row for all, so last), after `lock_counter`.

    A miss on a 256-bit key cannot be a guess; with `service_wide=False` it does not lock others out.
    """
    limit = miss_limit()
    if limit is None:
        return
    now = clock.now()
    count_miss(_counter(session, network), limit, now)
    session.flush()
    if not service_wide:
        return
    over = GuessCounter.window_start <= now - SERVICE_WIDE_WINDOW
    row_for_all = {"scope": _SERVICE_WIDE_SCOPE, "window_start": now, "misses": 1, "strikes": 0}
    insert = insert_into(session, GuessCounter).values(row_for_all)
    counted = {
        "misses": case((over, 1), else_=GuessCounter.misses + 1),
        "window_start": case((over, now), else_=GuessCounter.window_start),
    }
    session.execute(insert.on_conflict_do_update(index_elements=["scope"], set_=counted))


def _counter(session: Session, network: str) -> GuessCounter:
    return session.get_one(GuessCounter, scope_key(network), populate_existing=True)


def _seconds_until(moment: datetime, now: datetime) -> int:
    return max(0, -(-(moment - now) // timedelta(seconds=1)))
