"""Encoding of SPL Token and Token-2022 accounts, and amounts as JSON.

Layouts: spl-token `state.rs`; a Token-2022 account with extensions has its type at byte 165.
"""

import struct
from dataclasses import dataclass
from typing import Final

from solders.account import Account
from solders.instruction import AccountMeta, Instruction
from solders.pubkey import Pubkey

from solana_node.addresses import ASSOCIATED_TOKEN, SYSTEM, TOKEN, TOKEN_PROGRAMS, associated_token_address
from solana_node.errors import JsonObject

TOKEN_ACCOUNT_BYTES: Final = 165
MINT_BYTES: Final = 82
_EXTENDED_MINT = 1
_EXTENDED_ACCOUNT = 2
_STATES: Final = ("", "initialized", "frozen")


@dataclass(frozen=True, slots=True)
class TokenAccount:
    """An SPL token account; amounts are in base units."""

    mint: str
    owner: str
    amount: int
    state: str
    delegate: str | None
    delegated_amount: int
    native_reserve_lamports: int | None
    """Set on wrapped SOL: the rent that is not part of the amount."""


@dataclass(frozen=True, slots=True)
class Mint:
    """An SPL mint; the supply is in base units."""

    decimals: int
    supply: int
    mint_authority: str | None
    freeze_authority: str | None


def read_token_account(account: Account | None) -> TokenAccount | None:
    """Decode a token account; None for anything else."""
    data = _token_program_data(account, size=TOKEN_ACCOUNT_BYTES, extended_kind=_EXTENDED_ACCOUNT)
    if data is None or not data[108]:
        return None
    native = _optional(data, 109, size=8)
    return TokenAccount(
        mint=str(Pubkey.from_bytes(data[:32])),
        owner=str(Pubkey.from_bytes(data[32:64])),
        amount=int.from_bytes(data[64:72], "little"),
        state=_STATES[data[108]],
        delegate=_optional_key(data, 72),
        delegated_amount=int.from_bytes(data[121:129], "little"),
        native_reserve_lamports=None if native is None else int.from_bytes(native, "little"),
    )


def read_mint(account: Account | None) -> Mint | None:
    """Decode a mint; None for anything else."""
    data = _token_program_data(account, size=MINT_BYTES, extended_kind=_EXTENDED_MINT)
    if data is None or not data[45]:
        return None
    return Mint(
        decimals=data[44],
        supply=int.from_bytes(data[36:44], "little"),
        mint_authority=_optional_key(data, 0),
        freeze_authority=_optional_key(data, 46),
    )


def mint_data(decimals: int, *, authority: Pubkey | None = None) -> bytes:
    """Return the data of a new mint without a freeze authority."""
    authority_field = struct.pack("<I", 1) + bytes(authority) if authority else bytes(36)
    return authority_field + struct.pack("<QBB", 0, decimals, 1) + bytes(36)


def token_account_data(mint: Pubkey, owner: Pubkey, amount: int, *, rent: int | None = None) -> bytes:
    """Return the data of a token account; `rent` makes it one of wrapped SOL."""
    native = bytes(12) if rent is None else struct.pack("<IQ", 1, rent)
    initialized = struct.pack("<B", _STATES.index("initialized"))
    return bytes(mint) + bytes(owner) + struct.pack("<Q", amount) + bytes(36) + initialized + native + bytes(44)


def amount_json(amount: int, *, decimals: int, null_when_zero: bool = False) -> JsonObject:
    """Return an amount as `UiTokenAmount`. Transaction metadata has null in `uiAmount` for zero."""
    text = str(amount).rjust(decimals + 1, "0")
    if decimals:
        text = f"{text[:-decimals]}.{text[-decimals:]}".rstrip("0").rstrip(".")
    return {
        "amount": str(amount),
        "decimals": decimals,
        "uiAmount": None if null_when_zero and not amount else float(text),
        "uiAmountString": text,
    }


def create_token_account(payer: Pubkey, owner: Pubkey, mint: Pubkey, *, program: str = TOKEN) -> Instruction:
    """Build CreateIdempotent of the Associated Token Account program."""
    return Instruction(
        Pubkey.from_string(ASSOCIATED_TOKEN),
        b"\x01",
        [
            AccountMeta(payer, is_signer=True, is_writable=True),
            AccountMeta(associated_token_address(owner, mint, program=program), is_signer=False, is_writable=True),
            AccountMeta(owner, is_signer=False, is_writable=False),
            AccountMeta(mint, is_signer=False, is_writable=False),
            AccountMeta(Pubkey.from_string(SYSTEM), is_signer=False, is_writable=False),
            AccountMeta(Pubkey.from_string(program), is_signer=False, is_writable=False),
        ],
    )


def mint_to_checked(
    mint: Pubkey, account: Pubkey, *, authority: Pubkey, amount: int, decimals: int, program: str = TOKEN
) -> Instruction:
    """Build MintToChecked of the SPL Token program."""
    return Instruction(
        Pubkey.from_string(program),
        struct.pack("<BQB", 14, amount, decimals),
        [
            AccountMeta(mint, is_signer=False, is_writable=True),
            AccountMeta(account, is_signer=False, is_writable=True),
            AccountMeta(authority, is_signer=True, is_writable=False),
        ],
    )


def _token_program_data(account: Account | None, *, size: int, extended_kind: int) -> bytes | None:
    if account is None or str(account.owner) not in TOKEN_PROGRAMS:
        return None
    data = bytes(account.data)
    extended = len(data) > TOKEN_ACCOUNT_BYTES + 1 and data[TOKEN_ACCOUNT_BYTES] == extended_kind
    return data if len(data) == size or extended else None


def _optional(data: bytes, offset: int, *, size: int) -> bytes | None:
    """Decode a C-style option: four bytes of presence, then the value."""
    return data[offset + 4 : offset + 4 + size] if data[offset] else None


def _optional_key(data: bytes, offset: int) -> str | None:
    key = _optional(data, offset, size=32)
    return None if key is None else str(Pubkey.from_bytes(key))
