"""Solana's clusters, and addresses that must not be paid: only data."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import ConfigDict, TypeAdapter

_FACTS = tomllib.loads(Path(__file__).with_name("deployments.toml").read_text("utf-8"))
_TESTNET_GENESIS = "4uhcVJyU9pJkvQyS88uRDiswHXSCkY3zQawwpjk2NsNY"


@dataclass(frozen=True, slots=True)
class SolanaDeployment:
    """A network's cluster; without `genesis_hash`, any but the public ones. `explorer_tx_url` has a `{tx_hash}`."""

    usdc_mint: str
    default_rpc_urls: tuple[str, ...]
    genesis_hash: str | None = None
    explorer_tx_url: str | None = None
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


_NETWORKS = TypeAdapter(dict[str, SolanaDeployment], config=ConfigDict(extra="forbid"))
DEPLOYMENTS = _NETWORKS.validate_python(_FACTS["networks"])
PUBLIC_GENESIS_HASHES = frozenset(
    {_TESTNET_GENESIS, *(each.genesis_hash for each in DEPLOYMENTS.values() if each.genesis_hash is not None)}
)
DEAD_ENDS: Mapping[str, str] = _FACTS["dead_ends"]
