"""Contract families of a fresh chain, in order. A new family is a new file and a line here."""

from collections.abc import Callable
from dataclasses import dataclass

from app.adapters.bridges.deployments import LIFI_DIAMOND
from app.adapters.evm.contracts.deployments import X402_PERMIT2_PROXY, EvmDeployment
from sandbox.evm.bridges import CCTP, PORTAL, place_cctp, place_portal, place_relay
from sandbox.evm.builder import Builder
from sandbox.evm.optimism import place_predeploys
from sandbox.evm.permit2 import place_permit2
from sandbox.evm.price_feeds import place_feeds
from sandbox.evm.rpc import NodeClient
from sandbox.evm.tokens import place_multicall, place_usdc, place_weth
from sandbox.evm.uniswap import place_uniswap

# EIP-2935's ring of 8191 block hashes. No contract here reads it, and it slows anvil's state
# root down (8 ms instead of 0.8 at 4000 blocks): without code, the rule of the fork is to skip it.
_BLOCK_HISTORY = "0x0000F90827F1C53a10cb7A02335B175320002935"


@dataclass(frozen=True, slots=True)
class ContractFamily:
    """Contracts that are placed together; the one at `witness` is placed last and marks completion."""

    name: str
    witness: Callable[[EvmDeployment], str | None]
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
    ContractFamily("permit2", lambda _chain: X402_PERMIT2_PROXY, place_permit2),
    ContractFamily("relay", lambda _chain: LIFI_DIAMOND, place_relay),
)


def place_missing(builder: Builder) -> tuple[str, ...]:
    """Place the families that the chain lacks, and return their names."""
    builder.set_code(_BLOCK_HISTORY, "0x")
    placed = []
    for family in FAMILIES:
        witness = family.witness(builder.deployment)
        if witness is not None and not has_code(builder.client, witness):
            family.place(builder)
            placed.append(family.name)
    return tuple(placed)


def has_code(client: NodeClient, address: str) -> bool:
    """Return whether an address has code."""
    return bool(client.call("eth_getCode", address, "latest") != "0x")
