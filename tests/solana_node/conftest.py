from collections.abc import Iterator

import pytest
from solders.keypair import Keypair

from solana_node import SolanaNode
from tests.solana_node.client import SOL, USDC, Client


@pytest.fixture
def node() -> Iterator[SolanaNode]:
    """Start a node with a clock that moves only by `advance`."""
    with SolanaNode(slot_ms=0) as node:
        yield node


@pytest.fixture
def client(node: SolanaNode) -> Iterator[Client]:
    with Client(node.url) as client:
        yield client


@pytest.fixture
def alice(node: SolanaNode) -> Keypair:
    """Fund a wallet with 10 SOL and 100 USDC, finalized."""
    keypair = Keypair()
    node.airdrop(keypair.pubkey(), 10 * SOL)
    node.mint_usdc(keypair.pubkey(), 100 * USDC)
    node.advance(32)
    return keypair
