"""Permit2, as the tests of Across have it, and stand-ins for x402's proxies, at their addresses on all EVM chains."""

from app.adapters.evm.contracts.deployments import PERMIT2, X402_PERMIT2_PROXY, X402_UPTO_PROXY
from sandbox.evm.builder import Builder
from sandbox.evm.stand_ins import creation_code


def place_permit2(builder: Builder) -> None:
    """Place Permit2 and the proxies that x402 payments name as their spender, for `exact` and for `upto`."""
    builder.place("MockPermit2", PERMIT2)
    builder.place_code(creation_code("permit2_proxy"), X402_PERMIT2_PROXY, parameters="(address)", arguments=(PERMIT2,))
    builder.place_code(creation_code("upto_proxy"), X402_UPTO_PROXY, parameters="(address)", arguments=(PERMIT2,))
