"""What transactions would change for their sender, tried one after another before any is signed.

`eth_simulateV1` (execution-apis, since geth 1.14.9) runs them between two looks at the balances. Where a node does not
offer it there is no rehearsal, and what is signed rests on having been written, or read back, by ourselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from app.adapters.evm import contracts, refusals
from app.adapters.evm.chain import EvmChain
from app.adapters.evm.endpoint import Call, RpcError
from app.adapters.evm.transactions import Target
from app.adapters.evm.wire import quantity
from app.adapters.json_rpc import MalformedAnswerError
from app.core.addresses import ZERO_EVM_ADDRESS
from app.ports.errors import Rejected


@dataclass(frozen=True, slots=True)
class Effects:
    """What changed for the sender, gas perhaps included, and what the spender may still take."""

    native_units: int
    usdc_units: int
    allowance_units: int


def rehearse(
    chain: EvmChain, sender: str, targets: Sequence[Target], *, spender: str = ZERO_EVM_ADDRESS
) -> Effects | None:
    """Return what calls in this order would change, None where the node cannot tell.

    Raises: Rejected("simulation_failed") for a call that reverts, Unreachable.
    """
    deployment = chain.deployment
    inner = [
        contracts.eth_balance(deployment.multicall3, sender),
        contracts.balance_of(deployment.usdc, sender),
        contracts.allowance(deployment.usdc, sender, spender),
    ]
    seen = contracts.aggregate(deployment.multicall3, inner)
    look = {"from": sender, "to": seen["to"], "input": seen["data"]}
    calls = [
        {"from": sender, "to": each.to, "value": hex(each.value_units), "input": "0x" + each.data.hex()}
        for each in targets
    ]
    asked = {"blockStateCalls": [{"calls": [look, *calls, look]}], "validation": False}

    def read(answer: object) -> Effects:
        results = _results(answer, expected=len(calls) + 2)
        for result in results[1:-1]:
            if quantity(result.get("status")) != 1:
                raise Rejected("simulation_failed", details={"revert": _revert(result)})
        before, after = (
            contracts.read_numbers(result.get("returnData"), expected=len(inner))
            for result in (results[0], results[-1])
        )
        return Effects(after[0] - before[0], after[1] - before[1], after[2])

    call = Call("eth_simulateV1", (asked, "latest"), read=read, tolerates=_anything)
    chain.rpc.run(call)
    return None if call.error is not None else call.answer


def _results(answer: object, *, expected: int) -> list[dict[str, Any]]:
    try:
        blocks: Any = answer
        results = list(blocks[0]["calls"])
    except (TypeError, LookupError):
        raise MalformedAnswerError("expected simulated calls") from None
    if len(results) != expected or not all(isinstance(result, dict) for result in results):
        raise MalformedAnswerError("expected simulated calls")
    return results


def _revert(result: dict[str, Any]) -> str:
    error = result.get("error")
    if not isinstance(error, dict):
        return "execution reverted"
    told = error.get("data")
    return refusals.revert_text(
        RpcError(0, str(error.get("message") or ""), told if isinstance(told, str) else None)
    )


def _anything(_error: RpcError) -> bool:
    return True
