"""Cost of a limit check with few and with many past transactions, in alternating rounds."""

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from flask import Flask
from sqlalchemy.orm import Session

from app.config import Settings
from app.core.chains import ChainName, Family
from app.core.identifiers import new_id
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.extensions import db
from app.factory import create_app
from app.spending import holds as spending_holds
from app.spending.policy import SpendingRequest
from app.wallets.core import lifecycle
from app.wallets.transactions import settlement
from benchmarks import stack, thresholds
from benchmarks.stack import Infrastructure
from benchmarks.thresholds import Threshold

_FEW = 1_000
_PER_ROUND = 20
_MAX_RATIO = 1.2
_RECIPIENT = "0x00000000000000000000000000000000C0FFEE00"
_REQUEST = SpendingRequest(1000, _RECIPIENT, Family.EVM)
# A year of confirmed transfers of a tenth of a cent each, with their holds, as the service stores them.
_PAST_TRANSACTIONS = """
    INSERT INTO transactions (id, wallet_id, type, chain, from_address, to_address, amount_units, currency, tx_hash,
        status, cost_nanos, created_at, confirmed_at, nonce, fee_cap_units, fee_units, native_out_units,
        block_number, block_hash, checks)
    SELECT gen_random_uuid(), %(wallet)s, 'transfer', 'base', %(address)s, %(recipient)s, 1000, 'USDC',
        '0x' || lpad(to_hex(n), 64, '0'), 'confirmed', 1000000, at, at, n, 1000, 900, 900, n, '0xab', 0
    FROM generate_series(0, %(count)s - 1) n, LATERAL (SELECT now() - n * interval '31 seconds' AS at) t
"""
_PAST_HOLDS = """
    INSERT INTO spending_holds (reference, wallet_id, amount_nanos, state, made_on, created_at)
    SELECT id, wallet_id, cost_nanos, 'spent', created_at::date, created_at FROM transactions
"""

_INSERT_NONCES = "INSERT INTO nonces (chain, address, next_nonce) VALUES ('base', %(address)s, %(count)s)"


class _Rollback(Exception):
    """Rolls a measured unit back."""


@dataclass(frozen=True, slots=True)
class _Site:
    """An application on a separate database, with one wallet and its history."""

    app: Flask
    wallet_id: str
    address: str
    past: int


def measure(infrastructure: Infrastructure, *, many: int, rounds: int) -> list[Threshold]:
    """Time the database's part of a limit check on both histories."""
    few, large = (_site(infrastructure, name, count) for name, count in (("few", _FEW), ("many", many)))
    thresholds.print_heading(f"A limit check with {_FEW:,} and with {many:,} past transactions ({rounds} rounds)")
    steps: dict[str, Callable[[_Site], None]] = {
        "check (dry run)": _check,
        "hold, then release, committed": _hold_and_release,
        "all of a transfer before signing": _run_pre_sign_checks,
    }
    promises = []
    for name, step in steps.items():
        times: dict[int, list[float]] = {few.past: [], large.past: []}
        for number in range(rounds + 1):
            for site in (few, large) if number % 2 else (large, few):
                spent = _timed(step, site)
                if number:  # the first round warms caches up
                    times[site.past].append(spent)
        low, high = thresholds.median(times[few.past]), thresholds.median(times[large.past])
        thresholds.print_note(f"{name:34} {low:6.2f} ms and {high:6.2f} ms: ratio {high / low:.2f}")
        promises.append(thresholds.at_most(f"{name}: many / few", high / low, _MAX_RATIO, "times"))
    for site in (few, large):
        with site.app.app_context():
            db.engine.dispose()
    return promises


def _site(made: Infrastructure, name: str, past: int) -> _Site:
    environment = made.migrated(f"past_{name}", LOG_LEVEL="WARNING")
    app = create_app(Settings(**stack.settings_of(environment)))
    with app.app_context():
        answer = app.test_client().post("/v1/agents/register", json={}).get_json()
    wallet = answer["wallet"]
    site = _Site(app, wallet["id"], wallet["addresses"]["base"], past)
    parameters: Mapping[str, object] = {
        "wallet": site.wallet_id,
        "address": site.address,
        "recipient": _RECIPIENT,
        "count": past,
    }
    with made.database.connect(f"past_{name}") as connection:
        connection.execute(_PAST_TRANSACTIONS, parameters)
        connection.execute(_PAST_HOLDS)
        connection.execute(_INSERT_NONCES, parameters)
        connection.execute("VACUUM ANALYZE")
    return site


def _timed(step: Callable[[_Site], None], site: _Site) -> float:
    """Return milliseconds per step."""
    with site.app.app_context():
        started = time.perf_counter()
        for _ in range(_PER_ROUND):
            step(site)
        return (time.perf_counter() - started) / _PER_ROUND * 1000


def _check(site: _Site) -> None:
    with read_only_unit() as session:
        spending_holds.check(session, site.wallet_id, _REQUEST)


def _hold(session: Session, site: _Site, reference: str) -> None:
    spending_holds.hold(session, site.wallet_id, _REQUEST, reference=reference)


def _hold_and_release(site: _Site) -> None:
    reference = new_id()
    with unit_of_work() as session:
        _hold(session, site, reference)
    with unit_of_work() as session:
        spending_holds.release(session, reference)


def _run_pre_sign_checks(site: _Site) -> None:
    with contextlib.suppress(_Rollback), unit_of_work() as session:
        _hold(session, site, new_id())
        settlement.outflows(session, site.address, ChainName.BASE, since_sequence=site.past)
        lifecycle.allocate_nonce(session, ChainName.BASE, site.address, floor=site.past)
        raise _Rollback
