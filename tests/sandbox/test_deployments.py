from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest
from eth_utils.address import is_checksum_address

from app.adapters.evm.contracts.deployments import DEPLOYMENTS, ChainlinkFeed, EvmDeployment


def addresses(deployment: EvmDeployment) -> list[str]:
    values = (getattr(deployment, field.name) for field in dataclasses.fields(deployment))
    texts = [value.address if isinstance(value, ChainlinkFeed) else value for value in values]
    return [text for text in texts if isinstance(text, str) and text.startswith("0x")]


@pytest.mark.parametrize("key", DEPLOYMENTS)
def test_every_address_has_a_valid_checksum(key: tuple[str, str]) -> None:
    found = addresses(DEPLOYMENTS[key])
    assert len(found) >= 9
    assert all(is_checksum_address(address) for address in found)


def test_every_network_has_both_chains_under_ids_of_their_own() -> None:
    assert set(DEPLOYMENTS) == {
        (network, chain) for network in ("mainnet", "testnet", "sandbox") for chain in ("ethereum", "base")
    }
    assert len({deployment.chain_id for deployment in DEPLOYMENTS.values()}) == len(DEPLOYMENTS)


@pytest.mark.parametrize("chain", ["ethereum", "base"])
def test_the_sandbox_runs_the_service_with_its_mainnet_addresses(chain: str) -> None:
    assert addresses(DEPLOYMENTS["sandbox", chain]) == addresses(DEPLOYMENTS["mainnet", chain])
    assert DEPLOYMENTS["sandbox", chain].explorer_tx_url is None


def test_reading_the_addresses_costs_no_chain_library() -> None:
    code = (
        "import sys, app.adapters.evm.contracts.deployments; "
        "sys.exit(' '.join(sys.modules.keys() & {'web3', 'eth_account', 'requests'}) or 0)"
    )
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", code], check=True, cwd=root)
