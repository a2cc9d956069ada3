"""Calldata of Uniswap V3's SwapRouter02 and QuoterV2: written, and read back before it is signed. Pure.

Source: github.com/Uniswap/swap-router-contracts and github.com/Uniswap/v3-periphery.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from eth_abi.abi import decode, encode
from eth_abi.exceptions import DecodingError
from eth_utils.address import to_checksum_address

from app.adapters.evm.contracts import Inner
from app.adapters.evm.deployments import Deployment
from app.adapters.evm.transactions import Target
from app.adapters.json_rpc import MalformedAnswerError
from app.core.chains import USDC, Token
from app.ports.errors import Rejected
from app.ports.swaps import Ask

FEE_TIERS = (100, 500, 3000, 10_000)
"""In hundredths of a basis point; which pools exist, the quotes tell."""
PERMIT_REVERT = "EIP2612"
"""How USDC's refusals of a permit begin."""
TOO_LITTLE = "Too little received"
"""SwapRouter02's refusal of an output below the minimum."""

_QUOTE = bytes.fromhex("c6a5026a")  # quoteExactInputSingle((address,address,uint256,uint24,uint160))
_QUOTE_WORDS = 4
_WORD = 32
_MULTICALL = bytes.fromhex("5ae401dc")  # multicall(uint256,bytes[])
_EXACT_INPUT = bytes.fromhex(
    "04e45aaf"
)  # exactInputSingle((address,address,uint24,address,uint256,uint256,uint160))
_SELF_PERMIT = bytes.fromhex(
    "c2e3140a"
)  # selfPermitIfNecessary(address,uint256,uint256,uint8,bytes32,bytes32)
_UNWRAP = bytes.fromhex("49404b7c")  # unwrapWETH9(uint256,address)
_REFUND = bytes.fromhex("12210e8a")  # refundETH()
_EXACT_INPUT_TYPES = "(address,address,uint24,address,uint256,uint256,uint160)"
_SELF_PERMIT_TYPES = ("address", "uint256", "uint256", "uint8", "bytes32", "bytes32")
_ROUTER_ITSELF = "0x0000000000000000000000000000000000000002"
"""SwapRouter02's `Constants.ADDRESS_THIS`."""


@dataclass(frozen=True, slots=True)
class PermitSignature:
    """An owner's signature that lets the router take exactly the amount of a swap."""

    v: int
    r: bytes
    s: bytes


@dataclass(frozen=True, slots=True)
class Swap:
    """One swap as it is written into calldata."""

    ask: Ask
    fee_tier: int
    minimum_units: int
    deadline: int
    permit: PermitSignature | None


def quote(deployment: Deployment, ask: Ask, fee_tier: int) -> Inner:
    """Ask the quoter what a pool gives for an exact input."""
    given, wanted = _token(deployment, ask.given.token), _token(deployment, ask.wanted)
    asked = (given, wanted, ask.given.units, fee_tier, 0)
    return Inner(
        deployment.uniswap_quoter, _QUOTE + encode(["(address,address,uint256,uint24,uint160)"], [asked])
    )


def read_quote(returned: bytes | None) -> int | None:
    """Read what a pool gives; None where there is no pool or too little in it."""
    if returned is None:
        return None
    if len(returned) != _QUOTE_WORDS * _WORD:
        raise MalformedAnswerError("expected a quote")
    return int.from_bytes(returned[:_WORD], "big")


def write(deployment: Deployment, swap: Swap) -> Target:
    """Return the one call that carries a swap out: permit and unwrap inside it where they are needed."""
    ask = swap.ask
    pays_ether, amount = ask.given.token != USDC, ask.given.units
    recipient = ask.owner if pays_ether else _ROUTER_ITSELF
    given, wanted = _token(deployment, ask.given.token), _token(deployment, ask.wanted)
    exchanged = (given, wanted, swap.fee_tier, recipient, amount, swap.minimum_units, 0)
    steps = [_EXACT_INPUT + encode([_EXACT_INPUT_TYPES], [exchanged])]
    if pays_ether:
        # What a pool might leave over must not stay with the router, where anybody could take it.
        steps.append(_REFUND)
    else:
        if swap.permit is not None:
            signature = (swap.permit.v, swap.permit.r, swap.permit.s)
            permitted = (given, amount, swap.deadline, *signature)
            steps.insert(0, _SELF_PERMIT + encode(_SELF_PERMIT_TYPES, permitted))
        steps.append(_UNWRAP + encode(["uint256", "address"], [swap.minimum_units, ask.owner]))
    data = _MULTICALL + encode(["uint256", "bytes[]"], [swap.deadline, steps])
    return Target(deployment.uniswap_router, amount if pays_ether else 0, data)


def assert_says(deployment: Deployment, target: Target, swap: Swap) -> None:
    """Read a call back and make sure that it is this swap for its owner, and nothing else.

    Raises: Rejected("unsafe_instructions") for whatever is not exactly that.
    """
    try:
        is_right = _says(deployment, target, swap)
    except (DecodingError, OverflowError, ValueError):
        is_right = False
    if not is_right:
        raise Rejected("unsafe_instructions")


def _says(deployment: Deployment, target: Target, swap: Swap) -> bool:
    ask = swap.ask
    pays_ether, amount = ask.given.token != USDC, ask.given.units
    if target.to != deployment.uniswap_router or target.value_units != (amount if pays_ether else 0):
        return False
    if target.data[:4] != _MULTICALL:
        return False
    deadline, steps = decode(["uint256", "bytes[]"], target.data[4:])
    if deadline != swap.deadline or [step[:4] for step in steps] != _selectors(pays_ether=pays_ether):
        return False
    if pays_ether:
        return _exchanges(deployment, steps[0], swap, recipient=ask.owner)
    permit, exchange, unwrap = steps
    token, units, until, *_signature = decode(_SELF_PERMIT_TYPES, permit[4:])
    least, payee = decode(["uint256", "address"], unwrap[4:])
    return (
        (to_checksum_address(token), units, until) == (deployment.usdc, amount, swap.deadline)
        and (least, to_checksum_address(payee)) == (swap.minimum_units, ask.owner)
        and _exchanges(deployment, exchange, swap, recipient=_ROUTER_ITSELF)
    )


def _exchanges(deployment: Deployment, step: bytes, swap: Swap, *, recipient: str) -> bool:
    ((given, wanted, tier, payee, units, least, price_limit),) = decode([_EXACT_INPUT_TYPES], step[4:])
    ask = swap.ask
    return (
        to_checksum_address(given) == _token(deployment, ask.given.token)
        and to_checksum_address(wanted) == _token(deployment, ask.wanted)
        and to_checksum_address(payee) == recipient
        and (tier, units, least, price_limit) == (swap.fee_tier, ask.given.units, swap.minimum_units, 0)
    )


def _selectors(*, pays_ether: bool) -> Sequence[bytes]:
    if pays_ether:
        return [_EXACT_INPUT, _REFUND]
    return [_SELF_PERMIT, _EXACT_INPUT, _UNWRAP]


def _token(deployment: Deployment, token: Token) -> str:
    return deployment.usdc if token == USDC else deployment.weth
