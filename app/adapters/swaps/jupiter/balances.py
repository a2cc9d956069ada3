"""The effects of a swap, by its simulation: exact input, enough output, no new authority. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from solders.pubkey import Pubkey
from solders.system_program import ID as SYSTEM_PROGRAM

from app.adapters.solana.client.wire import AccountState
from app.adapters.solana.send import tokens
from app.core.chains import SOL
from app.ports.swaps import SwapRequest


@dataclass(frozen=True, slots=True)
class SwapBalances:
    """An owner's balances: lamports in the address and in both token accounts, USDC, and who else may move it."""

    lamports: int
    wrapped_lamports: int
    usdc_lamports: int
    usdc_units: int
    is_owner_controlled: bool

    @property
    def total_lamports(self) -> int:
        """All lamports, rent included: what only moves between the owner's accounts does not count."""
        return self.lamports + self.wrapped_lamports + self.usdc_lamports


def read_balances(states: Sequence[AccountState | None], *, owner: Pubkey, usdc_mint: Pubkey) -> SwapBalances:
    """Read the owner's address, and the accounts of wrapped SOL and USDC."""
    wallet, wrapped, usdc = states
    return SwapBalances(
        lamports=wallet.lamports if wallet else 0,
        wrapped_lamports=wrapped.lamports if wrapped else 0,
        usdc_lamports=usdc.lamports if usdc else 0,
        usdc_units=tokens.units_of(usdc, owner=owner, mint=usdc_mint),
        is_owner_controlled=_is_system_account(wallet)
        and not any(_has_other_authority(each, owner) for each in (wrapped, usdc)),
    )


def is_exactly_swap(
    before: SwapBalances, after: SwapBalances, request: SwapRequest, *, minimum_units: int, fee_units: int
) -> bool:
    """Return whether the two states differ by the swap, and by nothing else."""
    lamports = after.total_lamports - before.total_lamports + fee_units
    usdc = after.usdc_units - before.usdc_units
    if request.input_amount.token == SOL:
        is_right = lamports == -request.input_amount.units and usdc >= minimum_units
    else:
        is_right = usdc == -request.input_amount.units and lamports >= minimum_units
    return is_right and after.is_owner_controlled


def _is_system_account(wallet: AccountState | None) -> bool:
    return wallet is None or (wallet.owner == SYSTEM_PROGRAM and not wallet.data)


def _has_other_authority(account: AccountState | None, owner: Pubkey) -> bool:
    state = tokens.read_account(account)
    return state is not None and (
        state.owner != owner or state.delegate is not None or state.close_authority is not None
    )
