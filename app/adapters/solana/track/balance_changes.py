"""Balance changes of an address by a landed transaction. No I/O.

Instructions are not read: a transfer may be hidden in a call of any program, and a balance cannot be.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from operator import itemgetter

from solders.pubkey import Pubkey
from spl.token.constants import WRAPPED_SOL_MINT

from app.adapters.solana.client.wire import LandedTransaction
from app.adapters.solana.send import tokens
from app.core.chains import USDC, Token


@dataclass(frozen=True, slots=True)
class TokenHolder:
    address: str
    token_account: str
    mint: str


@dataclass(frozen=True, slots=True)
class BalanceChange:
    lamports: int
    usdc_units: int


def balance_change(holder: TokenHolder, landed: LandedTransaction) -> BalanceChange:
    """Return what a transaction changed; a token account counts only while the address owns it."""
    lamports = 0
    if holder.address in landed.keys:
        place = landed.keys.index(holder.address)
        lamports = landed.after[place] - landed.before[place]
    own, keys = (holder.token_account, holder.mint, holder.address), landed.keys
    before, after = (
        sum(each.units for each in side if (keys[each.account_index], each.mint, each.owner) == own)
        for side in (landed.tokens_before, landed.tokens_after)
    )
    return BalanceChange(lamports, after - before)


def is_signed_by(holder: TokenHolder, landed: LandedTransaction) -> bool:
    """Return whether the address had to sign: its own transactions, swaps or others, are no deposits."""
    return holder.address in landed.keys[: landed.transaction.message.header.num_required_signatures]


def payer_of_lamports(landed: LandedTransaction) -> str:
    """Return the account that paid the most, fees aside; the fee payer if none did."""
    payments = [before - after for before, after in zip(landed.before, landed.after, strict=True)]
    payments[0] -= landed.fee_units
    return _largest_payer(landed, zip(landed.keys, payments, strict=True))


def payer_of_tokens(landed: LandedTransaction, mint: str) -> str:
    """Return the owner who paid the most of a mint's tokens; the fee payer if none did."""
    return _largest_payer(landed, token_payments(landed, mint).items())


def _largest_payer(landed: LandedTransaction, payments: Iterable[tuple[str, int]]) -> str:
    payer, units = max(payments, key=itemgetter(1), default=("", 0))
    return payer if units > 0 else landed.keys[0]


def token_payments(landed: LandedTransaction, mint: str) -> Mapping[str, int]:
    """Return what each owner of a mint's tokens paid; negative for what was received."""
    payments: dict[str, int] = {}
    for sign, side in ((1, landed.tokens_before), (-1, landed.tokens_after)):
        for balance in side:
            if balance.mint == mint and balance.owner:
                payments[balance.owner] = payments.get(balance.owner, 0) + sign * balance.units
    return payments


def swap_output(landed: LandedTransaction, owner: str, token: Token, *, usdc_mint: Pubkey) -> int:
    """Return how much of a token a transaction paid its owner; the fee does not reduce it."""
    key = Pubkey.from_string(owner)
    if token == USDC:
        holder = TokenHolder(owner, str(tokens.account_of(key, usdc_mint)), str(usdc_mint))
        return max(balance_change(holder, landed).usdc_units, 0)
    # What the wrapping account held before already belonged to the owner.
    own = {owner, str(tokens.account_of(key, WRAPPED_SOL_MINT))}
    changes = zip(landed.keys, landed.before, landed.after, strict=True)
    return max(sum(after - before for name, before, after in changes if name in own) + landed.fee_units, 0)
