"""Recipient addresses: one canonical form per chain family, made here and nowhere else."""

from __future__ import annotations

import re

from eth_utils.address import is_checksum_address, to_checksum_address

from app.core.chains import ChainName, Family

_EVM = re.compile(r"0x[0-9a-fA-F]{40}", re.ASCII)
_BASE58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_BASE58_VALUE = {letter: value for value, letter in enumerate(_BASE58)}
_SOLANA_BYTES = 32
_SOLANA_MAX_LETTERS = 44
ZERO_EVM_ADDRESS = "0x" + "0" * 40


class AddressError(ValueError):
    """The text is not an address of that family; the message is fit for the caller."""


def parse(text: str, family: Family) -> str:
    """Return the canonical form: EIP-55 for EVM chains, base58 of exactly 32 bytes for Solana.

    A mixed-case EVM address whose checksum is wrong is refused (EIP-55): it is a typing error.

    Raises: AddressError.
    """
    return _parse_evm(text) if family is Family.EVM else _parse_solana(text)


def parse_any(text: str) -> tuple[Family, str]:
    """Return the family and canonical form of an address of any family. Raises: AddressError."""
    family = Family.EVM if text.startswith("0x") else Family.SOLANA
    return family, parse(text, family)


def for_chain(text: str, chain: ChainName) -> str:
    """Return the canonical form of an address on a chain. Raises: AddressError."""
    return parse(text, chain.family)


def base58_bytes(text: str) -> bytes:
    """Return what base58 stands for, as Solana's tools write keys. Raises: ValueError that shows nothing of it."""
    number = 0
    for letter in text:
        if letter not in _BASE58_VALUE:
            msg = "must be base58"
            raise ValueError(msg)
        number = number * 58 + _BASE58_VALUE[letter]
    leading_zeros = len(text) - len(text.lstrip("1"))
    return bytes(leading_zeros) + number.to_bytes((number.bit_length() + 7) // 8, "big")


def _parse_evm(text: str) -> str:
    if not _EVM.fullmatch(text):
        msg = "must be an EVM address: 0x and 40 hexadecimal digits"
        raise AddressError(msg)
    digits = text[2:]
    if digits not in (digits.lower(), digits.upper()) and not is_checksum_address(text):
        msg = "has a wrong checksum (EIP-55): check it for typing errors"
        raise AddressError(msg)
    return str(to_checksum_address(text))


def _parse_solana(text: str) -> str:
    number = 0
    if not 0 < len(text) <= _SOLANA_MAX_LETTERS:
        msg = "must be a Solana address: base58 of 32 bytes"
        raise AddressError(msg)
    for letter in text:
        if letter not in _BASE58_VALUE:
            msg = "must be a Solana address: base58 of 32 bytes"
            raise AddressError(msg)
        number = number * 58 + _BASE58_VALUE[letter]
    leading_zeros = len(text) - len(text.lstrip("1"))
    if leading_zeros + (number.bit_length() + 7) // 8 != _SOLANA_BYTES:
        msg = "must be a Solana address: base58 of 32 bytes"
        raise AddressError(msg)
    return text
