"""CCTP's bytes: Circle's published addresses, messages that must belong to the burn, transaction sizes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from solders.hash import Hash
from solders.keypair import Keypair
from solders.message import MessageV0
from solders.pubkey import Pubkey
from solders.signature import Signature
from solders.transaction import VersionedTransaction

from app.adapters.bridges.cctp import instructions, messages
from app.adapters.bridges.cctp.messages import CctpBurn, MessageMismatchError

MINT = Pubkey.from_string("EPjFWdd5AufqSSqeM2qN1xzybapC8G4wEGGkZwyTDt1v")
BURN = CctpBurn(
    source_domain=6, destination_domain=5, token=bytes(12) + b"\1" * 20, sender=bytes(12) + b"\2" * 20,
    recipient=b"\3" * 32, units=50_000_000, max_fee_units=5_500,
)  # fmt: skip


def message_of(burn: CctpBurn, *, fee: int = 5_000, expiry: int = 0, tail: bytes = b"") -> bytes:
    def number(value: int, length: int = 32) -> bytes:
        return value.to_bytes(length, "big")

    head = number(1, 4) + number(burn.source_domain, 4) + number(burn.destination_domain, 4) + b"\7" * 32
    head += bytes(96) + number(1000, 4) + number(1000, 4)
    body = number(1, 4) + burn.token + burn.recipient + number(burn.units) + burn.sender
    return head + body + number(burn.max_fee_units) + number(fee) + number(expiry) + tail


def test_a_burn_on_solana_uses_circles_published_accounts() -> None:
    owner, event = Keypair().pubkey(), Keypair().pubkey()
    to_base = replace(BURN, source_domain=5, destination_domain=6, recipient=b"\5" * 32)
    built = instructions.burn(owner, MINT, event, to_base, finality=messages.FAST, is_forwarded=True)
    named = [str(meta.pubkey) for meta in built.accounts]
    assert named[5:10] == [
        "W1k5ijkaSTo5iA5zChNpfzcy796fLhkBxfmJuR8W8HU",  # message_transmitter
        "AawthJCGRmggpfv9MMWV6Jmo9cue4gL9wUZgRBShg58W",  # token_messenger
        "BwmDYtQ7jFj8ddaTmKa7fz9hyuK9n58mvc8G7DYNcKjM",  # remote_token_messenger of Base
        "E1bQJ8eMMn3zmeSewW3HQ8zmJr7KR75JonbwAtWx2bux",  # token_minter
        "CRBBbuLCyrkQy4dCTHxqstSmDQv4ajBeUVb9qUdMVaP1",  # local_token of USDC
    ]
    assert len(named) == 18
    said = bytes(built.data)
    assert said[:8].hex() == "6ff53e83cc6cdf9b"
    assert said[-32:] == messages.FORWARDING == b"cctp-forward".ljust(32, b"\0")


def test_a_mint_with_two_attestations_fits_one_transaction_and_pays_the_recipient() -> None:
    owner = Keypair().pubkey()
    token_account = Pubkey.from_bytes(BURN.recipient)
    read = messages.read(message_of(BURN))
    accounts = {"payer": owner, "token_account": token_account, "fee_account": Keypair().pubkey()}
    built = instructions.receive_message(read, b"\1" * 130, MINT, **accounts)
    assert [str(built.accounts[place].pubkey) for place in (15, 16)] == [
        str(token_account),
        "6xTBTqJMBr5m7BKqVxmW2x11DfqUwtD3TJsqpxELx72L",  # custody of USDC
    ]
    message = MessageV0.try_compile(owner, [built], [], Hash.default())
    assert len(bytes(VersionedTransaction.populate(message, [Signature.default()]))) <= 1232


def test_only_this_burns_message_is_accepted() -> None:
    read = messages.read(message_of(BURN, expiry=77))
    messages.assert_attests(read, BURN)
    assert (read.fee_units, read.expires_at_block, read.nonce) == (5_000, 77, b"\7" * 32)
    for other in (
        replace(BURN, recipient=b"\4" * 32),
        replace(BURN, units=49_000_000),
        replace(BURN, destination_domain=0),
        replace(BURN, sender=b"\0" * 32),
        replace(BURN, token=b"\0" * 32),
    ):
        with pytest.raises(MessageMismatchError):
            messages.assert_attests(messages.read(message_of(other)), BURN)
    with pytest.raises(MessageMismatchError):
        messages.assert_attests(messages.read(message_of(BURN, fee=5_501)), BURN)


@given(st.binary(max_size=500))
def test_arbitrary_bytes_are_parsed_or_refused(raw: bytes) -> None:
    try:
        messages.read(raw)
    except MessageMismatchError:
        return
    assert len(raw) >= 376
