"""Bridge providers: CCTP, the OP Stack portal, Relay and LI.FI."""
