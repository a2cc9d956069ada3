"""What a transaction may cost: base fee, priority fee, rent. Pure rules, all in lamports."""

from __future__ import annotations

from collections.abc import Sequence

BASE_FEE_LAMPORTS = 5_000
"""For each signature; fixed by the protocol (solana.com/docs/core/fees), and ours have one."""
MOST_COMPUTE_UNITS = 1_400_000
_MOST_MICRO_LAMPORTS_PER_UNIT = 5_000_000
"""A ceiling for the market's price: 0.00015 SOL for the dearest of our transfers."""
_MICRO = 1_000_000


def compute_units(simulated: int) -> int:
    """Return a limit a fifth above what the simulation used."""
    return min(-(-simulated * 6 // 5) + 300, MOST_COMPUTE_UNITS)


def price(recent: Sequence[int]) -> int:
    """Return the price, in micro-lamports per unit, that three of four recent slots would have taken."""
    ordered = sorted(recent)
    market = ordered[len(ordered) * 3 // 4] if ordered else 0
    return min(max(market, 1), _MOST_MICRO_LAMPORTS_PER_UNIT)


def fee_lamports(units: int, micro_lamports_per_unit: int) -> int:
    """Return what the network takes for a transaction with one signature, landed or failed."""
    return BASE_FEE_LAMPORTS + -(-units * micro_lamports_per_unit // _MICRO)
