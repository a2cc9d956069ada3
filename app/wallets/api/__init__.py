"""Routes and schemas of wallets."""
