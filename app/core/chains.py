"""The chains and tokens that wallets hold. Contract addresses are in the adapters."""

from dataclasses import dataclass
from enum import StrEnum


class Family(StrEnum):
    """Chains that share an address format and a key derivation."""

    EVM = "evm"
    SOLANA = "solana"


class ChainName(StrEnum):
    ETHEREUM = "ethereum"
    BASE = "base"
    SOLANA = "solana"

    @property
    def family(self) -> Family:
        return Family.SOLANA if self is ChainName.SOLANA else Family.EVM


@dataclass(frozen=True, slots=True)
class Token:
    """A token by symbol; a symbol has the same number of decimals on every chain served."""

    symbol: str
    decimals: int


ETH = Token("ETH", 18)
SOL = Token("SOL", 9)
USDC = Token("USDC", 6)

TOKENS_BY_SYMBOL = {token.symbol: token for token in (ETH, SOL, USDC)}

_NATIVE = {ChainName.ETHEREUM: ETH, ChainName.BASE: ETH, ChainName.SOLANA: SOL}


def native(chain: ChainName) -> Token:
    return _NATIVE[chain]


def tokens(chain: ChainName) -> tuple[Token, Token]:
    """Return the tokens served on a chain, the native one first."""
    return _NATIVE[chain], USDC
