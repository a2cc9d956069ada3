"""Diagnosis of an EVM chain: the state of its endpoints, and whether the contracts that we call are deployed."""

from __future__ import annotations

from app.adapters.evm.client import calls
from app.adapters.evm.client.rpc import EvmRpc
from app.adapters.evm.client.wire import hex_bytes
from app.adapters.evm.contracts.deployments import EvmDeployment
from app.adapters.jsonrpc.calls import RpcCall
from app.adapters.jsonrpc.endpoint import RpcEndpoint
from app.ports.chain import ChainDiagnosis


def diagnose(rpc: EvmRpc, deployment: EvmDeployment) -> ChainDiagnosis:
    """Query every endpoint for its chain and height, and the first usable one for the contracts."""

    def missing_contracts(endpoint: RpcEndpoint) -> list[str]:
        codes = {
            name: RpcCall("eth_getCode", (address, "latest"), read=hex_bytes)
            for name, address in deployment.contracts()
        }
        endpoint.run([*codes.values()])
        return [name for name, call in codes.items() if not call.result]

    return rpc.diagnose(calls.head, missing_contracts)
