"""Two EVM chains that run the real contract code at the real addresses."""

from sandbox.evm.node import EvmNode

__all__ = ["EvmNode"]
