"""When to look for outcomes: by the block time of each chain, and less often the older a row is.

Providers bill each call, and between two blocks there is nothing to find.
"""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal

from app.core.chains import ChainName
from app.state import app_state

_ZERO = timedelta(0)
_MIN_WAIT = timedelta(seconds=5)
_MIN_FIRST_CHECK = timedelta(seconds=3)
_RECHECK_SECONDS = (1, 2, 2, 4, 8, 15, *[30] * 20, 120)
# Nodes drop bytes that expire within about a minute, so these are sent and checked continually.
_RECHECK_EXPIRING_SECONDS = (1, *[2] * 150, 30)
_REBROADCAST = timedelta(seconds=15)
_REBROADCAST_EXPIRING = timedelta(seconds=2)
_MIN_FINALITY, _MAX_FINALITY = timedelta(seconds=5), timedelta(minutes=5)
_MAX_DOUBLINGS = 16
_MIN_SCAN, _MAX_SCAN = timedelta(seconds=5), timedelta(seconds=30)
_SCAN_AGE_SHARE = 10


def block_time(chain: ChainName) -> timedelta:
    """Return the time between two blocks; zero if blocks are made on demand, or the chain is not served."""
    served = app_state().ports.chains.get(chain)
    return _ZERO if served is None else served.block_time


def default_wait_seconds(chain: ChainName) -> Decimal:
    """Return how long a request waits for an outcome: CONFIRMATION_WAIT_SECONDS, or one and a half block times."""
    configured = app_state().settings.confirmation_wait_seconds
    if configured is not None:
        return configured
    return Decimal(str(max(_MIN_WAIT, _usual_landing_time(chain)).total_seconds()))


def first_check_after(chain: ChainName) -> timedelta:
    """Return when workers first check what was sent: the request that sent it waits first."""
    return max(_MIN_FIRST_CHECK, _usual_landing_time(chain))


def pending_recheck_after(chain: ChainName, checks: int, *, expires: bool) -> timedelta:
    """Return when a movement that has not landed after so many checks is checked again."""
    delays = _RECHECK_EXPIRING_SECONDS if expires else _RECHECK_SECONDS
    return max(block_time(chain), timedelta(seconds=delays[min(checks, len(delays) - 1)]))


def rebroadcast_after(age_when_sent: timedelta, *, expires: bool) -> timedelta:
    """Return how long after its last broadcast a transaction is sent again: nodes may have dropped it.

    The pauses double, except for bytes that expire.
    """
    return _REBROADCAST_EXPIRING if expires else max(_REBROADCAST, age_when_sent)


def finality_recheck_after(chain: ChainName, checks: int) -> timedelta:
    """Return when a block that is not final is checked again: reorgs mostly remove the newest blocks."""
    first = max(_MIN_FINALITY, 2 * block_time(chain))
    return min(first * (1 << min(checks, _MAX_DOUBLINGS)), _MAX_FINALITY)


def scan_pause(chain: ChainName, age: timedelta) -> timedelta:
    """Return the pause between two scans for deposits; `age` is that of the newest request or deposit."""
    pace = block_time(chain)
    if not pace:
        return _ZERO
    return max(pace, _MIN_SCAN, min(age / _SCAN_AGE_SHARE, _MAX_SCAN))


def _usual_landing_time(chain: ChainName) -> timedelta:
    return 3 * block_time(chain) / 2
