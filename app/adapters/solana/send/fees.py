"""Fee rules: base fee, priority fee, rent. No I/O; all amounts in lamports."""

from __future__ import annotations

from collections.abc import Sequence

BASE_FEE_LAMPORTS = 5_000
"""Per signature; fixed by the protocol (solana.com/docs/core/fees), and our transactions have one."""
MAX_COMPUTE_UNITS = 1_400_000
_MAX_MICRO_LAMPORTS_PER_UNIT = 5_000_000
"""A ceiling for the market's price: 0.00015 SOL for our most expensive transfer."""
_MAX_ESTIMATE_FACTOR, _MAX_QUIET_ESTIMATE = 10, 200_000
_RETRY_FACTOR, _MIN_RETRY_PRICE = 4, 50_000
_MICRO = 1_000_000


def compute_unit_limit(simulated: int) -> int:
    """Return a fifth above what the simulation used."""
    return min(-(-simulated * 6 // 5) + 300, MAX_COMPUTE_UNITS)


def priority_price(recent: Sequence[int], estimate: int | None = None) -> int:
    """Return the price, in micro-lamports per unit, that half of the recent slots would have accepted.

    Anybody can raise the price of a slot with one transaction, and of a minority of them without any effect. An
    endpoint's own estimate counts up to a multiple of that median.
    """
    ordered = sorted(recent)
    market = ordered[(len(ordered) - 1) // 2] if ordered else 0
    if estimate is not None:
        market = min(estimate, max(_MAX_ESTIMATE_FACTOR * market, _MAX_QUIET_ESTIMATE))
    return min(max(market, 1), _MAX_MICRO_LAMPORTS_PER_UNIT)


def retry_price(previous: int) -> int:
    """Return the least price of a second transaction after one that did not land at this price."""
    return min(max(previous * _RETRY_FACTOR, _MIN_RETRY_PRICE), _MAX_MICRO_LAMPORTS_PER_UNIT)


def fee_lamports(units: int, micro_lamports_per_unit: int) -> int:
    """Return the network's charge for a transaction with one signature, landed or failed."""
    return BASE_FEE_LAMPORTS + -(-units * micro_lamports_per_unit // _MICRO)
