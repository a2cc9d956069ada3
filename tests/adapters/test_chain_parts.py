"""Chains are made of their parts by inheritance: no part may replace a method of another one by its name."""

from __future__ import annotations

from collections import Counter

import pytest

from app.adapters.evm.chain import EvmChain
from app.adapters.solana.chain import SolanaChain


@pytest.mark.parametrize("chain", [EvmChain, SolanaChain])
def test_no_part_of_a_chain_replaces_a_method_of_another(chain: type) -> None:
    parts = chain.__mro__[:-1]
    names = Counter(name for part in parts for name in vars(part) if not name.startswith("__"))
    assert len(parts) > 3
    assert [name for name, count in names.items() if count > 1] == []
