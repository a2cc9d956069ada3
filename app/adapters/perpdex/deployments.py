"""The exchange's address on each network, and the network's names in actions. Only data."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


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


_FACTS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
DEPLOYMENTS: Mapping[str, PerpdexDeployment] = {network: PerpdexDeployment(**row) for network, row in _FACTS.items()}
