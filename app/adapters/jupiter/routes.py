"""Jupiter's route instruction: read, checked against what was asked, and given our own minimum. Pure.

Layouts: the program's published Anchor IDL, `route_v2` and `shared_accounts_route_v2`. Both begin with their figures,
so that all of them are read whatever the route is; the older instructions, whose figures stand behind it, are refused.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from solders.instruction import Instruction
from solders.pubkey import Pubkey
from solders.token import ID as TOKEN_PROGRAM

from app.ports.errors import Rejected

JUPITER = Pubkey.from_string("JUP6LkbZbjS1jKKwapdHNy74zcZ3tLUZoi5QNyVTaV4")
_EVENT_AUTHORITY = Pubkey.from_string("D8cy77BBepLMngZx6ZukaTff5hCt1HrWyKk3Hnd9oitf")
_FIGURES = struct.Struct("<QQHHH")
"""In amount, quoted out amount, slippage, platform fee, fee on what is better than quoted; the last three in bps."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Whose tokens become which: the owner's accounts of both mints."""

    owner: Pubkey
    given_account: Pubkey
    wanted_account: Pubkey
    given_mint: Pubkey
    wanted_mint: Pubkey


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where the figures begin, and at which places the accounts stand."""

    discriminator: bytes
    figures_at: int
    owner: int
    given_account: int
    wanted_account: int
    first_mint: int
    """Both mints, then both token programs."""
    event_authority: int
    payee: int | None
    """Where another recipient could be named; the program's own id there names none."""


_LAYOUTS = (
    _Layout(
        bytes.fromhex("bb64facc31c4af14"), figures_at=8,
        owner=0, given_account=1, wanted_account=2, first_mint=3, event_authority=8, payee=7,
    ),
    _Layout(
        bytes.fromhex("d19853937cfed8e9"), figures_at=9,
        owner=1, given_account=2, wanted_account=5, first_mint=6, event_authority=10, payee=None,
    ),
)  # fmt: skip


def with_minimum(route: Instruction, pair: Pair, *, units: int, minimum_units: int) -> Instruction:
    """Return the route, proven to take exactly `units` of the owner's for the owner, with our minimum in it.

    The program compares what comes out with the quote less the slippage. With our minimum as the quote and no
    slippage that is our minimum to the unit, whatever Jupiter wrote there.

    Raises: Rejected("unsafe_instructions") for whatever is not exactly that.
    """
    data = bytes(route.data)
    layout = next((each for each in _LAYOUTS if data.startswith(each.discriminator)), None)
    if route.program_id != JUPITER or layout is None:
        raise Rejected("unsafe_instructions")
    try:
        in_units, _quoted, _slippage, fee_bps, better_fee_bps = _FIGURES.unpack_from(data, layout.figures_at)
        keys = [meta.pubkey for meta in route.accounts]
        is_right = _stands(keys, layout, pair)
    except (struct.error, IndexError):
        raise Rejected("unsafe_instructions") from None
    signers = {meta.pubkey for meta in route.accounts if meta.is_signer}
    if not is_right or signers != {pair.owner} or (in_units, fee_bps, better_fee_bps) != (units, 0, 0):
        raise Rejected("unsafe_instructions")
    figures = _FIGURES.pack(units, minimum_units, 0, 0, 0)
    end = layout.figures_at + _FIGURES.size
    return Instruction(JUPITER, data[: layout.figures_at] + figures + data[end:], list(route.accounts))


def _stands(keys: list[Pubkey], layout: _Layout, pair: Pair) -> bool:
    first = layout.first_mint
    payee_is_owner = layout.payee is None or keys[layout.payee] in (pair.wanted_account, JUPITER)
    return payee_is_owner and (
        keys[layout.owner],
        keys[layout.given_account],
        keys[layout.wanted_account],
        *keys[first : first + 4],
        keys[layout.event_authority],
        keys[layout.event_authority + 1],
    ) == (
        pair.owner, pair.given_account, pair.wanted_account,
        pair.given_mint, pair.wanted_mint, TOKEN_PROGRAM, TOKEN_PROGRAM,
        _EVENT_AUTHORITY, JUPITER,
    )  # fmt: skip
