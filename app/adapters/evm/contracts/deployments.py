"""The addresses of every contract that we call, by network and chain, and those that must not be paid: only data.

The sandbox has the same contracts at the mainnet addresses, under private chain ids, so that nothing signed there is
valid elsewhere.
"""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path

from pydantic import ConfigDict, TypeAdapter

from app.adapters.bridges import deployments as bridges

MULTICALL3 = "0xcA11bde05977b3631167028862bE2a173976CA11"


@dataclass(frozen=True, slots=True)
class ChainlinkFeed:
    """A Chainlink aggregator (8 decimals), and when its answer is stale: after three promised heartbeats."""

    address: str
    max_age_seconds: int


PERMIT2 = "0x000000000022D473030F116dDEE9F6B43aC78BA3"
X402_PERMIT2_PROXY = "0x402085c248EeA27D92E8b30b2C58ed07f9E20001"
X402_UPTO_PROXY = "0x4020A4f3b7b90ccA423B9fabCc0CE57C6C240002"
"""All are at the same address on all chains."""


@dataclass(frozen=True, slots=True)
class EvmDeployment:
    """The contracts of a chain on a network, None for those it lacks; `explorer_tx_url` has a `{tx_hash}`."""

    chain_id: int
    usdc: str
    weth: str
    eth_usd_feed: ChainlinkFeed
    usdc_usd_feed: ChainlinkFeed
    uniswap_factory: str
    uniswap_router: str
    uniswap_quoter: str
    uniswap_position_manager: str
    default_rpc_urls: tuple[str, ...]
    explorer_tx_url: str | None
    multicall3: str = field(default=MULTICALL3, init=False)
    sol_usd_feed: ChainlinkFeed | None = None
    gas_price_oracle: str | None = None
    # The network's name in x402 version 1, and the name in the EIP-712 domain of its USDC.
    legacy_network: str | None = None
    usdc_domain_name: str = "USD Coin"
    # The protocol's interval; 0 where blocks are made on demand.
    block_seconds: float = 12.0

    def known_contract(self, address: str) -> str | None:
        """Return what a contract is that is no foreign token's; wrapped ether is one, as no movement leaves any."""
        return None if address == self.weth else dead_end(address)

    def contracts(self) -> Iterator[tuple[str, str]]:
        for each in fields(self):
            value = getattr(self, each.name)
            address = value.address if isinstance(value, ChainlinkFeed) else value
            if isinstance(address, str) and address.startswith("0x"):
                yield each.name, address


TABLE = Path(__file__).with_name("deployments.toml")
_FACTS = tomllib.loads(TABLE.read_text("utf-8"))
_NETWORKS = TypeAdapter(dict[str, dict[str, EvmDeployment]], config=ConfigDict(extra="forbid"))
_ROWS = _NETWORKS.validate_python(_FACTS["networks"])
_PUBLIC = {(network, chain): each for network, chains in _ROWS.items() for chain, each in chains.items()}
_ETHEREUM, _BASE = _PUBLIC["mainnet", "ethereum"], _PUBLIC["mainnet", "base"]
# Clients of x402 version 1 would sign for the real chain under its name.
_in_sandbox = partial(replace, explorer_tx_url=None, block_seconds=0.0, legacy_network=None)

DEPLOYMENTS: Mapping[tuple[str, str], EvmDeployment] = {
    **_PUBLIC,
    ("sandbox", "ethereum"): _in_sandbox(_ETHEREUM, chain_id=900001, default_rpc_urls=("http://127.0.0.1:18545",)),
    ("sandbox", "base"): _in_sandbox(_BASE, chain_id=908453, default_rpc_urls=("http://127.0.0.1:18546",)),
}

# EIPs 4844, 2537 and 7951 end at 0x11 and 0x100; docs.optimism.io, "Predeploys".
_PRECOMPILES = frozenset({*range(1, 0x12), 0x100})
_PREDEPLOYS = range(0x42 << 152, (0x42 << 152) + 2048)
_BRIDGE_CONTRACTS = (
    bridges.DEPOSITORY,
    bridges.LIFI_DIAMOND,
    *bridges.PORTALS.values(),
    *(address for each in bridges.DEPLOYMENTS.values() for address in (each.messenger, each.transmitter)),
)
_DEAD_ENDS: Mapping[str, str] = {
    **{address.lower(): noun for address, noun in _FACTS["dead_ends"].items()},
    **{address.lower(): "a contract of Permit2" for address in (PERMIT2, X402_PERMIT2_PROXY, X402_UPTO_PROXY)},
    **{address.lower(): "a contract of a bridge" for address in _BRIDGE_CONTRACTS},
    **{
        address.lower(): f"the contract {name.replace('_', ' ')}"
        for each in DEPLOYMENTS.values()
        for name, address in each.contracts()
    },
}


def dead_end(address: str) -> str | None:
    """Return what an address is that gives nothing back, as a noun with its article; None for any other."""
    number = int(address, 16)
    if number in _PRECOMPILES or number in _PREDEPLOYS:
        return "a system contract"
    return _DEAD_ENDS.get(address.lower())
