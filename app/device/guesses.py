"""The limits on guessing claim codes, per client address and over the whole service. In the caller's unit.

A unit that missed must return, not raise: raising would roll the counted miss back.
"""

from __future__ import annotations

import hashlib
import hmac
from datetime import datetime, timedelta

from limits import parse
from sqlalchemy import case, delete, or_, select
from sqlalchemy.dialects import postgresql, sqlite

from app.core import clock
from app.device.lockout import (
    FORGIVEN_AFTER,
    LONGEST_LOCK,
    SERVICE_WIDE_MISSES,
    SERVICE_WIDE_WINDOW,
    Counter,
    MissLimit,
    after_miss,
)
from app.device.models import GuessCounter
from app.errors import RateLimited
from app.extensions import db
from app.ports import provider

_EVERYWHERE = "all"


def miss_limit() -> MissLimit | None:
    """Return DEVICE_MISS_LIMIT, or None where guessing is not limited."""
    text = provider.settings().device_miss_limit
    if not text:
        return None
    item = parse(text)
    return MissLimit(item.amount, timedelta(seconds=item.get_expiry()))


def scope_of(network: str) -> str:
    """Return the name under which a client address is counted; the address cannot be read from the table."""
    secret = provider.settings().secret_key.get_secret_value().encode()
    return hmac.new(
        hashlib.sha256(b"guesses" + secret).digest(), network.encode(), hashlib.sha256
    ).hexdigest()


def enter(network: str) -> None:
    """Take the address's counter for the rest of the unit: guesses made at once are counted one by one.

    Raises: RateLimited while the address is locked.
    """
    if miss_limit() is None:
        return
    now = clock.now()
    row = {"scope": scope_of(network), "window_start": now, "misses": 0, "strikes": 0}
    insert = _insert(row)
    # An update that changes nothing locks the row that is there already.
    db.session().execute(
        insert.on_conflict_do_update(index_elements=["scope"], set_={"scope": insert.excluded.scope})
    )
    locked = _counter(network).seconds_locked(now)
    if locked:
        raise RateLimited(
            "Too many wrong codes from your address; try again later.", retry_after_seconds=locked
        )


def service_wide_wait() -> int:
    """Return for how many seconds nobody may guess, because too many were wrong everywhere; 0 when open."""
    if miss_limit() is None:
        return 0
    now = clock.now()
    query = select(GuessCounter.window_start, GuessCounter.misses).where(GuessCounter.scope == _EVERYWHERE)
    row = db.session().execute(query).one_or_none()
    if row is None or row.misses < SERVICE_WIDE_MISSES:
        return 0
    opens_at: datetime = row.window_start + SERVICE_WIDE_WINDOW
    return max(0, -(-(opens_at - now) // timedelta(seconds=1)))


def count_miss(network: str, *, everywhere: bool = True) -> None:
    """Count a wrong code against its address, then against the whole service (one row for all, so last).

    What nobody can guess, as a key of 256 bits, is not counted `everywhere`: that would only keep others out.
    """
    limit = miss_limit()
    if limit is None:
        return
    now = clock.now()
    session = db.session()
    row = session.get(GuessCounter, scope_of(network), populate_existing=True)
    if row is None:
        msg = "a guess is counted in the unit that entered"
        raise RuntimeError(msg)
    counter = after_miss(_counter(network), limit, now)
    row.window_start, row.misses = counter.window_start, counter.misses
    row.locked_until, row.strikes = counter.locked_until, counter.strikes
    session.flush()
    if not everywhere:
        return
    over = GuessCounter.window_start <= now - SERVICE_WIDE_WINDOW
    insert = _insert({"scope": _EVERYWHERE, "window_start": now, "misses": 1, "strikes": 0})
    session.execute(
        insert.on_conflict_do_update(
            index_elements=["scope"],
            set_={
                "misses": case((over, 1), else_=GuessCounter.misses + 1),
                "window_start": case((over, now), else_=GuessCounter.window_start),
            },
        )
    )


def prune(now: datetime) -> int:
    """Forget addresses that have been quiet long enough to start anew; return how many."""
    longest = max(LONGEST_LOCK, SERVICE_WIDE_WINDOW) + FORGIVEN_AFTER
    gone = db.session().execute(
        delete(GuessCounter).where(
            GuessCounter.window_start < now - longest,
            or_(GuessCounter.locked_until.is_(None), GuessCounter.locked_until < now - FORGIVEN_AFTER),
        )
    )
    return int(gone.rowcount)  # type: ignore[attr-defined, unused-ignore]


def _counter(network: str) -> Counter:
    row = db.session().get_one(GuessCounter, scope_of(network), populate_existing=True)
    return Counter(row.window_start, row.misses, row.locked_until, row.strikes)


def _insert(row: dict[str, object]) -> sqlite.Insert | postgresql.Insert:
    on_sqlite = db.session().get_bind().dialect.name == "sqlite"
    return (sqlite.insert if on_sqlite else postgresql.insert)(GuessCounter).values(row)
