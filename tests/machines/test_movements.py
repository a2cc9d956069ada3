"""Transfers and withdrawals under limits: any sequence of orders, blocks, reorganisations, limits and midnights."""

from __future__ import annotations

from tests.support.machines import Ground, walk
from tests.support.moving import Movements


def test_whatever_happens_limits_hold_and_each_movement_pays_once_or_not_at_all(each_ground: Ground) -> None:
    walk(Movements, each_ground, walks=10, steps=40)
