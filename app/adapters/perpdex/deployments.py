"""Where the exchange answers on each network, and how its actions name that network. Only data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Deployment:
    """The exchange on one network.

    `source` marks the network in what is signed for orders, `chain` and `signature_chain_id` in what is signed
    for payments. `numbering` names the network whose market numbers it uses.
    """

    url: str
    chain: str
    signature_chain_id: str
    source: str
    numbering: str


_TESTNET = Deployment(
    url="https://api.hyperliquid-testnet.xyz",
    chain="Testnet",
    signature_chain_id="0x66eee",
    source="b",
    numbering="testnet",
)

DEPLOYMENTS: Mapping[str, Deployment] = {
    "mainnet": Deployment(
        url="https://api.hyperliquid.xyz",
        chain="Mainnet",
        signature_chain_id="0xa4b1",
        source="a",
        numbering="mainnet",
    ),
    "testnet": _TESTNET,
    # The stand-in numbers its markets like the real exchange, but nothing made for it may be valid there.
    "sandbox": Deployment(
        url="http://127.0.0.1:18548",
        chain=_TESTNET.chain,
        signature_chain_id=_TESTNET.signature_chain_id,
        source=_TESTNET.source,
        numbering="mainnet",
    ),
}
