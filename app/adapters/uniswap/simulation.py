"""What a swap would change, seen before it is signed: exactly the amount leaves, enough comes back, no more.

`eth_simulateV1` (execution-apis, since geth 1.14.9) runs the call between two looks at the balances. Where a node
does not offer it, the estimate of gas has shown that it does not revert, and the call itself was read back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from app.adapters.evm import contracts
from app.adapters.evm.chain import EvmChain
from app.adapters.evm.endpoint import Call, RpcError
from app.adapters.evm.transactions import Target
from app.adapters.evm.wire import quantity
from app.adapters.json_rpc import MalformedAnswerError
from app.adapters.uniswap.calls import Swap
from app.core.chains import USDC
from app.ports.chain import Draft
from app.ports.errors import Rejected

_LOOK, _SWAP, _LOOK_AGAIN = range(3)


@dataclass(frozen=True, slots=True)
class _Holdings:
    native_units: int
    usdc_units: int
    router_may_take: int
    router_native_units: int


def assert_only(chain: EvmChain, draft: Draft, target: Target, swap: Swap) -> None:
    """Run a swap for show. Raises: Rejected("unsafe_instructions", "simulation_failed"), Unreachable."""
    seen = _simulated(chain, target, swap.ask.owner)
    if seen is None:
        return
    before, after = seen
    native_gain = after.native_units - before.native_units
    usdc_gain = after.usdc_units - before.usdc_units
    amount, least = swap.ask.given.units, swap.minimum_units
    # Nodes differ in whether a simulated call pays for its gas.
    if swap.ask.given.token == USDC:
        is_right = usdc_gain == -amount and native_gain + draft.fee_units >= least
    else:
        # Whatever a stranger has left with the router is handed out with the refund.
        most = before.router_native_units - amount
        is_right = -amount - draft.fee_units <= native_gain <= most and usdc_gain >= least
    if not is_right or after.router_may_take > before.router_may_take:
        raise Rejected("unsafe_instructions")


def _simulated(chain: EvmChain, target: Target, owner: str) -> tuple[_Holdings, _Holdings] | None:
    deployment = chain.deployment
    inner = [
        contracts.eth_balance(deployment.multicall3, owner),
        contracts.balance_of(deployment.usdc, owner),
        contracts.allowance(deployment.usdc, owner, deployment.uniswap_router),
        contracts.eth_balance(deployment.multicall3, deployment.uniswap_router),
    ]
    look = {"from": owner, **_as_input(contracts.aggregate(deployment.multicall3, inner))}
    swap = {
        "from": owner, "to": target.to, "value": hex(target.value_units), "input": "0x" + target.data.hex(),
    }  # fmt: skip
    asked = {"blockStateCalls": [{"calls": [look, swap, look]}], "validation": False}

    def read(answer: object) -> tuple[_Holdings, _Holdings]:
        results = _results(answer)
        if quantity(results[_SWAP].get("status")) != 1:
            raise Rejected("simulation_failed")
        first, last = (
            contracts.read_numbers(results[place].get("returnData"), expected=len(inner))
            for place in (_LOOK, _LOOK_AGAIN)
        )
        return _Holdings(*first), _Holdings(*last)

    call = Call("eth_simulateV1", (asked, "latest"), read=read, tolerates=_anything)
    chain.rpc.run(call)
    return None if call.error is not None else call.answer


def _results(answer: object) -> list[dict[str, object]]:
    try:
        blocks: Any = answer
        results = list(blocks[0]["calls"])
    except (TypeError, LookupError):
        raise MalformedAnswerError("expected simulated calls") from None
    if len(results) != _LOOK_AGAIN + 1 or not all(isinstance(result, dict) for result in results):
        raise MalformedAnswerError("expected simulated calls")
    return results


def _as_input(call: dict[str, str]) -> dict[str, str]:
    return {"to": call["to"], "input": call["data"]}


def _anything(_error: RpcError) -> bool:
    return True
