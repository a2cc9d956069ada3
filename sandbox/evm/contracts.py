"""Everything that a fresh chain gets, in order. A new family of contracts is a new file and a line here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from app.adapters.evm.deployments import Deployment
from sandbox.evm.builder import Builder
from sandbox.evm.feeds import place_feeds
from sandbox.evm.optimism import place_predeploys
from sandbox.evm.rpc import NodeClient
from sandbox.evm.tokens import place_multicall, place_usdc, place_weth
from sandbox.evm.uniswap import place_uniswap


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
)


def place_missing(builder: Builder) -> tuple[str, ...]:
    """Place the families that the chain lacks, and return their names: all on a fresh chain, else none."""
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
