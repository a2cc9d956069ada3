"""SPL Token: the instructions that payments and swaps need, and what a token account says.

Layouts: github.com/solana-program/token `state.rs` and `instruction.rs`, …/associated-token-account.
"""

from __future__ import annotations

import struct

from solders.instruction import AccountMeta, Instruction
from solders.pubkey import Pubkey
from solders.system_program import ID as SYSTEM_PROGRAM
from solders.token import ID as TOKEN_PROGRAM
from solders.token.associated import get_associated_token_address
from solders.token.state import TokenAccount

from app.adapters.solana.wire import AccountState

ASSOCIATED_TOKEN_PROGRAM = Pubkey.from_string("ATokenGPvbdGVxr1b2hvZbsiqW5xWH25efTNsLJA8knL")
TOKEN_2022_PROGRAM = Pubkey.from_string("TokenzQdBNbLqP5VEhdkAS6EPFLC1PHnBqCXEpPxuEb")
WRAPPED_SOL = Pubkey.from_string("So11111111111111111111111111111111111111112")
TOKEN_PROGRAMS = frozenset({TOKEN_PROGRAM, TOKEN_2022_PROGRAM})
TOKEN_ACCOUNT_BYTES = 165
_CREATE_IDEMPOTENT = b"\x01"
_TRANSFER_CHECKED = 12
_CLOSE_ACCOUNT = b"\x09"
_SYNC_NATIVE = b"\x11"
_REVOKE = b"\x05"
_NO_CLOSE_AUTHORITY = b"\x06\x03\x00"
"""SetAuthority of the kind CloseAccount, to nobody."""


def account_of(owner: Pubkey, mint: Pubkey) -> Pubkey:
    """Return the associated token account, the one that wallets use."""
    return get_associated_token_address(owner, mint)


def create_account(payer: Pubkey, owner: Pubkey, mint: Pubkey) -> Instruction:
    """Build CreateIdempotent: make the owner's associated token account unless it is there."""
    return Instruction(
        ASSOCIATED_TOKEN_PROGRAM,
        _CREATE_IDEMPOTENT,
        [
            AccountMeta(payer, is_signer=True, is_writable=True),
            AccountMeta(account_of(owner, mint), is_signer=False, is_writable=True),
            AccountMeta(owner, is_signer=False, is_writable=False),
            AccountMeta(mint, is_signer=False, is_writable=False),
            AccountMeta(SYSTEM_PROGRAM, is_signer=False, is_writable=False),
            AccountMeta(TOKEN_PROGRAM, is_signer=False, is_writable=False),
        ],
    )


def transfer_checked(
    owner: Pubkey, recipient: Pubkey, mint: Pubkey, *, units: int, decimals: int
) -> Instruction:
    """Build TransferChecked between the two associated token accounts; the chain compares the decimals."""
    return Instruction(
        TOKEN_PROGRAM,
        struct.pack("<BQB", _TRANSFER_CHECKED, units, decimals),
        [
            AccountMeta(account_of(owner, mint), is_signer=False, is_writable=True),
            AccountMeta(mint, is_signer=False, is_writable=False),
            AccountMeta(account_of(recipient, mint), is_signer=False, is_writable=True),
            AccountMeta(owner, is_signer=True, is_writable=False),
        ],
    )


def sync_native(account: Pubkey) -> Instruction:
    """Build SyncNative: let an account of wrapped SOL count the lamports that it was sent."""
    return Instruction(TOKEN_PROGRAM, _SYNC_NATIVE, [AccountMeta(account, is_signer=False, is_writable=True)])


def close_account(account: Pubkey, owner: Pubkey) -> Instruction:
    """Build CloseAccount: give an owner all lamports of a token account, wrapped SOL included."""
    return Instruction(
        TOKEN_PROGRAM,
        _CLOSE_ACCOUNT,
        [
            AccountMeta(account, is_signer=False, is_writable=True),
            AccountMeta(owner, is_signer=False, is_writable=True),
            AccountMeta(owner, is_signer=True, is_writable=False),
        ],
    )


def shut_others_out(owner: Pubkey, mint: Pubkey) -> list[Instruction]:
    """Build Revoke and SetAuthority: nobody but the owner may move what the account holds, or close it.

    Either fails where the account is not the owner's any more.
    """
    accounts = [
        AccountMeta(account_of(owner, mint), is_signer=False, is_writable=True),
        AccountMeta(owner, is_signer=True, is_writable=False),
    ]
    return [Instruction(TOKEN_PROGRAM, data, accounts) for data in (_REVOKE, _NO_CLOSE_AUTHORITY)]


def read_account(account: AccountState | None) -> TokenAccount | None:
    """Return what a token account of the classic program says, None for anything else."""
    if account is None or account.owner != TOKEN_PROGRAM or len(account.data) != TOKEN_ACCOUNT_BYTES:
        return None
    try:
        return TokenAccount.from_bytes(account.data)
    except ValueError:  # not initialized
        return None


def units_of(account: AccountState | None, *, owner: Pubkey, mint: Pubkey) -> int:
    """Return what an account holds for its owner.

    Anybody can send SOL to the address before the token account exists, and an owner can give the account
    away: such an account holds nothing of the wallet's.
    """
    state = read_account(account)
    return state.amount if state is not None and (state.mint, state.owner) == (mint, owner) else 0
