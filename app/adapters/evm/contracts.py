"""Calldata of the few contract functions that we call, and what they return. No ABI files, no network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from eth_abi.abi import decode, encode
from eth_abi.exceptions import DecodingError

from app.adapters.evm.endpoint import Call
from app.adapters.evm.wire import address, octets
from app.adapters.json_rpc import MalformedAnswerError

_TRANSFER = bytes.fromhex("a9059cbb")  # ERC-20 transfer(address,uint256)
_BALANCE_OF = bytes.fromhex("70a08231")  # ERC-20 balanceOf(address)
_GET_ETH_BALANCE = bytes.fromhex("4d2301cc")  # Multicall3 getEthBalance(address)
_AGGREGATE3 = bytes.fromhex("82ad56cb")  # Multicall3 aggregate3((address,bool,bytes)[])
_BLOCK_TIMESTAMP = bytes.fromhex("0f28c97d")  # Multicall3 getCurrentBlockTimestamp()
_ALLOWANCE = bytes.fromhex("dd62ed3e")  # ERC-20 allowance(address,address)
_GET_L1_FEE = bytes.fromhex("49948e0e")  # GasPriceOracle getL1Fee(bytes), OP stack
_L1_FEE_FIGURES = ("519b4bd3", "f8206140", "c5985918", "68d5dca6")
"""GasPriceOracle l1BaseFee(), blobBaseFee(), baseFeeScalar(), blobBaseFeeScalar(), OP stack since Ecotone."""
_LATEST_ROUND_DATA = bytes.fromhex("feaf968c")  # AggregatorV3 latestRoundData(), Chainlink
TRANSFER_TOPIC = "0xddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef"
"""keccak of ERC-20's `Transfer(address,address,uint256)`."""

_WORD = 32


@dataclass(frozen=True, slots=True)
class Inner:
    """One call inside a Multicall3."""

    target: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Round:
    """A Chainlink answer: the price in 10^-8 dollars (an int256, so it may be negative) and its time."""

    answer: int
    updated_at: int


def transfer(recipient: str, units: int) -> bytes:
    """Return the calldata that moves ERC-20 tokens."""
    return _TRANSFER + word_of_address(recipient) + units.to_bytes(_WORD, "big")


def read_transfer(data: bytes) -> tuple[str, int] | None:
    """Return recipient and units of calldata that moves ERC-20 tokens, None for any other."""
    if len(data) != len(_TRANSFER) + 2 * _WORD or not data.startswith(_TRANSFER) or any(data[4:16]):
        return None
    return address("0x" + data[16:36].hex()), int.from_bytes(data[36:], "big")


def balance_of(token: str, holder: str) -> Inner:
    """Ask an ERC-20 token for a balance."""
    return Inner(token, _BALANCE_OF + word_of_address(holder))


def eth_balance(multicall: str, holder: str) -> Inner:
    """Ask Multicall3 for a native balance."""
    return Inner(multicall, _GET_ETH_BALANCE + word_of_address(holder))


def block_timestamp(multicall: str) -> Inner:
    """Ask Multicall3 for the time of the block."""
    return Inner(multicall, _BLOCK_TIMESTAMP)


def allowance(token: str, holder: str, spender: str) -> Inner:
    """Ask an ERC-20 token how much a spender may take."""
    return Inner(token, _ALLOWANCE + word_of_address(holder) + word_of_address(spender))


def l1_fee(oracle: str, unsigned: bytes) -> Inner:
    """Ask an OP chain what the L1 data of a transaction costs; it adds the signature's bytes itself."""
    return Inner(oracle, _GET_L1_FEE + encode(["bytes"], [unsigned]))


def l1_fee_figures(oracle: str) -> list[Inner]:
    """Ask an OP chain what its L1 data fee follows from: L1's base fee, blob base fee, and the scalars of both."""
    return [Inner(oracle, bytes.fromhex(selector)) for selector in _L1_FEE_FIGURES]


def latest_round(feed: str) -> Inner:
    """Ask a Chainlink feed for its newest answer."""
    return Inner(feed, _LATEST_ROUND_DATA)


def aggregate(multicall: str, inner: Sequence[Inner]) -> dict[str, str]:
    """Return the `eth_call` that makes several calls at one block, each of which may fail alone."""
    calls = [(call.target, True, call.data) for call in inner]
    data = _AGGREGATE3 + encode(["(address,bool,bytes)[]"], [calls])
    return {"to": multicall, "data": "0x" + data.hex()}


def read_aggregate(answer: object, *, expected: int) -> tuple[bytes | None, ...]:
    """Return what each inner call returned, None where it failed."""
    try:
        (results,) = decode(["(bool,bytes)[]"], octets(answer))
    except (DecodingError, OverflowError):
        raise MalformedAnswerError("expected Multicall3's results") from None
    if len(results) != expected:
        raise MalformedAnswerError("expected one result per inner call")
    return tuple(bytes(returned) if succeeded else None for succeeded, returned in results)


def numbers_call(multicall: str, inner: Sequence[Inner], block: str) -> Call[tuple[int, ...]]:
    """Return the call that reads several uint256 at one block, all of which must be there."""
    return Call(
        "eth_call",
        (aggregate(multicall, inner), block),
        read=lambda answer: read_numbers(answer, expected=len(inner)),
    )


def read_numbers(answer: object, *, expected: int) -> tuple[int, ...]:
    """Return what each inner call returned as uint256; none of them may have failed."""
    return tuple(number(returned) for returned in read_aggregate(answer, expected=expected))


def number(returned: bytes | None) -> int:
    """Read one uint256."""
    if returned is None or len(returned) != _WORD:
        raise MalformedAnswerError("expected a number")
    return int.from_bytes(returned, "big")


def round_data(returned: bytes | None) -> Round:
    """Read `(roundId, answer, startedAt, updatedAt, answeredInRound)`."""
    if returned is None or len(returned) != 5 * _WORD:
        raise MalformedAnswerError("expected a price round")
    return Round(
        answer=int.from_bytes(returned[_WORD : 2 * _WORD], "big", signed=True),
        updated_at=int.from_bytes(returned[3 * _WORD : 4 * _WORD], "big"),
    )


def word_of_address(text: str) -> bytes:
    """Return an address as one ABI word."""
    return bytes.fromhex(text.removeprefix("0x")).rjust(_WORD, b"\0")
