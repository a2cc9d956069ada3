"""Programs and mints of every Solana cluster, and addresses of token accounts."""

from typing import Final

from solders.pubkey import Pubkey

SYSTEM: Final = "11111111111111111111111111111111"
TOKEN: Final = "TokenkegQfeZyiNwAJbNbGKPFXCWuBvf9Ss623VQ5DA"  # noqa: S105 - a program
TOKEN_2022: Final = "TokenzQdBNbLqP5VEhdkAS6EPFLC1PHnBqCXEpPxuEb"  # noqa: S105 - a program
TOKEN_PROGRAMS: Final = (TOKEN, TOKEN_2022)
ASSOCIATED_TOKEN: Final = "ATokenGPvbdGVxr1b2hvZbsiqW5xWH25efTNsLJA8knL"  # noqa: S105 - a program
MEMO: Final = "MemoSq4gqABAXKb96qnH8TysNcWxMyWCqXgDLGmfcHr"
MEMO_V1: Final = "Memo1UhkJRfHyvLMcVucJwxXeuD728EqVDDwQDxFMNo"
MEMO_PROGRAMS: Final = (MEMO, MEMO_V1)
COMPUTE_BUDGET: Final = "ComputeBudget111111111111111111111111111111"

WRAPPED_SOL_MINT: Final = "So11111111111111111111111111111111111111112"
USDC_MINT: Final = "EPjFWdd5AufqSSqeM2qN1xzybapC8G4wEGGkZwyTDt1v"
"""Circle's mint on mainnet (developers.circle.com/stablecoins/usdc-contract-addresses)."""


def associated_token_address(owner: Pubkey, mint: Pubkey, *, program: str = TOKEN) -> Pubkey:
    """Derive the address of an owner's token account of a mint (SPL Associated Token Account)."""
    seeds = [bytes(owner), bytes(Pubkey.from_string(program)), bytes(mint)]
    return Pubkey.find_program_address(seeds, Pubkey.from_string(ASSOCIATED_TOKEN))[0]
