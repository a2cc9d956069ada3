"""Chain clients on the RPC route, against a real node: the sandbox's chain serves it without a provider key."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import version

import pytest
from web3 import Web3

from sandbox.evm import EvmNode
from tests.support import compatibility
from tests.support.published import run_node
from tests.support.services import WebService, web_service

pytestmark = [pytest.mark.chain, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def service(own_sqlite_url: str, base_node: EvmNode) -> Iterator[WebService]:
    with web_service(own_sqlite_url, {"base_rpc_url": base_node.url}, workers=1, threads=20) as running:
        yield running


def test_web3_reads_a_chain_through_the_gateway(service: WebService, base_node: EvmNode) -> None:
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
    assert {entry["model"] for entry in usage} == {"eth_chainId", "eth_getBlockByNumber", "eth_blockNumber"}
    assert round(sum(entry["cost_usd"] for entry in usage), 9) == 0.0001 * 5
    compatibility.check("PyPI", "web3", version("web3"), ["read a chain", "batch of calls"])


def test_npm_packages_read_a_chain_through_the_gateway(service: WebService) -> None:
    key = service.register()["apiKey"]
    for row in run_node("examples.mjs", service.url, key, "viem_npm", "ethers_npm"):
        assert row["failed"] == {}
        compatibility.check(row["registry"], row["package"], row["version"], row["examples"])
    assert service.get("/v1/balance", key)["total_spent"] > 0
