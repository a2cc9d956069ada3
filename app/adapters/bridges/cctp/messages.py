"""The bytes of a CCTP V2 message, decoded and compared with the burn; the values of both families of chains. No I/O.

Source: github.com/circlefin/evm-cctp-contracts, `MessageV2.sol` and `BurnMessageV2.sol`.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from solders.pubkey import Pubkey

from app.core.chains import ChainName, Family
from app.ports.bridges import ArrivalNotFound, BridgeArrival

FAST, STANDARD = 1000, 2000
"""Finality thresholds: confirmed, and finalized."""
FORWARDING = b"cctp-forward".ljust(24, b"\0") + bytes(8)
"""The hook that requests Circle to submit the mint: its name, version 0, no payload."""

_VERSION = 1
BODY_OFFSET = 148
_MIN_BYTES = BODY_OFFSET + 228
_WORD = 32


class MessageMismatchError(ValueError):
    """The bytes are not the message of this burn."""


@dataclass(frozen=True, slots=True)
class CctpBurn:
    """A burn's content: the burner, token and amount, and the recipient of the mint, all as 32 bytes."""

    source_domain: int
    destination_domain: int
    token: bytes
    sender: bytes
    recipient: bytes
    units: int
    max_fee_units: int


@dataclass(frozen=True, slots=True)
class CctpMessage:
    """The attesters' additions: the nonce, the fee charged, and the block after which it expires (0: never)."""

    raw: bytes
    nonce: bytes
    fee_units: int
    expires_at_block: int
    burn: CctpBurn


def read(raw: bytes) -> CctpMessage:
    """Parse a message. Raises: MessageMismatchError for bytes of another form."""
    if len(raw) < _MIN_BYTES or _number(raw, 0, 4) != _VERSION or _number(raw, BODY_OFFSET, 4) != _VERSION:
        raise MessageMismatchError("not a message of CCTP V2")
    return CctpMessage(
        raw=raw,
        nonce=raw[12:44],
        fee_units=_number(raw, BODY_OFFSET + 164),
        expires_at_block=_number(raw, BODY_OFFSET + 196),
        burn=CctpBurn(
            source_domain=_number(raw, 4, 4), destination_domain=_number(raw, 8, 4),
            token=raw[BODY_OFFSET + 4 : BODY_OFFSET + 36], recipient=raw[BODY_OFFSET + 36 : BODY_OFFSET + 68],
            units=_number(raw, BODY_OFFSET + 68), sender=raw[BODY_OFFSET + 100 : BODY_OFFSET + 132],
            max_fee_units=_number(raw, BODY_OFFSET + 132),
        ),
    )  # fmt: skip


def assert_attests(message: CctpMessage, burn: CctpBurn) -> None:
    """Check that a message is this burn's, and within its maximum fee. Raises: MessageMismatchError."""
    if message.burn != burn or message.fee_units > burn.max_fee_units:
        raise MessageMismatchError("the message does not belong to this burn")


def address_word(address: str, chain: ChainName) -> bytes:
    if chain.family is Family.SOLANA:
        return bytes(Pubkey.from_string(address))
    return bytes(12) + bytes.fromhex(address[2:])


def _number(raw: bytes, at: int, length: int = _WORD) -> int:
    return int.from_bytes(raw[at : at + length], "big")


def first_arrival(answers: Iterable[BridgeArrival | ArrivalNotFound]) -> BridgeArrival | ArrivalNotFound:
    """Return the arrival that one of the endpoints shows, or why none does: most keep some days only."""
    reason = ArrivalNotFound.UNREADABLE
    for found in answers:
        if isinstance(found, BridgeArrival):
            return found
        reason = found if found is ArrivalNotFound.NOT_FOUND else reason
    return reason
