"""Genesis accounts: a faucet that owns the USDC mint, the mint of wrapped SOL, a pool of both, and CCTP.

The faucet's key is public and has no value on other chains.
"""

import hashlib
from typing import Final

from solders.account import Account
from solders.keypair import Keypair
from solders.pubkey import Pubkey

from solana_node import cctp, exchange, tokens
from solana_node.addresses import SYSTEM, TOKEN, WRAPPED_SOL_MINT, associated_token_address

FAUCET: Final = Keypair.from_seed(hashlib.sha256(b"solana sandbox faucet").digest())
FAUCET_LAMPORTS: Final = 500_000_000 * 10**9
MINT_LAMPORTS: Final = 10**9
SOL_DECIMALS: Final = 9
POOL_LAMPORTS: Final = 1_000_000 * 10**9
POOL_USDC_UNITS: Final = 150_000_000 * 10**6
"""150 USDC per SOL, like the initial price feeds of the EVM chains; deep enough to stay there."""
TOKEN_RENT: Final = 2_039_280
USDC_DECIMALS: Final = 6


def genesis_accounts(usdc: Pubkey) -> dict[str, Account]:
    """Return the accounts of slot 0, by address."""
    token_program = Pubkey.from_string(TOKEN)
    usdc_mint = tokens.mint_data(USDC_DECIMALS, authority=FAUCET.pubkey())
    return {
        str(FAUCET.pubkey()): Account(FAUCET_LAMPORTS, b"", Pubkey.from_string(SYSTEM)),
        # LiteSVM has the token programs but not this mint.
        WRAPPED_SOL_MINT: Account(MINT_LAMPORTS, tokens.mint_data(SOL_DECIMALS), token_program),
        str(usdc): Account(MINT_LAMPORTS, usdc_mint, token_program),
        **_vault(Pubkey.from_string(WRAPPED_SOL_MINT), POOL_LAMPORTS, is_native=True),
        **_vault(usdc, POOL_USDC_UNITS, is_native=False),
        **cctp.cctp_accounts(usdc),
    }


def _vault(mint: Pubkey, units: int, *, is_native: bool) -> dict[str, Account]:
    """Return one side of the pool; it is not part of the supply, which is what owners hold."""
    data = tokens.token_account_data(mint, exchange.POOL, units, rent=TOKEN_RENT if is_native else None)
    lamports = TOKEN_RENT + (units if is_native else 0)
    address = str(associated_token_address(exchange.POOL, mint))
    return {address: Account(lamports, data, Pubkey.from_string(TOKEN))}
