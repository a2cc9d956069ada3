"""Contract functions and events by their Solidity signatures, encoded and decoded by eth_abi. No ABI files, no network.

Addresses are decoded in EIP-55 form.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from eth_abi.codec import ABICodec
from eth_abi.decoding import AddressDecoder
from eth_abi.encoding import AddressEncoder
from eth_abi.exceptions import DecodingError
from eth_abi.grammar import TupleType, parse
from eth_abi.registry import ABIRegistry, BaseEquals, registry
from eth_utils.address import to_canonical_address, to_checksum_address
from eth_utils.crypto import keccak

from app.adapters.evm.client.wire import EventLog
from app.adapters.jsonrpc.replies import MalformedResponseError

_SELECTOR_BYTES = 4
_WORD_BYTES = 32
_ADDRESS = re.compile(r"0x[0-9a-fA-F]{40}", re.ASCII)


@dataclass(frozen=True, slots=True)
class MulticallItem:
    """One call inside a Multicall3; with `may_fail`, its result is None if it reverts or nothing is deployed there."""

    target: str
    function: Function
    data: bytes
    may_fail: bool = False


class Function:
    """A contract function by its signature, such as `balanceOf(address)`, and the types of its results."""

    def __init__(self, signature: str, returns: str = "()") -> None:
        self.selector = keccak(text=signature)[:_SELECTOR_BYTES]
        self._arguments = _types(signature[signature.index("(") :])
        self._results = _types(returns)

    def encode(self, *arguments: object) -> bytes:
        """Return the calldata of a call with these arguments."""
        return self.selector + _codec.encode(self._arguments, arguments)

    def decode(self, data: bytes) -> tuple[Any, ...]:
        """Return the arguments in calldata. Raises: MalformedResponseError for another function or other arguments."""
        if data[:_SELECTOR_BYTES] != self.selector:
            raise MalformedResponseError("expected a call of another function")
        return _decode(self._arguments, data[_SELECTOR_BYTES:])

    def decode_result(self, returned: bytes) -> Any:
        """Return the result of a call, as a tuple if the function has several. Raises: MalformedResponseError."""
        if self._results == ("uint256",) and len(returned) == _WORD_BYTES:
            return int.from_bytes(returned)
        results = _decode(self._results, returned)
        return results[0] if len(results) == 1 else results

    def at(self, target: str, *arguments: object, may_fail: bool = False) -> MulticallItem:
        return MulticallItem(target, self, self.encode(*arguments), may_fail)


class ContractEvent:
    """A contract event by its signature, such as `Withdrawal(address indexed,uint256)`."""

    def __init__(self, signature: str) -> None:
        self._topic = "0x" + keccak(text=signature.replace(" indexed", "")).hex()
        fields = signature[signature.index("(") + 1 : -1].split(",")
        self._is_indexed = [field.endswith(" indexed") for field in fields]
        self._indexed = [field.removesuffix(" indexed") for field in fields if field.endswith(" indexed")]
        self._others = [field for field in fields if not field.endswith(" indexed")]

    def topics(self, *indexed: object) -> list[str | list[str] | None]:
        """Return topics that select logs by the first indexed fields: a value, a list of values, or None for any."""
        return [self._topic, *map(_topic, self._indexed, indexed)]

    def decode(self, log: EventLog) -> tuple[Any, ...] | None:
        """Return the fields of a log in the signature's order, or None for anything but this event."""
        if log.topics[:1] != (self._topic,) or len(log.topics) != 1 + len(self._indexed):
            return None
        words = bytes.fromhex("".join(topic[2:] for topic in log.topics[1:]))
        try:
            indexed, others = iter(_decode(self._indexed, words)), iter(_decode(self._others, log.data))
        except MalformedResponseError:
            return None
        return tuple(next(indexed if is_indexed else others) for is_indexed in self._is_indexed)


def _canonical(address: Any) -> Any:
    """Return what `to_canonical_address` does, which takes twenty times as long for the usual form."""
    if isinstance(address, str) and _ADDRESS.fullmatch(address):
        return bytes.fromhex(address[2:])
    return to_canonical_address(address)


class _AddressEncoder(AddressEncoder):
    encode_fn = staticmethod(_canonical)

    @classmethod
    def validate_value(cls, value: object) -> None:
        """Skip the checksum: addresses are validated where they enter, and the encoding refuses anything else."""


class _ChecksumAddressDecoder(AddressDecoder):
    decoder_fn = staticmethod(to_checksum_address)


_registry: ABIRegistry = registry.copy()  # type: ignore[no-untyped-call]
_registry.unregister("address")
_is_address = BaseEquals("address")  # type: ignore[no-untyped-call]
_registry.register(_is_address, _AddressEncoder, _ChecksumAddressDecoder, label="address")
_codec = ABICodec(_registry)


def _types(parameters: str) -> Sequence[str]:
    if parameters == "()":
        return ()
    parsed = parse(parameters)
    if not isinstance(parsed, TupleType):
        raise TypeError(parameters)
    return tuple(component.to_type_str() for component in parsed.components)


def _topic(kind: str, field: object) -> str | list[str] | None:
    if isinstance(field, Iterable) and not isinstance(field, str | bytes):
        return ["0x" + _codec.encode([kind], [each]).hex() for each in field]
    return None if field is None else "0x" + _codec.encode([kind], [field]).hex()


def _decode(types: Sequence[str], data: bytes) -> tuple[Any, ...]:
    try:
        return _codec.decode(types, data)
    except (DecodingError, OverflowError, UnicodeDecodeError):
        raise MalformedResponseError(f"expected ({','.join(types)})") from None
