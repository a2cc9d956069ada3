"""Real Solana nodes for tests, and what their people do: fund a wallet, make a new address, look at a balance."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from solders.keypair import Keypair

from app.adapters.solana.chain import SolanaChain
from app.adapters.solana.deployments import DEPLOYMENTS
from app.core.chains import SOL, USDC
from sandbox.solana import SolanaNode

LAMPORTS = 10**9
# Slots until what was sent is confirmed, and until it is finalized.
CONFIRMED, FINALIZED = 2, 40


@contextmanager
def running_solana(*, slot_ms: int) -> Iterator[SolanaNode]:
    """Run a node whose slots pass by themselves, or with `slot_ms=0` only by `advance`."""
    with SolanaNode(slot_ms=slot_ms) as node:
        yield node


def solana_chain(node: SolanaNode) -> SolanaChain:
    """Return the adapter for a node."""
    return SolanaChain(DEPLOYMENTS["sandbox"], rpc_urls=[node.url])


def solana_address() -> str:
    """Return an address that nobody has used."""
    return str(Keypair().pubkey())


def fund_solana(node: SolanaNode, address: str, *, sol: float = 1, dollars: float = 0) -> None:
    """Pay a wallet with real transfers, and let them be finalized."""
    if sol:
        node.airdrop(address, int(sol * LAMPORTS))
    if dollars:
        node.mint_usdc(address, int(dollars * 10**6))
    node.advance(FINALIZED)


def held(chain: SolanaChain, address: str) -> tuple[int, int]:
    """Return (lamports, micro-USDC) of an address."""
    balances = chain.balances(address)
    return balances.of(SOL).units, balances.of(USDC).units


@contextmanager
def passing(node: SolanaNode) -> Iterator[None]:
    """Let the slots of a node pass beside the test, as they do in the world."""
    done = threading.Event()

    def run() -> None:
        while not done.wait(0.02):
            node.advance(1)

    clock = threading.Thread(target=run)
    clock.start()
    try:
        yield
    finally:
        done.set()
        clock.join()
