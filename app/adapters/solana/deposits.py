"""Finds deposits."""

from __future__ import annotations

from collections.abc import Sequence

from solders.pubkey import Pubkey

from app.adapters.solana.rpc import SolanaRpc
from app.ports.chain import BlockRef, Scan, Terms, WatchedAddress


class DepositScanner:
    """Looks for deposits on the cluster."""

    def __init__(self, rpc: SolanaRpc, mint: Pubkey) -> None:
        """Take the endpoints and the mint of USDC."""
        self._rpc = rpc
        self._mint = mint

    def mark(self, address: str) -> Terms:
        """Take note."""
        raise NotImplementedError(address)

    def scan(self, watched: Sequence[WatchedAddress], *, cursor: BlockRef | None) -> Scan:
        """Find."""
        raise NotImplementedError(watched, cursor)
