"""Payment per request, and credits for USDC: terms, verification, claims, settlement.

A payment is claimed once, for ever, whichever way it is presented. Alone writes `payments`, `payment_claims`,
`payment_wallets` and `topups`.
"""
