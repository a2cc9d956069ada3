"""The exchange's address on each network, and the network's names in actions. Only data."""

from collections.abc import Mapping
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class PerpdexDeployment:
    """The exchange on one network.

    `source` identifies the network in what is signed for orders, `chain` and `signature_chain_id` in what is signed
    for payments. `asset_numbering` is the network with the same market numbers.
    """

    url: str
    chain: str
    signature_chain_id: str
    source: str
    asset_numbering: str


_TESTNET = PerpdexDeployment(
    url="https://api.hyperliquid-testnet.xyz", chain="Testnet", signature_chain_id="0x66eee", source="b",
    asset_numbering="testnet",
)  # fmt: skip

DEPLOYMENTS: Mapping[str, PerpdexDeployment] = {
    "mainnet": PerpdexDeployment(
        url="https://api.hyperliquid.xyz",
        chain="Mainnet",
        signature_chain_id="0xa4b1",
        source="a",
        asset_numbering="mainnet",
    ),
    "testnet": _TESTNET,
    # The stand-in numbers its markets like the real exchange, but nothing signed for it may be valid there.
    "sandbox": replace(_TESTNET, url="http://127.0.0.1:18548", asset_numbering="mainnet"),
}
