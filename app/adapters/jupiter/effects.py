"""What a swap would change, by its simulation: exactly the amount leaves, enough comes back, nobody is let in. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from solders.pubkey import Pubkey
from solders.system_program import ID as SYSTEM_PROGRAM

from app.adapters.solana import tokens
from app.adapters.solana.wire import AccountState
from app.core.chains import SOL
from app.ports.swaps import Ask


@dataclass(frozen=True, slots=True)
class Holdings:
    """What an owner has: lamports in the address itself and in both token accounts, USDC, and who else may move it."""

    lamports: int
    wrapped_lamports: int
    usdc_lamports: int
    usdc_units: int
    is_own: bool

    @property
    def all_lamports(self) -> int:
        """Everything, rent included: what only changes its place within does not count."""
        return self.lamports + self.wrapped_lamports + self.usdc_lamports


def holdings(states: Sequence[AccountState | None], *, owner: Pubkey, usdc_mint: Pubkey) -> Holdings:
    """Read the owner's address, and the accounts of wrapped SOL and USDC."""
    wallet, wrapped, usdc = states
    return Holdings(
        lamports=wallet.lamports if wallet else 0,
        wrapped_lamports=wrapped.lamports if wrapped else 0,
        usdc_lamports=usdc.lamports if usdc else 0,
        usdc_units=tokens.units_of(usdc, owner=owner, mint=usdc_mint),
        is_own=_is_own(wallet) and not any(_lets_others_in(each, owner) for each in (wrapped, usdc)),
    )


def is_only(
    before: Holdings, after: Holdings | None, ask: Ask, *, minimum_units: int, fee_units: int
) -> bool:
    """Tell whether what would be differs from what was by the swap, and by nothing else."""
    if after is None:
        return False
    lamports = after.all_lamports - before.all_lamports + fee_units
    usdc = after.usdc_units - before.usdc_units
    if ask.given.token == SOL:
        is_right = lamports == -ask.given.units and usdc >= minimum_units
    else:
        is_right = usdc == -ask.given.units and lamports >= minimum_units
    return is_right and after.is_own


def _is_own(wallet: AccountState | None) -> bool:
    return wallet is None or (wallet.owner == SYSTEM_PROGRAM and not wallet.data)


def _lets_others_in(account: AccountState | None, owner: Pubkey) -> bool:
    state = tokens.read_account(account)
    return state is not None and (
        state.owner != owner or state.delegate is not None or state.close_authority is not None
    )
