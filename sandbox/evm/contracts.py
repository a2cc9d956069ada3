"""Everything that a fresh chain gets, in order. A new family of contracts is a new file and a line here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from app.adapters.evm.deployments import Deployment
from app.adapters.relay.deployments import LIFI_DIAMOND
from sandbox.evm.bridges import CCTP, PORTAL, place_cctp, place_portal, place_relay
from sandbox.evm.builder import Builder
from sandbox.evm.feeds import place_feeds
from sandbox.evm.optimism import place_predeploys
from sandbox.evm.rpc import NodeClient
from sandbox.evm.tokens import place_multicall, place_usdc, place_weth
from sandbox.evm.uniswap import place_uniswap

# EIP-2935's ring of 8191 block hashes. No contract here reads it, and with it anvil needs ever more time for the
# state root of a block (8 ms at 4000 blocks instead of 0.8): without code, the fork's rule is to skip it.
_BLOCK_HISTORY = "0x0000F90827F1C53a10cb7A02335B175320002935"


@dataclass(frozen=True, slots=True)
class ContractFamily:
    """Contracts that are placed together; code at the address `witness`, placed last, says they are there."""

    name: str
    witness: Callable[[Deployment], str | None]
    place: Callable[[Builder], None]


FAMILIES = (
    ContractFamily("usdc", lambda chain: chain.usdc, place_usdc),
    ContractFamily("multicall", lambda chain: chain.multicall3, place_multicall),
    ContractFamily("predeploys", lambda chain: chain.gas_price_oracle, place_predeploys),
    ContractFamily("weth", lambda chain: chain.weth, place_weth),
    ContractFamily("feeds", lambda chain: chain.usdc_usd_feed.address, place_feeds),
    ContractFamily("uniswap", lambda chain: chain.uniswap_quoter, place_uniswap),
    ContractFamily("cctp", lambda _chain: CCTP.messenger, place_cctp),
    ContractFamily("portal", lambda chain: PORTAL if chain.gas_price_oracle is None else None, place_portal),
    ContractFamily("relay", lambda _chain: LIFI_DIAMOND, place_relay),
)


def place_missing(builder: Builder) -> tuple[str, ...]:
    """Place the families that the chain lacks, and return their names: all on a fresh chain, else none."""
    builder.set_code(_BLOCK_HISTORY, "0x")
    placed = []
    for family in FAMILIES:
        witness = family.witness(builder.deployment)
        if witness is not None and not has_code(builder.client, witness):
            family.place(builder)
            placed.append(family.name)
    return tuple(placed)


def has_code(client: NodeClient, address: str) -> bool:
    """Tell whether a contract stands at an address."""
    return bool(client.call("eth_getCode", address, "latest") != "0x")
