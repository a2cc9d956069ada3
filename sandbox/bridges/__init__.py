"""Stand-ins for the services of bridges; their effects are real transactions on the local chains.

One server has them all: Circle's attestation service with its forwarder, Relay, and LI.FI. A separate thread derives
Base's deposits from Ethereum.
"""

from sandbox.bridges.derivation import Derivation
from sandbox.bridges.server import BridgeServer

__all__ = ["BridgeServer", "Derivation"]
