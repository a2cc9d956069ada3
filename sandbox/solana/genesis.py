"""What the chain begins with: a rich faucet that owns the USDC mint, and the mint of wrapped SOL.

The faucet's key is public. It is worth nothing on any other chain.
"""

import hashlib
from typing import Final

from solders.account import Account
from solders.keypair import Keypair
from solders.pubkey import Pubkey

from sandbox.solana import tokens
from sandbox.solana.addresses import SYSTEM, TOKEN, WRAPPED_SOL_MINT

FAUCET: Final = Keypair.from_seed(hashlib.sha256(b"solana sandbox faucet").digest())
FAUCET_LAMPORTS: Final = 500_000_000 * 10**9
MINT_LAMPORTS: Final = 10**9
SOL_DECIMALS: Final = 9
USDC_DECIMALS: Final = 6


def genesis_accounts(usdc: Pubkey) -> dict[str, Account]:
    """Make the accounts of slot 0, by address."""
    token_program = Pubkey.from_string(TOKEN)
    usdc_mint = tokens.mint_data(USDC_DECIMALS, authority=FAUCET.pubkey())
    return {
        str(FAUCET.pubkey()): Account(FAUCET_LAMPORTS, b"", Pubkey.from_string(SYSTEM)),
        # LiteSVM has the token programs but not this mint.
        WRAPPED_SOL_MINT: Account(MINT_LAMPORTS, tokens.mint_data(SOL_DECIMALS), token_program),
        str(usdc): Account(MINT_LAMPORTS, usdc_mint, token_program),
    }
