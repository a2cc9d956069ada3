"""Addresses of Base's portal on Ethereum: only data. Source: docs.base.org, contract addresses."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

_BASE_PORTAL = "0x49048044D57e1C92A77f79988d21Fa8fAF74E97e"

PORTALS: Mapping[str, str] = MappingProxyType(
    {"mainnet": _BASE_PORTAL, "testnet": "0x49f53e41452C74589E85cA1677426Ba426459e85", "sandbox": _BASE_PORTAL}
)
"""Keyed by network: "mainnet", "testnet" or "sandbox"."""
