"""Payment per request, and credits for USDC: terms, verification, claims, settlement.

A payment is claimed once and permanently, however it is presented. The only writer of `payments`, `payment_claims`,
`payment_restore_cutoffs`, `payment_wallets` and `topups`.
"""
