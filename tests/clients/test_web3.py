"""web3.py on the RPC route, against a real node: the sandbox's chains answer where no key for a provider is set."""

from __future__ import annotations

import pytest
from web3 import Web3

from sandbox.evm import EvmNode
from tests.support.services import web_service

pytestmark = pytest.mark.chain


def test_web3_reads_a_chain_through_the_gateway(sqlite_url: str, base_node: EvmNode) -> None:
    with web_service(sqlite_url, {"base_rpc_url": base_node.url}, workers=1, threads=20) as service:
        key = service.register()["apiKey"]
        provider = Web3.HTTPProvider(
            f"{service.url}/v1/gateway/alchemy/base",
            request_kwargs={"headers": {"X-API-Key": key, "Content-Type": "application/json"}},
        )
        chain = Web3(provider)
        assert chain.eth.chain_id == base_node.chain_id
        assert chain.eth.get_block("latest")["number"] == chain.eth.block_number
        with chain.batch_requests() as batch:
            batch.add(chain.eth.get_block(0))  # type: ignore[arg-type]
            batch.add(chain.eth.get_block("latest"))  # type: ignore[arg-type]
            assert len(batch.execute()) == 2
        usage = service.get("/v1/usage", key)["logs"]
        assert {entry["model"] for entry in usage} == {
            "eth_chainId",
            "eth_getBlockByNumber",
            "eth_blockNumber",
        }
        assert round(sum(entry["cost_usd"] for entry in usage), 9) == 0.0001 * 5
