"""CCTP V2's instructions on Solana, byte for byte as Circle's IDL has them. Pure.

Source: github.com/circlefin/solana-cctp-contracts, programs/v2; discriminators are Anchor's `sha256("global:<name>")`.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from solders.instruction import AccountMeta, Instruction
from solders.pubkey import Pubkey
from solders.system_program import ID as SYSTEM_PROGRAM
from solders.token import ID as TOKEN_PROGRAM

from app.adapters.cctp import messages
from app.adapters.cctp.deployments import SOLANA_MESSENGER, SOLANA_TRANSMITTER
from app.adapters.cctp.messages import Message
from app.adapters.cctp.sides import BurnOrder
from app.adapters.solana import tokens

MESSENGER = Pubkey.from_string(SOLANA_MESSENGER)
TRANSMITTER = Pubkey.from_string(SOLANA_TRANSMITTER)
_BURN = bytes.fromhex("d73c3d2e723780b0")  # deposit_for_burn
_BURN_WITH_HOOK = bytes.fromhex("6ff53e83cc6cdf9b")  # deposit_for_burn_with_hook
_RECEIVE = bytes.fromhex("26907fe11fe1ee19")  # receive_message
_TOKEN_MESSENGER = bytes.fromhex("a204f23493f3dd60")  # Anchor's `sha256("account:TokenMessenger")`
_FEE_RECIPIENT_AT = 8 + 3 * 32 + 4 + 1
"""After the discriminator: denylister, owner, pending owner, the body's version, a bump."""
USED_NONCE_BYTES = 9
EVENT_BYTES = 8 + 32 + 8 + 4 + 376 + len(messages.FORWARDING)
"""Discriminator, who paid its rent, when, and the message with its length."""
MESSENGER_ACCOUNT = Pubkey.find_program_address([b"token_messenger"], MESSENGER)[0]


@dataclass(frozen=True, slots=True)
class Receipt:
    """Whom a mint on Solana pays: the owner's token account, and that of whoever gets the fees."""

    payer: Pubkey
    token_account: Pubkey
    fee_account: Pubkey


def burn(owner: Pubkey, mint: Pubkey, event: Pubkey, *, units: int, order: BurnOrder) -> Instruction:
    """Build the burn; `event` is a fresh key that signs, too: its account holds the message."""
    domain = str(order.domain).encode()
    accounts = [
        _signer(owner),
        AccountMeta(owner, is_signer=True, is_writable=True),
        _read(_at(MESSENGER, b"sender_authority")),
        _write(tokens.account_of(owner, mint)),
        _read(_at(MESSENGER, b"denylist_account", bytes(owner))),
        _write(_at(TRANSMITTER, b"message_transmitter")),
        _read(MESSENGER_ACCOUNT),
        _read(_at(MESSENGER, b"remote_token_messenger", domain)),
        _read(_at(MESSENGER, b"token_minter")),
        _write(_at(MESSENGER, b"local_token", bytes(mint))),
        _write(mint),
        AccountMeta(event, is_signer=True, is_writable=True),
        *(_read(program) for program in (TRANSMITTER, MESSENGER, TOKEN_PROGRAM, SYSTEM_PROGRAM)),
        _read(_at(MESSENGER, b"__event_authority")),
        _read(MESSENGER),
    ]
    said = (
        struct.pack("<QI", units, order.domain)
        + order.recipient
        + bytes(32)  # anybody may submit the mint
        + struct.pack("<QI", order.most_fee_units, order.finality)
    )
    if not order.is_forwarded:
        return Instruction(MESSENGER, _BURN + said, accounts)
    return Instruction(MESSENGER, _BURN_WITH_HOOK + said + _with_length(messages.FORWARDING), accounts)


def receive(receipt: Receipt, mint: Pubkey, message: Message, attestation: bytes) -> Instruction:
    """Build the mint of a message that came from another chain."""
    source = str(message.burn.source_domain).encode()
    accounts = [
        AccountMeta(receipt.payer, is_signer=True, is_writable=True),
        _signer(receipt.payer),
        _read(_at(TRANSMITTER, b"message_transmitter_authority", bytes(MESSENGER))),
        _read(_at(TRANSMITTER, b"message_transmitter")),
        _write(used_nonce(message)),
        _read(MESSENGER),
        _read(SYSTEM_PROGRAM),
        _read(_at(TRANSMITTER, b"__event_authority")),
        _read(TRANSMITTER),
        _read(MESSENGER_ACCOUNT),
        _read(_at(MESSENGER, b"remote_token_messenger", source)),
        _write(_at(MESSENGER, b"token_minter")),
        _write(_at(MESSENGER, b"local_token", bytes(mint))),
        _read(_at(MESSENGER, b"token_pair", source, message.burn.token)),
        _write(receipt.fee_account),
        _write(receipt.token_account),
        _write(_at(MESSENGER, b"custody", bytes(mint))),
        _read(TOKEN_PROGRAM),
        _read(_at(MESSENGER, b"__event_authority")),
        _read(MESSENGER),
    ]
    return Instruction(
        TRANSMITTER, _RECEIVE + _with_length(message.raw) + _with_length(attestation), accounts
    )


def received(said: bytes) -> bytes | None:
    """Read the message that an instruction to the transmitter receives, None where it does something else."""
    if not said.startswith(_RECEIVE):
        return None
    at = len(_RECEIVE) + 4
    length = int.from_bytes(said[len(_RECEIVE) : at], "little")
    return said[at : at + length] if len(said) >= at + length else None


def used_nonce(message: Message) -> Pubkey:
    """Return the account that is there once a message was received."""
    return _at(TRANSMITTER, b"used_nonce", message.nonce)


def fee_recipient(state: bytes) -> Pubkey:
    """Read who gets the fees from the messenger's account. Raises: ValueError for another kind of account."""
    found = state[_FEE_RECIPIENT_AT : _FEE_RECIPIENT_AT + Pubkey.LENGTH]
    if state[:8] != _TOKEN_MESSENGER or len(found) != Pubkey.LENGTH:
        raise ValueError("not a token messenger's account")
    return Pubkey.from_bytes(found)


def _at(program: Pubkey, *seeds: bytes) -> Pubkey:
    return Pubkey.find_program_address(list(seeds), program)[0]


def _read(key: Pubkey) -> AccountMeta:
    return AccountMeta(key, is_signer=False, is_writable=False)


def _write(key: Pubkey) -> AccountMeta:
    return AccountMeta(key, is_signer=False, is_writable=True)


def _signer(key: Pubkey) -> AccountMeta:
    return AccountMeta(key, is_signer=True, is_writable=False)


def _with_length(content: bytes) -> bytes:
    return struct.pack("<I", len(content)) + content
