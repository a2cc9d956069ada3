"""ABI encoding of contract calls, by Solidity signatures."""

from typing import Any, TypeAlias

from eth_abi.abi import decode, encode
from eth_abi.grammar import TupleType, parse
from eth_utils.crypto import keccak

Argument: TypeAlias = str | int | bytes | list["Argument"] | tuple["Argument", ...]


def call_data(signature: str, *arguments: Argument) -> str:
    """Return the hex input of a call, e.g. `call_data("transfer(address,uint256)", to, units)`."""
    parameters = signature[signature.index("(") :]
    return "0x" + (keccak(text=signature)[:4] + encode_arguments(parameters, *arguments)).hex()


def encode_arguments(parameters: str, *arguments: Argument) -> bytes:
    """Return ABI-encoded arguments for a parameter list such as `(address,uint256)`."""
    return encode(_types(parameters), arguments)


def decode_result(parameters: str, result: str) -> tuple[Any, ...]:
    """Return the values in the hex result of a call."""
    return decode(_types(parameters), bytes.fromhex(result.removeprefix("0x")))


def _types(parameters: str) -> list[str]:
    if parameters == "()":
        return []
    parsed = parse(parameters)
    if not isinstance(parsed, TupleType):
        raise TypeError(parameters)
    return [component.to_type_str() for component in parsed.components]
