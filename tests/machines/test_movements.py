"""State machine of transfers and withdrawals: any sequence of requests, blocks, reorgs, limits and dates."""

from __future__ import annotations

from tests.support.machines import Ground, Walk
from tests.support.moving import Movements


def test_limits_hold_and_each_transfer_pays_at_most_once(each_ground: Ground, walk: Walk) -> None:
    walk(Movements, each_ground, walks=10, steps=40)
