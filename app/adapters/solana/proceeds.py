"""What an exchange has brought, to the unit, by the balances around its own transaction. Pure."""

from __future__ import annotations

from solders.pubkey import Pubkey

from app.adapters.solana import arrivals, tokens
from app.adapters.solana.arrivals import Holder
from app.adapters.solana.wire import Landed
from app.core.chains import USDC, Token


def of_exchange(landed: Landed, owner: str, token: Token, *, usdc_mint: Pubkey) -> int:
    """Return how much of a token a transaction of its owner brought; the fee does not lessen it."""
    key = Pubkey.from_string(owner)
    if token == USDC:
        holder = Holder(owner, str(tokens.account_of(key, usdc_mint)), str(usdc_mint))
        return max(arrivals.change_of(holder, landed).usdc_units, 0)
    # What the wrapping account held before was the owner's already.
    own = {owner, str(tokens.account_of(key, tokens.WRAPPED_SOL))}
    changes = zip(landed.keys, landed.before, landed.after, strict=True)
    return max(sum(after - before for name, before, after in changes if name in own) + landed.fee_units, 0)
