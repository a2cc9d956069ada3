"""The effects of transactions on their sender, simulated in sequence before any is signed.

`eth_simulateV1` (execution-apis, since geth 1.14.9) runs them between two reads of the balances. Where a node does
not support it there is no simulation, and safety rests on calldata that we encoded, or decoded, ourselves.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import structlog

from app.adapters.evm.calls import call
from app.adapters.evm.contracts import calls as contracts
from app.adapters.evm.contracts.calls import EvmConnection
from app.adapters.evm.contracts.deployments import MULTICALL3
from app.adapters.evm.send import refusals
from app.adapters.evm.send.transactions import CallTarget
from app.adapters.jsonrpc.calls import RpcError, accept_any_error
from app.core.chains import ZERO_EVM_ADDRESS
from app.ports.errors import Rejected

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class SimulatedEffects:
    """Balance changes of the sender, which may include fees, as nodes differ in that; and the spender's position."""

    native_units: int
    usdc_units: int
    allowance_units: int
    """What the spender may take afterwards, and how much more that is than before."""
    added_allowance_units: int
    spender_native_units_before: int


def simulate(
    chain: EvmConnection, sender: str, targets: Sequence[CallTarget], *, spender: str = ZERO_EVM_ADDRESS
) -> SimulatedEffects | None:
    """Return the effects of calls in order, None if the node cannot. Raises: Rejected for a revert, Unreachable."""
    usdc = chain.deployment.usdc
    inner = [
        contracts.ETH_BALANCE.at(MULTICALL3, sender),
        contracts.BALANCE_OF.at(usdc, sender),
        contracts.ALLOWANCE.at(usdc, sender, spender),
        contracts.ETH_BALANCE.at(MULTICALL3, spender),
    ]
    probe = _called(CallTarget(MULTICALL3, 0, contracts.aggregate_data(inner)), sender)
    # A node that charges the calls charges the sender's probes too: the first two show how much.
    entries = [probe, probe, *(_called(each, sender) for each in targets), probe]
    payload: Any = {"blockStateCalls": [{"calls": entries}], "validation": False}

    def read(blocks: Any) -> tuple[list[Any], list[tuple[Any, ...]]]:
        results = blocks[0]["calls"]
        if len(results) != len(entries) or not all(entry["status"] in (0, 1) for entry in results):
            raise ValueError("expected simulated calls")
        balances = [contracts.read_aggregate(results[place]["returnData"], inner) for place in (0, 1, -1)]
        return results[2:-1], balances

    simulated = call(lambda eth: eth.simulate_v1(payload, "latest"), read, tolerates=accept_any_error)
    chain.rpc.run(simulated)
    if simulated.error is not None:
        return None
    results, (first, before, after) = simulated.result
    for entry in results:
        if not entry["status"]:
            raise Rejected("simulation_failed", details={"revert": _revert(entry)})
    native, usdc, added, _ = (now - then for now, then in zip(after, before, strict=True))
    return SimulatedEffects(native + first[0] - before[0], usdc, after[2], added, before[3])


def assert_takes_ether(chain: EvmConnection, sender: str, target: CallTarget, *, max_fee_units: int) -> None:
    """Check that a call takes its value, perhaps a fee, and nothing else. Raises: Rejected("unsafe_instructions")."""
    effects = simulate(chain, sender, [target], spender=target.to)
    if effects is not None and (
        not target.value_units <= -effects.native_units <= target.value_units + max_fee_units
        or effects.usdc_units != 0
        or effects.added_allowance_units > 0
    ):
        raise unsafe(effects, value_units=target.value_units, max_fee_units=max_fee_units)


def unsafe(effects: SimulatedEffects, **allowed_units: int) -> Rejected:
    """Return the refusal of these effects, after logging them next to what was allowed."""
    figures = {name: str(units) for name, units in {**asdict(effects), **allowed_units}.items()}
    _log.warning("unsafe_effects", **figures)
    return Rejected("unsafe_instructions")


def _called(target: CallTarget, sender: str) -> dict[str, Any]:
    return {"from": sender, "to": target.to, "value": target.value_units, "input": "0x" + target.data.hex()}


def _revert(result: dict[str, Any]) -> str:
    error = result.get("error")
    if not isinstance(error, dict):
        return "execution reverted"
    revert_data = error.get("data")
    return refusals.revert_text(
        RpcError(0, str(error.get("message") or ""), revert_data if isinstance(revert_data, str) else None)
    )
