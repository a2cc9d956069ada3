"""The chains and tokens that wallets hold, and the canonical form of addresses. Contracts are in the adapters."""

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from eth_utils.address import is_checksum_address, to_checksum_address


class Family(StrEnum):
    """Chains that share an address format and a key derivation."""

    EVM = "evm"
    SOLANA = "solana"


class ChainName(StrEnum):
    ETHEREUM = "ethereum"
    BASE = "base"
    SOLANA = "solana"

    @property
    def family(self) -> Family:
        return Family.SOLANA if self is ChainName.SOLANA else Family.EVM


@dataclass(frozen=True, slots=True)
class Token:
    """A token by symbol; a symbol has the same number of decimals on every chain served.

    That of a foreign token, which this service does not know, is its contract or mint, a colon, and its decimals.
    """

    symbol: str
    decimals: int

    @property
    def contract(self) -> str | None:
        address, colon, _ = self.symbol.partition(":")
        return address if colon else None


ETH = Token("ETH", 18)
SOL = Token("SOL", 9)
USDC = Token("USDC", 6)

TOKENS_BY_SYMBOL = {token.symbol: token for token in (ETH, SOL, USDC)}

MAX_DECIMALS = 36
"""A foreign token that claims more, or no number, is counted in base units."""


def token_named(symbol: str) -> Token:
    """Return a token by its symbol, known or foreign. Raises: LookupError, ValueError."""
    _, colon, decimals = symbol.partition(":")
    return Token(symbol, int(decimals)) if colon else TOKENS_BY_SYMBOL[symbol]


_NATIVE = {ChainName.ETHEREUM: ETH, ChainName.BASE: ETH, ChainName.SOLANA: SOL}


def native(chain: ChainName) -> Token:
    return _NATIVE[chain]


def tokens(chain: ChainName) -> tuple[Token, Token]:
    """Return the tokens served on a chain, the native one first."""
    return _NATIVE[chain], USDC


_EVM = re.compile(r"0x[0-9a-fA-F]{40}", re.ASCII)
_BASE58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_BASE58_VALUE = {letter: value for value, letter in enumerate(_BASE58)}
_SOLANA_BYTES = 32
_SOLANA_MAX_CHARS = 44
_EVM_FORM = "must be an EVM address: 0x and 40 hexadecimal digits"
ZERO_EVM_ADDRESS = "0x" + "0" * 40


class AddressError(ValueError):
    """The text is not an address of that family; the message may be shown to the client."""


def parse_address(text: str, family: Family) -> str:
    """Return the canonical form: EIP-55, or base58 of 32 bytes. Raises: AddressError, also for a wrong checksum."""
    return _parse_evm(text) if family is Family.EVM else _parse_solana(text)


def parse_any_address(text: str) -> tuple[Family, str]:
    """Return the family and canonical form of an address of any family. Raises: AddressError."""
    if text.startswith(("0x", "0X")):
        return Family.EVM, parse_address(text, Family.EVM)
    try:
        return Family.SOLANA, parse_address(text, Family.SOLANA)
    except AddressError:
        raise AddressError(f"{_EVM_FORM}, or a Solana address: base58 of 32 bytes{_hint(text)}") from None


def address_for_chain(text: str, chain: ChainName) -> str:
    """Return the canonical form of an address on a chain. Raises: AddressError."""
    return parse_address(text, chain.family)


def base58_bytes(text: str) -> bytes:
    """Decode base58, as Solana's tools encode keys. Raises: ValueError that contains nothing of the text."""
    number = 0
    for letter in text:
        if letter not in _BASE58_VALUE:
            raise ValueError("must be base58")
        number = number * 58 + _BASE58_VALUE[letter]
    leading_zeros = len(text) - len(text.lstrip("1"))
    return bytes(leading_zeros) + number.to_bytes((number.bit_length() + 7) // 8, "big")


def look_alikes(address: str, known: Iterable[str]) -> tuple[str, ...]:
    """Return the known addresses that a person could take another one for; none if it is known itself.

    Attackers make addresses with the first and last characters of a known one and send dust from them, hoping that
    they are copied from the history.
    """
    others = set(known)
    if address in others:
        return ()
    return tuple(sorted(each for each in others if _visible_part(each) == _visible_part(address)))


def _visible_part(address: str) -> tuple[str, str]:
    """Return the characters of an address that abbreviations show."""
    digits = address.removeprefix("0x").lower()
    return digits[:4], digits[-4:]


def _hint(text: str) -> str:
    if any(letter.isspace() or unicodedata.category(letter) == "Cf" for letter in text):
        return "; this has a space or an invisible character"
    if text.startswith("0X"):
        return "; the x must be small"
    if "." in text:
        return "; names, such as those of ENS, are not resolved"
    return "; leave out the prefix" if ":" in text else ""


def _parse_evm(text: str) -> str:
    if not _EVM.fullmatch(text):
        raise AddressError(_EVM_FORM + _hint(text))
    digits = text[2:]
    if digits not in (digits.lower(), digits.upper()) and not is_checksum_address(text):
        raise AddressError("has a wrong checksum (EIP-55): check it for typing errors")
    return str(to_checksum_address(text))


def _parse_solana(text: str) -> str:
    try:
        is_address = len(text) <= _SOLANA_MAX_CHARS and len(base58_bytes(text)) == _SOLANA_BYTES
    except ValueError:
        is_address = False
    if not is_address:
        raise AddressError("must be a Solana address: base58 of 32 bytes" + _hint(text))
    return text
