"""SPL Token: the instructions of payments and swaps, and the layout of token accounts.

Layouts: github.com/solana-program/token `state.rs` and `instruction.rs`. The library's instructions are imported where
they are built: that takes a quarter of a second of processor time, and most processes never build one.
"""

from solders.instruction import Instruction
from solders.pubkey import Pubkey
from solders.token import ID as TOKEN_PROGRAM
from solders.token.associated import get_associated_token_address
from solders.token.state import TokenAccount
from spl.token.constants import TOKEN_2022_PROGRAM_ID

from app.adapters.solana.client.wire import AccountState

TOKEN_PROGRAMS = frozenset({TOKEN_PROGRAM, TOKEN_2022_PROGRAM_ID})
TOKEN_ACCOUNT_BYTES = 165
account_of = get_associated_token_address
_NO_CLOSE_AUTHORITY = b"\x06\x03\x00"
"""SetAuthority of the kind CloseAccount, to none."""


def create_account(payer: Pubkey, owner: Pubkey, mint: Pubkey, program: Pubkey = TOKEN_PROGRAM) -> Instruction:
    """Build the creation of the associated token account, which does nothing if there is one."""
    from spl.token import instructions  # noqa: PLC0415 - see above

    return instructions.create_idempotent_associated_token_account(payer, owner, mint, program)


def sync_native(account: Pubkey) -> Instruction:
    """Build SyncNative: count the lamports of an account of wrapped SOL as tokens."""
    from spl.token import instructions, models  # noqa: PLC0415 - see above

    return instructions.sync_native(models.SyncNativeParams(program_id=TOKEN_PROGRAM, account=account))


def transfer_checked(
    owner: Pubkey, recipient: Pubkey, mint: Pubkey, *, units: int, decimals: int, program: Pubkey = TOKEN_PROGRAM
) -> Instruction:
    """Build TransferChecked between the two associated token accounts; the chain compares the decimals."""
    from spl.token import instructions, models  # noqa: PLC0415 - see above

    source, target = (account_of(each, mint, program) for each in (owner, recipient))
    paying = models.TransferCheckedParams(
        program_id=program, source=source, mint=mint, dest=target, owner=owner, amount=units, decimals=decimals
    )
    return instructions.transfer_checked(paying)


def close_account(account: Pubkey, owner: Pubkey) -> Instruction:
    """Build CloseAccount: return all lamports of a token account to its owner, wrapped SOL included."""
    from spl.token import instructions, models  # noqa: PLC0415 - see above

    closing = models.CloseAccountParams(program_id=TOKEN_PROGRAM, account=account, dest=owner, owner=owner)
    return instructions.close_account(closing)


def revoke_other_authorities(owner: Pubkey, mint: Pubkey) -> list[Instruction]:
    """Build Revoke and SetAuthority: only the owner may transfer or close; either fails if the owner has changed."""
    from spl.token import instructions, models  # noqa: PLC0415 - see above

    account = account_of(owner, mint)
    revoking = instructions.revoke(models.RevokeParams(program_id=TOKEN_PROGRAM, account=account, owner=owner))
    # The library would add 32 zero bytes for the new authority, which a large swap has no room for.
    return [revoking, Instruction(TOKEN_PROGRAM, _NO_CLOSE_AUTHORITY, revoking.accounts)]


def is_account(account: AccountState | None) -> bool:
    """Return whether an account at an associated address was created, and not only sent SOL in advance."""
    return account is not None and account.owner in TOKEN_PROGRAMS


def read_account(account: AccountState | None) -> TokenAccount | None:
    """Return the content of a token account of the classic program, or None for anything else."""
    if account is None or account.owner != TOKEN_PROGRAM or len(account.data) != TOKEN_ACCOUNT_BYTES:
        return None
    try:
        return TokenAccount.from_bytes(account.data)
    except ValueError:  # not initialized
        return None


def held_account(account: AccountState | None, *, owner: Pubkey, mint: Pubkey) -> TokenAccount | None:
    """Return the content of a token account if the wallet holds it.

    Anyone can send SOL to the address before the token account exists, and an owner can transfer the account's
    ownership: such an account holds nothing of the wallet's.
    """
    state = read_account(account)
    return state if state is not None and (state.mint, state.owner) == (mint, owner) else None


def units_of(account: AccountState | None, *, owner: Pubkey, mint: Pubkey) -> int:
    state = held_account(account, owner=owner, mint=mint)
    return state.amount if state is not None else 0
