"""The output of a swap, to the unit, from the balances before and after its transaction. No I/O."""

from __future__ import annotations

from solders.pubkey import Pubkey
from spl.token.constants import WRAPPED_SOL_MINT

from app.adapters.solana.client.wire import LandedTransaction
from app.adapters.solana.send import tokens
from app.adapters.solana.track import balance_changes
from app.adapters.solana.track.balance_changes import TokenHolder
from app.core.chains import USDC, Token


def swap_output(landed: LandedTransaction, owner: str, token: Token, *, usdc_mint: Pubkey) -> int:
    """Return how much of a token a transaction paid its owner; the fee does not reduce it."""
    key = Pubkey.from_string(owner)
    if token == USDC:
        holder = TokenHolder(owner, str(tokens.account_of(key, usdc_mint)), str(usdc_mint))
        return max(balance_changes.balance_change(holder, landed).usdc_units, 0)
    # What the wrapping account held before already belonged to the owner.
    own = {owner, str(tokens.account_of(key, WRAPPED_SOL_MINT))}
    changes = zip(landed.keys, landed.before, landed.after, strict=True)
    return max(sum(after - before for name, before, after in changes if name in own) + landed.fee_units, 0)
