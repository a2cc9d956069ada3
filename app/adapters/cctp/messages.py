"""The bytes of a CCTP V2 message, read back and compared with what was burned. Pure.

Source: github.com/circlefin/evm-cctp-contracts, `MessageV2.sol` and `BurnMessageV2.sol`.
"""

from __future__ import annotations

from dataclasses import dataclass

from solders.pubkey import Pubkey

from app.core.chains import ChainName, Family

FAST, STANDARD = 1000, 2000
"""Finality thresholds: confirmed, and finalized."""
FORWARDING = b"cctp-forward".ljust(24, b"\0") + bytes(8)
"""The hook that asks Circle to submit the mint: its name, version 0, no payload."""

_VERSION = 1
_BODY = 148
_SHORTEST = _BODY + 228
_WORD = 32


class ForeignMessageError(ValueError):
    """The bytes are not the message of this burn."""


@dataclass(frozen=True, slots=True)
class Burn:
    """What a burn says: who burned how much of which token, and to whom it shall be minted, all as 32 bytes."""

    source_domain: int
    destination_domain: int
    token: bytes
    sender: bytes
    recipient: bytes
    units: int
    most_fee_units: int


@dataclass(frozen=True, slots=True)
class Message:
    """What attesters have filled in: the nonce, the fee taken, and the block past which it is void (0: none)."""

    raw: bytes
    nonce: bytes
    fee_units: int
    expires_at_block: int
    burn: Burn


def read(raw: bytes) -> Message:
    """Read a message. Raises: ForeignMessageError for bytes of another form."""
    if len(raw) < _SHORTEST or _number(raw, 0, 4) != _VERSION or _number(raw, _BODY, 4) != _VERSION:
        raise ForeignMessageError("not a message of CCTP V2")
    return Message(
        raw=raw,
        nonce=raw[12:44],
        fee_units=_number(raw, _BODY + 164),
        expires_at_block=_number(raw, _BODY + 196),
        burn=Burn(
            source_domain=_number(raw, 4, 4),
            destination_domain=_number(raw, 8, 4),
            token=raw[_BODY + 4 : _BODY + 36],
            recipient=raw[_BODY + 36 : _BODY + 68],
            units=_number(raw, _BODY + 68),
            sender=raw[_BODY + 100 : _BODY + 132],
            most_fee_units=_number(raw, _BODY + 132),
        ),
    )


def with_body(message: Message, body: bytes) -> Message:
    """Read a message with another body, as a chain says that it received it. Raises: ForeignMessageError."""
    return read(message.raw[:_BODY] + body)


def assert_attests(message: Message, burn: Burn) -> None:
    """Make sure that a message is this burn's, and takes no more than was allowed. Raises: ForeignMessageError."""
    if message.burn != burn or message.fee_units > burn.most_fee_units:
        raise ForeignMessageError("the message is not this burn's")


def as_word(address: str, chain: ChainName) -> bytes:
    """Return an address as the 32 bytes that messages carry."""
    if chain.family is Family.SOLANA:
        return bytes(Pubkey.from_string(address))
    return bytes(12) + bytes.fromhex(address[2:])


def _number(raw: bytes, at: int, length: int = _WORD) -> int:
    return int.from_bytes(raw[at : at + length], "big")
