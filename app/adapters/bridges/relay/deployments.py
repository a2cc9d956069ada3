"""Contracts and APIs of Relay and LI.FI: only data.

Sources: docs.relay.link, contract addresses; docs.li.fi, deployments. The depository and LI.FI's contract have the
same address on all supported chains. The sandbox has stand-ins there.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

DEPOSITORY = "0x4cD00E387622C35bDDB9b4c962C136462338BC31"
LIFI_DIAMOND = "0x1231DEB6f5749EF6cE6943a275A1D3E7486F4EaE"

RELAY_URLS: Mapping[str, str] = MappingProxyType(
    {
        "mainnet": "https://api.relay.link",
        "testnet": "https://api.testnets.relay.link",
        "sandbox": "http://127.0.0.1:18550",
    }
)
LIFI_URLS: Mapping[str, str] = MappingProxyType(
    {"mainnet": "https://li.quest/v1", "sandbox": "http://127.0.0.1:18550/v1"}
)
"""LI.FI has no test networks."""
