"""A process that alone opens the keys of wallets, and signs only what was recorded."""
