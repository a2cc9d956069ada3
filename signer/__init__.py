"""The only process that opens wallets' keys, if there is one; it signs only what was recorded."""
