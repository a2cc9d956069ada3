"""Real EVM chains for tests: fund a wallet, read a balance, mine blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from app.adapters.evm.chain import EvmChain
from app.core.chains import ETH, USDC, ChainName
from sandbox.evm import EvmNode

CONFIRMATIONS = {ChainName.ETHEREUM: 2, ChainName.BASE: 5}
RECIPIENT = "0x00000000000000000000000000000000C0FFEE00"


def evm_chain(node: EvmNode) -> EvmChain:
    """Return the adapter for a node."""
    name = ChainName(node.name)
    return EvmChain(
        name,
        node.deployment,
        rpc_urls=[node.url],
        deposit_confirmations=CONFIRMATIONS[name],
        connect_seconds=20,
        read_seconds=60,
    )


@contextmanager
def running_node(name: ChainName) -> Iterator[EvmNode]:
    """Run a node that mines immediately and has no other blocks than those of transactions."""
    with EvmNode(name.value) as node:
        yield node


def usdc(amount: float) -> int:
    """Return micro-USDC."""
    return round(amount * 1_000_000)


def ether(amount: float) -> int:
    """Return wei."""
    return int(amount * 10**9) * 10**9


def fund(node: EvmNode, address: str, *, eth: float = 1, dollars: float = 0) -> None:
    """Pay a wallet with real transfers, mined immediately."""
    if eth:
        node.fund_eth(address, ether(eth))
    if dollars:
        node.fund_usdc(address, usdc(dollars))


def reader(chain: EvmChain, address: str) -> Callable[[], tuple[int, int]]:
    """Return a function that reads (wei, micro-USDC) of an address."""

    def read() -> tuple[int, int]:
        balances = chain.balances(address)
        return balances.of(ETH).units, balances.of(USDC).units

    return read
