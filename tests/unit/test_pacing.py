"""The pace of polling: no poll between two blocks of a chain, and fewer polls the older a row is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from decimal import Decimal

import pytest
from flask import Flask

from app.core import clock
from app.core.chains import ChainName
from app.wallets.core import lifecycle
from app.wallets.deposits import scanner
from tests.support.owner_world import StaticChain

ETHEREUM, BASE, SOLANA = ChainName.ETHEREUM, ChainName.BASE, ChainName.SOLANA
PACES = {ETHEREUM: 12.0, BASE: 2.0, SOLANA: 0.4}
MINUTE = timedelta(minutes=1)
Configure = Callable[..., None]


@pytest.fixture
def configure(build_app: Callable[..., Flask], sqlite_url: str) -> Iterator[Configure]:
    """Run an application on chains with these paces until the test ends."""
    contexts = []

    def enter(paces: dict[ChainName, float] = PACES, **settings: str) -> None:
        chains = {name: StaticChain(name, block_time=timedelta(seconds=pace)) for name, pace in paces.items()}
        context = build_app(sqlite_url, chains=chains, settings=settings).app_context()
        context.push()
        contexts.append(context)

    yield enter
    for context in reversed(contexts):
        context.pop()


def _seconds(delay: timedelta) -> float:
    return delay.total_seconds()


def test_a_request_waits_one_and_a_half_block_times_unless_configured(configure: Configure) -> None:
    configure(confirmation_wait_seconds="")
    assert [lifecycle.default_wait_seconds(name) for name in PACES] == [Decimal("18.0"), Decimal("5.0"), Decimal("5.0")]
    configure(confirmation_wait_seconds="2")
    assert lifecycle.default_wait_seconds(ETHEREUM) == 2


def test_workers_check_after_the_request_has_waited_and_never_twice_per_block(configure: Configure) -> None:
    configure()
    assert [_seconds(lifecycle.first_check_after(name)) for name in PACES] == [18, 3, 3]
    delays = [_seconds(lifecycle.pending_recheck_after(ETHEREUM, checks, expires=False)) for checks in range(40)]
    assert min(delays) == 12
    assert delays == sorted(delays)
    assert delays[-1] == 120
    # These expire within about a minute.
    assert _seconds(lifecycle.pending_recheck_after(SOLANA, 40, expires=True)) == 2


def test_a_block_is_checked_for_reorgs_less_and_less_often(configure: Configure) -> None:
    configure()
    delays = [_seconds(lifecycle.finality_recheck_after(ETHEREUM, checks)) for checks in range(6)]
    assert delays == [24, 48, 96, 192, 300, 300]
    assert [_seconds(lifecycle.finality_recheck_after(name, 0)) for name in (BASE, SOLANA)] == [5, 5]
    assert _seconds(lifecycle.finality_recheck_after(ETHEREUM, 10**6)) == 300


def test_the_pauses_between_broadcasts_double_except_for_bytes_that_expire() -> None:
    sent_at = [timedelta(0)]
    while sent_at[-1] < timedelta(hours=1):
        sent_at.append(sent_at[-1] + lifecycle.rebroadcast_after(sent_at[-1], expires=False))
    assert [_seconds(each) for each in sent_at[:5]] == [0, 15, 30, 60, 120]
    assert len(sent_at) == 10
    assert _seconds(lifecycle.rebroadcast_after(MINUTE, expires=True)) == 2


@pytest.mark.parametrize(
    ("name", "age", "pause"),
    [
        (ETHEREUM, timedelta(0), 12),
        (BASE, timedelta(0), 5),
        (SOLANA, timedelta(0), 5),
        (BASE, 2 * MINUTE, 12),
        (BASE, 7 * 24 * 60 * MINUTE, 30),
        (ETHEREUM, -MINUTE, 12),
    ],
)
def test_deposits_are_scanned_less_often_the_older_the_newest_request(
    name: ChainName, age: timedelta, pause: float, configure: Configure
) -> None:
    configure()
    now = clock.now()

    def is_due(seconds_ago: float) -> bool:
        return scanner.is_due(name, now - age, last_scan=now - timedelta(seconds=seconds_ago))

    assert _seconds(lifecycle.scan_pause(name, age)) == pause
    assert (is_due(pause + 1), is_due(pause - 1)) == (True, False)
    assert scanner.is_due(name, now - age, last_scan=None)
    assert not scanner.is_due(name, None, last_scan=None)


def test_chains_that_make_blocks_on_demand_are_polled_without_pause(configure: Configure) -> None:
    configure(dict.fromkeys(PACES, 0.0))
    assert lifecycle.scan_pause(BASE, timedelta(days=1)) == timedelta(0)
    assert _seconds(lifecycle.pending_recheck_after(BASE, 0, expires=False)) == 1
