"""Two EVM chains with the real contract code at the real addresses."""

from sandbox.evm.node import EvmNode

__all__ = ["EvmNode"]
