"""Solana's clusters: only data.

Circle publishes the USDC mints, Solana's documentation the clusters. The sandbox has the mainnet mint's address on
its own cluster.
"""

from collections.abc import Mapping
from dataclasses import dataclass

_MAINNET_USDC = "EPjFWdd5AufqSSqeM2qN1xzybapC8G4wEGGkZwyTDt1v"
_MAINNET_GENESIS = "5eykt4UsFv8P8NJdTREpY1vzqKqZKvdpKuc147dw2N9d"
_DEVNET_GENESIS = "EtWTRABZaYq6iMfeYKouRu166VU2xqa1wcaWoxPkrZBG"
_TESTNET_GENESIS = "4uhcVJyU9pJkvQyS88uRDiswHXSCkY3zQawwpjk2NsNY"
PUBLIC_GENESIS_HASHES = frozenset({_MAINNET_GENESIS, _DEVNET_GENESIS, _TESTNET_GENESIS})


@dataclass(frozen=True, slots=True)
class SolanaDeployment:
    """A network's cluster; without `genesis_hash`, any but the public ones. `explorer_tx_url` has a `{tx_hash}`."""

    usdc_mint: str
    genesis_hash: str | None
    default_rpc_urls: tuple[str, ...]
    explorer_tx_url: str | None
    # Accounts that many transactions write: their fees show what landing costs now.
    busy_accounts: tuple[str, ...] = ()
    # The duration of a slot; 0 in the sandbox, which executes immediately.
    block_seconds: float = 0.4
    # The network's name in x402 version 1.
    legacy_network: str | None = None

    def accepts(self, genesis_hash: str) -> bool:
        if self.genesis_hash is None:
            return genesis_hash not in PUBLIC_GENESIS_HASHES
        return genesis_hash == self.genesis_hash


DEPLOYMENTS: Mapping[str, SolanaDeployment] = {
    "mainnet": SolanaDeployment(
        usdc_mint=_MAINNET_USDC,
        genesis_hash=_MAINNET_GENESIS,
        default_rpc_urls=("https://api.mainnet.solana.com", "https://api.mainnet-beta.solana.com"),
        explorer_tx_url="https://solscan.io/tx/{tx_hash}",
        legacy_network="solana",
        # The SOL/USDC pools of Orca and Raydium.
        busy_accounts=("Czfq3xZZDmsdGdUyrNLtRhGc47cXcZtLG4crryfu44zE", "58oQChx4yWmvKdwLLZzBi4ChoCc2fqCUWBkwMihLYQo2"),
    ),
    # Circle's USDC for tests is on the cluster that Solana calls devnet.
    "testnet": SolanaDeployment(
        usdc_mint="4zMMC9srt5Ri5X14GAgXhaHii3GnPAEERYPJgZJDncDU",
        genesis_hash=_DEVNET_GENESIS,
        default_rpc_urls=("https://api.devnet.solana.com",),
        explorer_tx_url="https://solscan.io/tx/{tx_hash}?cluster=devnet",
        legacy_network="solana-devnet",
    ),
    "sandbox": SolanaDeployment(
        usdc_mint=_MAINNET_USDC,
        genesis_hash=None,
        default_rpc_urls=("http://127.0.0.1:18899",),
        explorer_tx_url=None,
        block_seconds=0.0,
    ),
}

DEAD_ENDS: Mapping[str, str] = {
    "1nc1nerator11111111111111111111111111111111": "the incinerator",
    "So11111111111111111111111111111111111111112": "the mint of wrapped SOL",
    "Es9vMFrzaCERmJfrF4H2FYD4KCoNkY11McCe8BenwNYB": "the mint of USDT",
    **{deployment.usdc_mint: "the mint of USDC" for deployment in DEPLOYMENTS.values()},
    **dict.fromkeys(
        (
            "TokenkegQfeZyiNwAJbNbGKPFXCWuBvf9Ss623VQ5DA",
            "TokenzQdBNbLqP5VEhdkAS6EPFLC1PHnBqCXEpPxuEb",
            "ATokenGPvbdGVxr1b2hvZbsiqW5xWH25efTNsLJA8knL",
            "ComputeBudget111111111111111111111111111111",
            "AddressLookupTab1e1111111111111111111111111",
            "BPFLoaderUpgradeab1e11111111111111111111111",
            "BPFLoader2111111111111111111111111111111111",
            "BPFLoader1111111111111111111111111111111111",
            "NativeLoader1111111111111111111111111111111",
            "Config1111111111111111111111111111111111111",
            "Ed25519SigVerify111111111111111111111111111",
            "KeccakSecp256k11111111111111111111111111111",
            "Stake11111111111111111111111111111111111111",
            "StakeConfig11111111111111111111111111111111",
            "Vote111111111111111111111111111111111111111",
            "MemoSq4gqABAXKb96qnH8TysNcWxMyWCqXgDLGmfcHr",
            "Memo1UhkJRfHyvLMcVucJwxXeuD728EqVDDwQDxFMNo",
            "JUP6LkbZbjS1jKKwapdHNy74zcZ3tLUZoi5QNyVTaV4",
            "CCTPV2Sm4AdWt5296sk4P66VBZ7bEhcARwFaaS9YPbeC",
            "CCTPV2vPZJS2u2BBsUoscuikbYjnpFmbFsvVuJdgUMQe",
        ),
        "a program",
    ),
}
"""Addresses that burn or keep what is transferred to them, on every cluster; the runtime empties the incinerator."""
