"""Real Solana nodes for tests: fund a wallet, create an address, read a balance."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from solders.keypair import Keypair

from app.adapters.solana.chain import SolanaChain
from app.adapters.solana.deployments import DEPLOYMENTS
from app.core.chains import SOL, USDC
from solana_node import SolanaNode
from tests.support.waiting import beside

LAMPORTS = 10**9
# Slots until what was sent is confirmed, and until it is finalized.
CONFIRMED, FINALIZED = 2, 40


class CappedClock:
    """Seconds of a node with very short slots: at most `most_seconds` pass between two requests.

    A blockhash would expire within three seconds, which a busy machine may take from a draft to its broadcast.
    """

    def __init__(self, most_seconds: float) -> None:
        self._most_seconds = most_seconds
        self._passed = 0.0
        self._seen = time.monotonic()

    def __call__(self) -> float:
        seen, self._seen = self._seen, time.monotonic()
        self._passed += min(self._seen - seen, self._most_seconds)
        return self._passed


@contextmanager
def running_solana(*, slot_ms: int) -> Iterator[SolanaNode]:
    """Run a node with slots that pass automatically, or with `slot_ms=0` only by `advance`."""
    most_slots = 8
    with SolanaNode(slot_ms=slot_ms, now=CappedClock(most_slots * slot_ms / 1000)) as node:
        yield node


def solana_chain(node: SolanaNode) -> SolanaChain:
    """Return the adapter for a node."""
    return SolanaChain(DEPLOYMENTS["sandbox"], rpc_urls=[node.url], read_seconds=60)


def solana_address() -> str:
    """Return an unused address."""
    return str(Keypair().pubkey())


def fund_solana(node: SolanaNode, address: str, *, sol: float = 1, dollars: float = 0) -> None:
    """Pay a wallet with real transfers, and finalize them."""
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
    """Advance the slots of a node concurrently with the test, as on a real cluster."""
    done = threading.Event()

    def run() -> None:
        while not done.wait(0.02):
            node.advance(1)

    with beside(run, done):
        yield
