"""How the endpoints of an EVM chain are, and whether the contracts that we call stand there."""

from __future__ import annotations

from collections.abc import Iterator

from app.adapters.evm.deployments import Deployment, PriceFeed
from app.adapters.evm.endpoint import Call, Endpoint, EndpointFailed
from app.adapters.evm.rpc import JsonRpc
from app.adapters.evm.wire import count, octets
from app.ports.chain import Diagnosis, EndpointState


def of(rpc: JsonRpc, deployment: Deployment) -> Diagnosis:
    """Ask every endpoint for its chain and height, and the first that serves for the contracts."""
    states = tuple(_state(endpoint, deployment.chain_id) for endpoint in rpc.endpoints)
    missing: tuple[str, ...] = ()
    for endpoint, state in zip(rpc.endpoints, states, strict=True):
        if state.problem is None:
            missing = _missing(endpoint, deployment)
            break
    return Diagnosis(states, missing)


def _state(endpoint: Endpoint, chain_id: int) -> EndpointState:
    height = Call("eth_blockNumber", (), read=count)
    try:
        # Asked anew: what an endpoint once showed says nothing about the node that answers there today.
        if endpoint.chain_id() != chain_id:
            return EndpointState(endpoint.number, "wrong_chain")
        endpoint.run([height])
    except EndpointFailed as failure:
        return EndpointState(endpoint.number, failure.reason)
    return EndpointState(endpoint.number, height=height.answer)


def _missing(endpoint: Endpoint, deployment: Deployment) -> tuple[str, ...]:
    named = dict(_contracts(deployment))
    calls = [Call("eth_getCode", (address, "latest"), read=octets) for address in named.values()]
    try:
        endpoint.run(calls)
    except EndpointFailed:
        return ()
    return tuple(name for name, call in zip(named, calls, strict=True) if not call.answer)


def _contracts(deployment: Deployment) -> Iterator[tuple[str, str]]:
    for name in deployment.__slots__:
        value = getattr(deployment, name)
        if isinstance(value, PriceFeed):
            yield name, value.address
        elif isinstance(value, str) and value.startswith("0x"):
            yield name, value
