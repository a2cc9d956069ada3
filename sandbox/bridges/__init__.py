"""Stand-ins for the services that bridges rely on, over the local chains: what they promise really happens there.

One server has them all: Circle's attestation service with its forwarder, Relay, and LI.FI. Base's deposits are derived
from Ethereum by a thread of its own.
"""

from sandbox.bridges.derivation import Derivation
from sandbox.bridges.server import BridgeServer

__all__ = ["BridgeServer", "Derivation"]
