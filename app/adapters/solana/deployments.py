"""What differs between Solana's clusters: only data.

Circle publishes the USDC mints, Solana's documentation the clusters. The sandbox has the mainnet mint's
address on a cluster of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

_MAINNET_USDC = "EPjFWdd5AufqSSqeM2qN1xzybapC8G4wEGGkZwyTDt1v"
_MAINNET_GENESIS = "5eykt4UsFv8P8NJdTREpY1vzqKqZKvdpKuc147dw2N9d"
_DEVNET_GENESIS = "EtWTRABZaYq6iMfeYKouRu166VU2xqa1wcaWoxPkrZBG"
_TESTNET_GENESIS = "4uhcVJyU9pJkvQyS88uRDiswHXSCkY3zQawwpjk2NsNY"
PUBLIC_GENESIS_HASHES = frozenset({_MAINNET_GENESIS, _DEVNET_GENESIS, _TESTNET_GENESIS})


@dataclass(frozen=True, slots=True)
class Deployment:
    """One network's cluster; `genesis_hash` is None where any cluster but the public ones is meant.

    `explorer_tx_url` is a template with `{tx_hash}`.
    """

    usdc_mint: str
    genesis_hash: str | None
    default_rpc_urls: tuple[str, ...]
    explorer_tx_url: str | None

    def accepts(self, genesis_hash: str) -> bool:
        """Tell whether a cluster with this genesis hash may be used on this network."""
        if self.genesis_hash is None:
            return genesis_hash not in PUBLIC_GENESIS_HASHES
        return genesis_hash == self.genesis_hash


DEPLOYMENTS: Mapping[str, Deployment] = MappingProxyType(
    {
        "mainnet": Deployment(
            usdc_mint=_MAINNET_USDC,
            genesis_hash=_MAINNET_GENESIS,
            default_rpc_urls=("https://api.mainnet.solana.com", "https://api.mainnet-beta.solana.com"),
            explorer_tx_url="https://solscan.io/tx/{tx_hash}",
        ),
        # Circle's USDC for tests is on the cluster that Solana calls devnet.
        "testnet": Deployment(
            usdc_mint="4zMMC9srt5Ri5X14GAgXhaHii3GnPAEERYPJgZJDncDU",
            genesis_hash=_DEVNET_GENESIS,
            default_rpc_urls=("https://api.devnet.solana.com",),
            explorer_tx_url="https://solscan.io/tx/{tx_hash}?cluster=devnet",
        ),
        "sandbox": Deployment(
            usdc_mint=_MAINNET_USDC,
            genesis_hash=None,
            default_rpc_urls=("http://127.0.0.1:18899",),
            explorer_tx_url=None,
        ),
    }
)
"""Keyed by network: "mainnet", "testnet" or "sandbox"."""
