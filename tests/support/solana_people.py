"""What the Solana adapter's tests share: people with keys on a node with a stopped clock."""

from __future__ import annotations

from typing import Any

from solders.keypair import Keypair

from app.adapters.solana.chain import SolanaChain
from app.adapters.solana.deployments import DEPLOYMENTS
from app.adapters.solana.track.account_history import HistoryReadLimits
from app.core.chains import SOL, Token
from app.core.money import TokenAmount
from app.ports.chain import SignedTransaction, TransactionDraft, TransactionOutcome, TransactionQuery, TransferIntent
from solana_node import SolanaNode

WHOLE_SOL = 10**9
CONFIRMED_SLOTS = 1
FINALIZED_SLOTS = 32


class SolanaPerson:
    """A key holder."""

    def __init__(self) -> None:
        self.keys = Keypair()
        self.evm_address = ""
        self.solana_address = self.address = str(self.keys.pubkey())

    def sign_message(self, message: bytes) -> bytes:
        return bytes(self.keys.sign_message(message))

    def sign_digest(self, digest: bytes, _of: Any) -> tuple[int, int, int]:
        raise AssertionError(f"Solana signs no digests: {digest!r}")

    def sign_transaction(self, fields: Any) -> tuple[int, int, int]:
        raise AssertionError(f"Solana has no such transactions: {fields!r}")


def chain_at(*urls: str, commitment: str = "confirmed", read_seconds: float = 60) -> SolanaChain:
    """Return the adapter for nodes of the sandbox's cluster."""
    return SolanaChain(DEPLOYMENTS["sandbox"], rpc_urls=urls, commitment=commitment, read_seconds=read_seconds)


def reading_little(url: str, portion: HistoryReadLimits) -> SolanaChain:
    """Return an adapter that reads less of the histories at a time, so that tests need not send thousands."""
    return SolanaChain(DEPLOYMENTS["sandbox"], rpc_urls=[url], read_limits=portion)


def funded(node: SolanaNode, *, lamports: int = WHOLE_SOL, usdc_units: int = 0) -> SolanaPerson:
    """Return a key holder that was funded before any block that is not final."""
    person = SolanaPerson()
    if lamports:
        node.airdrop(person.address, lamports)
    if usdc_units:
        node.mint_usdc(person.address, usdc_units)
    node.advance(FINALIZED_SLOTS + 1)
    return person


def intent(sender: SolanaPerson, recipient: str, units: int, token: Token = SOL) -> TransferIntent:
    """Return what shall move."""
    return TransferIntent(sender.address, recipient, TokenAmount(units, token))


def signed(
    chain: SolanaChain, sender: SolanaPerson, recipient: str, units: int, *, token: Token = SOL
) -> tuple[TransactionDraft, SignedTransaction]:
    """Draft and sign a movement."""
    draft = chain.draft(intent(sender, recipient, units, token))
    return draft, chain.sign(draft, sender, sequence=None)


def watch(
    sender: SolanaPerson, transaction: SignedTransaction, key: str = "it", *, receives: Token | None = None
) -> TransactionQuery:
    """Watch a transaction."""
    return TransactionQuery(
        key, sender.address, None, (transaction.tx_hash,), transaction.expires_at_height, receives,
        transaction.terms,
    )  # fmt: skip


def outcome(chain: SolanaChain, sender: SolanaPerson, transaction: SignedTransaction) -> TransactionOutcome:
    """Find out about a transaction."""
    return chain.outcomes([watch(sender, transaction)])["it"]
