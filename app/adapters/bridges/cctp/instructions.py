"""CCTP V2's instructions on Solana, exactly as in Circle's IDL. No I/O.

Source: github.com/circlefin/solana-cctp-contracts, programs/v2.
"""

import struct

from solders.instruction import AccountMeta, Instruction
from solders.pubkey import Pubkey
from solders.system_program import ID as SYSTEM_PROGRAM
from solders.token import ID as TOKEN_PROGRAM

from app.adapters.bridges.cctp import messages
from app.adapters.bridges.cctp.messages import CctpBurn, CctpMessage
from app.adapters.bridges.deployments import SOLANA_MESSENGER, SOLANA_TRANSMITTER
from app.adapters.solana.send import tokens
from app.adapters.solana.send.transactions import discriminator

MESSENGER = Pubkey.from_string(SOLANA_MESSENGER)
TRANSMITTER = Pubkey.from_string(SOLANA_TRANSMITTER)
_BURN = discriminator("global:deposit_for_burn")
_BURN_WITH_HOOK = discriminator("global:deposit_for_burn_with_hook")
_RECEIVE = discriminator("global:receive_message")
_TOKEN_MESSENGER = discriminator("account:TokenMessenger")
_FEE_RECIPIENT_AT = 8 + 3 * 32 + 4 + 1
"""After the discriminator: denylister, owner, pending owner, the body's version, a bump."""
USED_NONCE_BYTES = 9
EVENT_BYTES = 8 + 32 + 8 + 4 + 376 + len(messages.FORWARDING)
"""Discriminator, rent payer, time, and the message with its length."""
MESSENGER_ACCOUNT = Pubkey.find_program_address([b"token_messenger"], MESSENGER)[0]


def burn(
    owner: Pubkey, mint: Pubkey, event: Pubkey, content: CctpBurn, *, finality: int, is_forwarded: bool
) -> Instruction:
    """Build the burn; `event` is a new key that signs, too: its account contains the message."""
    domain = str(content.destination_domain).encode()
    accounts = [
        _signer(owner), AccountMeta(owner, is_signer=True, is_writable=True),
        _read(_at(MESSENGER, b"sender_authority")), _write(tokens.account_of(owner, mint)),
        _read(_at(MESSENGER, b"denylist_account", bytes(owner))), _write(_at(TRANSMITTER, b"message_transmitter")),
        _read(MESSENGER_ACCOUNT), _read(_at(MESSENGER, b"remote_token_messenger", domain)),
        _read(_at(MESSENGER, b"token_minter")), _write(_at(MESSENGER, b"local_token", bytes(mint))), _write(mint),
        AccountMeta(event, is_signer=True, is_writable=True),
        *(_read(program) for program in (TRANSMITTER, MESSENGER, TOKEN_PROGRAM, SYSTEM_PROGRAM)),
        _read(_at(MESSENGER, b"__event_authority")), _read(MESSENGER),
    ]  # fmt: skip
    arguments = (
        struct.pack("<QI", content.units, content.destination_domain)
        + content.recipient
        + bytes(32)  # anyone may submit the mint
        + struct.pack("<QI", content.max_fee_units, finality)
    )
    if not is_forwarded:
        return Instruction(MESSENGER, _BURN + arguments, accounts)
    return Instruction(MESSENGER, _BURN_WITH_HOOK + arguments + _with_length(messages.FORWARDING), accounts)


def receive_message(
    message: CctpMessage, attestation: bytes, mint: Pubkey, *, payer: Pubkey, token_account: Pubkey, fee_account: Pubkey
) -> Instruction:
    source = str(message.burn.source_domain).encode()
    accounts = [
        AccountMeta(payer, is_signer=True, is_writable=True), _signer(payer),
        _read(_at(TRANSMITTER, b"message_transmitter_authority", bytes(MESSENGER))),
        _read(_at(TRANSMITTER, b"message_transmitter")), _write(used_nonce(message)), _read(MESSENGER),
        _read(SYSTEM_PROGRAM), _read(_at(TRANSMITTER, b"__event_authority")), _read(TRANSMITTER),
        _read(MESSENGER_ACCOUNT), _read(_at(MESSENGER, b"remote_token_messenger", source)),
        _write(_at(MESSENGER, b"token_minter")), _write(_at(MESSENGER, b"local_token", bytes(mint))),
        _read(_at(MESSENGER, b"token_pair", source, message.burn.token)), _write(fee_account), _write(token_account),
        _write(_at(MESSENGER, b"custody", bytes(mint))), _read(TOKEN_PROGRAM),
        _read(_at(MESSENGER, b"__event_authority")), _read(MESSENGER),
    ]  # fmt: skip
    return Instruction(TRANSMITTER, _RECEIVE + _with_length(message.raw) + _with_length(attestation), accounts)


def received_message(data: bytes) -> bytes | None:
    """Read the message that an instruction to the transmitter receives, or None for any other instruction."""
    if not data.startswith(_RECEIVE):
        return None
    at = len(_RECEIVE) + 4
    length = int.from_bytes(data[len(_RECEIVE) : at], "little")
    return data[at : at + length] if len(data) >= at + length else None


def used_nonce(message: CctpMessage) -> Pubkey:
    """Return the account that exists once a message was received."""
    return _at(TRANSMITTER, b"used_nonce", message.nonce)


def fee_recipient(state: bytes) -> Pubkey:
    """Read the fee recipient from the messenger's account. Raises: ValueError for another kind of account."""
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
