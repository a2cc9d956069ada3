"""What a landed transaction brought to an address, by the differences of balances. Pure rules.

Instructions are not read: a transfer may be hidden in a call of any program, and a balance cannot be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from app.adapters.solana.wire import Landed, TokenBalance


@dataclass(frozen=True, slots=True)
class Holder:
    """An address and its associated token account of a mint."""

    address: str
    token_account: str
    mint: str


@dataclass(frozen=True, slots=True)
class Change:
    """By how much a transaction changed what an address has."""

    lamports: int
    usdc_units: int


def change_of(holder: Holder, landed: Landed) -> Change:
    """Return what a transaction changed; a token account counts only while it is the address's own."""
    lamports = 0
    if holder.address in landed.keys:
        place = landed.keys.index(holder.address)
        lamports = landed.after[place] - landed.before[place]
    held = (_held(holder, side) for side in (landed.tokens_before, landed.tokens_after))
    before, after = held
    return Change(lamports, after - before)


def is_signed_by(holder: Holder, landed: Landed) -> bool:
    """Tell whether the address had to sign: what it brought itself, by a swap or otherwise, is no deposit."""
    return holder.address in landed.keys[: landed.transaction.message.header.num_required_signatures]


def payer_of_lamports(landed: Landed) -> str:
    """Return the account that gave the most, fees aside; the one that paid the fee where none did."""
    gave = [before - after for before, after in zip(landed.before, landed.after, strict=True)]
    gave[0] -= landed.fee_units
    most = max(gave)
    return landed.keys[gave.index(most)] if most > 0 else landed.keys[0]


def payer_of_tokens(landed: Landed, mint: str) -> str:
    """Return the owner who gave the most of a mint's tokens; the one that paid the fee where none did."""
    gave: dict[str, int] = {}
    for sign, side in ((1, landed.tokens_before), (-1, landed.tokens_after)):
        for balance in side:
            if balance.mint == mint and balance.owner:
                gave[balance.owner] = gave.get(balance.owner, 0) + sign * balance.units
    most = max(gave.values(), default=0)
    return next(owner for owner, units in gave.items() if units == most) if most > 0 else landed.keys[0]


def _held(holder: Holder, side: Sequence[TokenBalance]) -> int:
    return sum(
        balance.units
        for balance in side
        if (balance.account, balance.mint, balance.owner)
        == (holder.token_account, holder.mint, holder.address)
    )
