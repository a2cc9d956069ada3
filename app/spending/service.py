"""The door of the spending room: its verbs and snapshots, all of them for use inside the caller's unit.

Alone among rooms, nobody reads or writes the tables behind it.
"""

from app.spending.accounts import (
    MAX_COUNTED_NANOS,
    freeze,
    lock_account,
    lock_accounts,
    lock_accounts_of,
    open_account,
    unfreeze,
)
from app.spending.controls import (
    Changes,
    ControlsView,
    Replaced,
    Standing,
    WindowStanding,
    assert_deletable,
    close_account,
    controls_of,
    inherit,
    put_controls,
    put_controls_of_agents,
    replace_controls,
    set_default,
    standing,
)
from app.spending.holds import Hold, HoldState, check, hold, record, release, spend, states_of, unspend

__all__ = [
    "MAX_COUNTED_NANOS",
    "Changes",
    "ControlsView",
    "Hold",
    "HoldState",
    "Replaced",
    "Standing",
    "WindowStanding",
    "assert_deletable",
    "check",
    "close_account",
    "controls_of",
    "freeze",
    "hold",
    "inherit",
    "lock_account",
    "lock_accounts",
    "lock_accounts_of",
    "open_account",
    "put_controls",
    "put_controls_of_agents",
    "record",
    "release",
    "replace_controls",
    "set_default",
    "spend",
    "standing",
    "states_of",
    "unfreeze",
    "unspend",
]
