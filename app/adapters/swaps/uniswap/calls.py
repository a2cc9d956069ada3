"""Calldata of Uniswap V3's SwapRouter02 and QuoterV2: encoded, and decoded again before it is signed. No I/O.

Source: github.com/Uniswap/swap-router-contracts and github.com/Uniswap/v3-periphery.
"""

from __future__ import annotations

from dataclasses import dataclass

from app.adapters.evm.contracts.abi import Function, MulticallItem
from app.adapters.evm.contracts.deployments import EvmDeployment
from app.adapters.evm.send.transactions import CallTarget
from app.core.chains import USDC
from app.ports.errors import Rejected
from app.ports.swaps import SwapRequest

FEE_TIERS = (100, 500, 3000, 10_000)
"""In hundredths of a basis point; the quotes show which pools exist."""
PERMIT_REVERT = "EIP2612"
"""The start of USDC's refusals of a permit."""
TOO_LITTLE = "Too little received"
"""SwapRouter02's refusal of an output below the minimum."""

_QUOTE = Function("uniswap_quoter", "quoteExactInputSingle")
_MULTICALL = Function("uniswap_router", "multicall")
_EXACT_INPUT = Function("uniswap_router", "exactInputSingle")
_SELF_PERMIT = Function("uniswap_router", "selfPermitIfNecessary")
_UNWRAP = Function("uniswap_router", "unwrapWETH9")
_REFUND = Function("uniswap_router", "refundETH")
_ROUTER_ADDRESS_ALIAS = "0x0000000000000000000000000000000000000002"
"""SwapRouter02's `Constants.ADDRESS_THIS`."""


@dataclass(frozen=True, slots=True)
class PermitSignature:
    """An owner's signature that lets the router take exactly the amount of a swap."""

    v: int
    r: bytes
    s: bytes


@dataclass(frozen=True, slots=True)
class UniswapSwap:
    """The parameters of one swap's calldata."""

    request: SwapRequest
    fee_tier: int
    minimum_units: int
    deadline: int
    permit: PermitSignature | None


def quote(deployment: EvmDeployment, request: SwapRequest, fee_tier: int) -> MulticallItem:
    """Return the call for a pool's output for an exact input; it fails without a pool or enough liquidity."""
    input_address, output_address = _pair(deployment, request)
    arguments = (input_address, output_address, request.input_amount.units, fee_tier, 0)
    return _QUOTE.at(deployment.uniswap_quoter, arguments, may_fail=True)


def encode_swap(deployment: EvmDeployment, swap: UniswapSwap) -> CallTarget:
    """Return the one call that executes a swap, with permit and unwrap inside it if they are needed."""
    request = swap.request
    pays_ether, amount = request.input_amount.token != USDC, request.input_amount.units
    recipient = request.owner if pays_ether else _ROUTER_ADDRESS_ALIAS
    input_address, output_address = _pair(deployment, request)
    swap_call = (input_address, output_address, swap.fee_tier, recipient, amount, swap.minimum_units, 0)
    steps = [_EXACT_INPUT.encode(swap_call)]
    if pays_ether:
        # What a pool leaves over must not stay with the router, where anyone could take it.
        steps.append(_REFUND.encode())
    else:
        if swap.permit is not None:
            signature = (swap.permit.v, swap.permit.r, swap.permit.s)
            steps.insert(0, _SELF_PERMIT.encode(input_address, amount, swap.deadline, *signature))
        steps.append(_UNWRAP.encode(swap.minimum_units, request.owner))
    data = _MULTICALL.encode(swap.deadline, steps)
    return CallTarget(deployment.uniswap_router, amount if pays_ether else 0, data)


def assert_encodes(deployment: EvmDeployment, target: CallTarget, swap: UniswapSwap) -> None:
    """Decode a call and check that it is this swap for its owner, and nothing else.

    Raises: Rejected("unsafe_instructions") for anything else.
    """
    try:
        is_right = _encodes(deployment, target, swap)
    except ValueError:
        is_right = False
    if not is_right:
        raise Rejected("unsafe_instructions")


def _encodes(deployment: EvmDeployment, target: CallTarget, swap: UniswapSwap) -> bool:
    """Compare a call with a swap. Raises: ValueError for other functions or another number of them."""
    request = swap.request
    pays_ether, amount = request.input_amount.token != USDC, request.input_amount.units
    if target.to != deployment.uniswap_router or target.value_units != (amount if pays_ether else 0):
        return False
    deadline, steps = _MULTICALL.decode(target.data)
    if deadline != swap.deadline:
        return False
    if pays_ether:
        exchange, refund = steps
        return refund == _REFUND.encode() and _is_swap_call(deployment, exchange, swap, recipient=request.owner)
    permit, exchange, unwrap = steps
    token, units, until, *_signature = _SELF_PERMIT.decode(permit)
    return (
        (token, units, until) == (deployment.usdc, amount, swap.deadline)
        and _UNWRAP.decode(unwrap) == (swap.minimum_units, request.owner)
        and _is_swap_call(deployment, exchange, swap, recipient=_ROUTER_ADDRESS_ALIAS)
    )


def _is_swap_call(deployment: EvmDeployment, step: bytes, swap: UniswapSwap, *, recipient: str) -> bool:
    request = swap.request
    input_address, output_address = _pair(deployment, request)
    expected = (
        input_address, output_address, swap.fee_tier, recipient, request.input_amount.units, swap.minimum_units, 0,
    )  # fmt: skip
    return _EXACT_INPUT.decode(step) == (expected,)


def _pair(deployment: EvmDeployment, request: SwapRequest) -> tuple[str, str]:
    """Return the contracts of the input token and the output token, one of which is USDC."""
    usdc, weth = deployment.usdc, deployment.weth
    return (usdc, weth) if request.input_amount.token == USDC else (weth, usdc)
