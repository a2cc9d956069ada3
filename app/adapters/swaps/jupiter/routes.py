"""Jupiter's route instruction: decoded, checked against the request, and given our own minimum. No I/O.

Layouts: the program's published Anchor IDL, `route_v2` and `shared_accounts_route_v2`. Both begin with their amounts,
so that all of them are readable whatever the route is; the older instructions, with amounts behind it, are refused.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from solders.instruction import Instruction
from solders.pubkey import Pubkey
from solders.token import ID as TOKEN_PROGRAM

from app.adapters.solana.anchor import discriminator
from app.ports.errors import Rejected

JUPITER = Pubkey.from_string("JUP6LkbZbjS1jKKwapdHNy74zcZ3tLUZoi5QNyVTaV4")
_EVENT_AUTHORITY = Pubkey.from_string("D8cy77BBepLMngZx6ZukaTff5hCt1HrWyKk3Hnd9oitf")
_AMOUNTS = struct.Struct("<QQHHH")
"""In amount, quoted out amount, slippage, platform fee, positive-slippage fee; the last three in bps."""


@dataclass(frozen=True, slots=True)
class SwapAccounts:
    """The owner's token accounts of both mints."""

    owner: Pubkey
    input_account: Pubkey
    output_account: Pubkey
    input_mint: Pubkey
    output_mint: Pubkey


@dataclass(frozen=True, slots=True)
class _RouteLayout:
    """The position of the amounts, and the indexes of the accounts."""

    discriminator: bytes
    amounts_offset: int
    owner: int
    input_account: int
    output_account: int
    first_mint: int
    """Both mints, then both token programs."""
    event_authority: int
    recipient: int | None
    """Where another recipient could be set; the program's own id there means none."""


_LAYOUTS = (
    _RouteLayout(
        discriminator("global:route_v2"), amounts_offset=8,
        owner=0, input_account=1, output_account=2, first_mint=3, event_authority=8, recipient=7,
    ),
    _RouteLayout(
        discriminator("global:shared_accounts_route_v2"), amounts_offset=9,
        owner=1, input_account=2, output_account=5, first_mint=6, event_authority=10, recipient=None,
    ),
)  # fmt: skip


def with_minimum(route: Instruction, pair: SwapAccounts, *, units: int, minimum_units: int) -> Instruction:
    """Return the route with our minimum, after checking that it takes exactly `units` from the owner for the owner.

    The program compares the output with the quote less the slippage. With our minimum as the quote and no slippage
    that is our minimum to the unit, whatever Jupiter wrote there.

    Raises: Rejected("unsafe_instructions") for anything else.
    """
    data = bytes(route.data)
    layout = next((each for each in _LAYOUTS if data.startswith(each.discriminator)), None)
    if route.program_id != JUPITER or layout is None:
        raise Rejected("unsafe_instructions")
    try:
        in_units, _quoted, _slippage, fee_bps, better_fee_bps = _AMOUNTS.unpack_from(data, layout.amounts_offset)
        keys = [meta.pubkey for meta in route.accounts]
        is_right = _do_accounts_match(keys, layout, pair)
    except (struct.error, IndexError):
        raise Rejected("unsafe_instructions") from None
    signers = {meta.pubkey for meta in route.accounts if meta.is_signer}
    if not is_right or signers != {pair.owner} or (in_units, fee_bps, better_fee_bps) != (units, 0, 0):
        raise Rejected("unsafe_instructions")
    figures = _AMOUNTS.pack(units, minimum_units, 0, 0, 0)
    end = layout.amounts_offset + _AMOUNTS.size
    return Instruction(JUPITER, data[: layout.amounts_offset] + figures + data[end:], list(route.accounts))


def _do_accounts_match(keys: list[Pubkey], layout: _RouteLayout, pair: SwapAccounts) -> bool:
    first = layout.first_mint
    payee_is_owner = layout.recipient is None or keys[layout.recipient] in (pair.output_account, JUPITER)
    return payee_is_owner and (
        keys[layout.owner],
        keys[layout.input_account],
        keys[layout.output_account],
        *keys[first : first + 4],
        keys[layout.event_authority],
        keys[layout.event_authority + 1],
    ) == (
        pair.owner, pair.input_account, pair.output_account,
        pair.input_mint, pair.output_mint, TOKEN_PROGRAM, TOKEN_PROGRAM,
        _EVENT_AUTHORITY, JUPITER,
    )  # fmt: skip
