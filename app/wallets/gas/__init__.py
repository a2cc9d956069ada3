"""Network fees that a wallet pays to the service in USDC."""
