"""What a wallet holds and where it receives, as the pages show it. Asks the chains, so never inside a unit."""

from __future__ import annotations

from dataclasses import dataclass

from markupsafe import Markup

from app.core.chains import ChainName
from app.owner import drawings
from app.wallets import balances
from app.wallets.balances import Holding
from app.wallets.service import WalletView


@dataclass(frozen=True, slots=True)
class Holdings:
    """The balances of a wallet on the chains that answered, and their worth."""

    rows: tuple[Holding, ...]
    unreadable: tuple[str, ...]
    total_nanos: int
    complete: bool
    """Whether every chain answered and every balance has a price, so that the total is all there is."""


@dataclass(frozen=True, slots=True)
class Receiving:
    """An address to pay to, with its QR code."""

    key: str
    label: str
    tokens: str
    address: str
    qr: Markup


def of(wallet: WalletView) -> Holdings:
    """Read a wallet's balances on the chains that answer."""
    reading = balances.readable(wallet)
    return Holdings(
        rows=tuple(reading.holdings),
        unreadable=tuple(name.value for name in reading.unreadable),
        total_nanos=sum(row.usd_nanos or 0 for row in reading.holdings),
        complete=not reading.unreadable
        and all(row.usd_nanos is not None for row in reading.holdings if row.amount.units),
    )


def receiving(wallet: WalletView) -> tuple[Receiving, ...]:
    """Return a wallet's addresses; the EVM chains share one (EIP-681 and Solana Pay name the schemes)."""
    evm, solana = wallet.address_on(ChainName.ETHEREUM), wallet.address_on(ChainName.SOLANA)
    return (
        Receiving("evm", "Ethereum and Base", "ETH, USDC", evm, drawings.qr_code(f"ethereum:{evm}")),
        Receiving("solana", "Solana", "SOL, USDC", solana, drawings.qr_code(f"solana:{solana}")),
    )
