"""A stand-in for the perpetual-futures exchange: real HTTP, recorded formats, its limits, and faults on demand.

It accepts no orders. Its accounts are fictitious: every address has the same one, except those that begin with
`0x000000`, which are unknown.
"""

from sandbox.perpdex.faults import Fault, Faults
from sandbox.perpdex.server import ExchangeServer

__all__ = ["ExchangeServer", "Fault", "Faults"]
