"""Addresses have one canonical form per family; wrong checksums and lookalikes are refused."""

from __future__ import annotations

import pytest
from eth_utils.address import to_checksum_address
from hypothesis import given
from hypothesis import strategies as st
from solders.pubkey import Pubkey

from app.core.chains import AddressError, ChainName, Family, address_for_chain, parse_address, parse_any_address

# The examples of EIP-55.
EIP_55 = [
    "0x52908400098527886E0F7030069857D2E4169EE7",
    "0x8617E340B3D01FA5F11F306F4090FD50E238070D",
    "0xde709f2102306220921060314715629080e2fb77",
    "0x27b1fdb04752bbc536007a920d24acb045561c26",
    "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed",
    "0xfB6916095ca1df60bB79Ce92cE3Ea74c37c5d359",
    "0xdbF03B407c01E7cD3CBea99509d93f8DDDC8C6FB",
    "0xD1220A0cf47c7B9Be7A2E6BA89F429762e7b9aDb",
]


@pytest.mark.parametrize("address", EIP_55)
def test_the_published_checksums_are_the_canonical_form(address: str) -> None:
    assert parse_address(address, Family.EVM) == address
    assert parse_address(address.lower(), Family.EVM) == address
    assert parse_address("0x" + address[2:].upper(), Family.EVM) == address


@given(st.binary(min_size=20, max_size=20))
def test_every_spelling_of_an_evm_address_has_one_canonical_form(raw: bytes) -> None:
    canonical = to_checksum_address(raw)
    for spelling in (canonical, "0x" + raw.hex(), "0x" + raw.hex().upper()):
        assert parse_any_address(spelling) == (Family.EVM, canonical)


@pytest.mark.parametrize("address", EIP_55[4:])
def test_one_letter_in_the_wrong_case_fails_the_checksum(address: str) -> None:
    place = next(n for n, letter in enumerate(address) if n > 1 and letter.isalpha())
    wrong = address[:place] + address[place].swapcase() + address[place + 1 :]
    with pytest.raises(AddressError, match="checksum"):
        parse_address(wrong, Family.EVM)


BAD_EVM = [
    "", "0x", "0x" + "a" * 39, "0x" + "a" * 41, "a" * 40, "0X" + "a" * 40, " 0x" + "a" * 40, "0x" + "a" * 40 + "\n",
    "0x" + "g" * 40, "0x" + "１" * 40, "0x" + "а" * 40, "0x" + "a" * 39 + "\x00", "vitalik.eth",
]  # fmt: skip


@pytest.mark.parametrize("text", BAD_EVM)
def test_lookalikes_of_evm_addresses_are_refused(text: str) -> None:
    with pytest.raises(AddressError, match="EVM address"):
        address_for_chain(text, ChainName.BASE)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("0X" + "7" * 40, "x must be small"), ("vitalik.eth", "not resolved"), (" 0x" + "7" * 40, "a space"),
        ("0x" + "7" * 40 + "\u200b", "invisible"), ("base:0x" + "7" * 40, "prefix"), ("hello", "or a Solana address"),
    ],
)  # fmt: skip
def test_an_entry_of_an_allowlist_is_refused_with_the_true_reason(text: str, reason: str) -> None:
    for parse in (parse_any_address, lambda each: address_for_chain(each, ChainName.BASE)):
        with pytest.raises(AddressError, match="EVM address"):
            parse(text)
    with pytest.raises(AddressError, match=reason):
        parse_any_address(text)


@given(st.binary(min_size=32, max_size=32))
def test_every_solana_address_is_its_own_canonical_form(raw: bytes) -> None:
    address = str(Pubkey.from_bytes(raw))
    assert parse_any_address(address) == (Family.SOLANA, address)


@given(st.text(alphabet="123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz", max_size=50))
def test_base58_is_a_solana_address_exactly_when_solders_accepts_it(text: str) -> None:
    try:
        Pubkey.from_string(text)
        known = True
    except ValueError:
        known = False
    try:
        parsed = parse_address(text, Family.SOLANA) == text
    except AddressError:
        parsed = False
    assert parsed is known


BAD_SOLANA = [
    "", "0", "O" * 44, "l" * 44, "1" * 31, "1" * 33, "z" * 44, "oeYf6KAJkLYhBuR8CiGc6L4D4Xtfepr85fuDgA9kq9 ",
    "0x" + "a" * 40, "oeYf6KAJkLYhBuR8CiGc6L4D4Xtfepr85fuDgA9kq96x", "é" * 44, "1" * 10_000,
]  # fmt: skip


@pytest.mark.parametrize("text", BAD_SOLANA)
def test_lookalikes_of_solana_addresses_are_refused(text: str) -> None:
    with pytest.raises(AddressError, match="Solana address"):
        address_for_chain(text, ChainName.SOLANA)


def test_an_address_of_one_family_is_invalid_in_the_other() -> None:
    with pytest.raises(AddressError, match="Solana"):
        address_for_chain(EIP_55[0], ChainName.SOLANA)
    for chain in (ChainName.ETHEREUM, ChainName.BASE):
        with pytest.raises(AddressError, match="EVM"):
            address_for_chain("oeYf6KAJkLYhBuR8CiGc6L4D4Xtfepr85fuDgA9kq96", chain)
