"""Tables of the wallets room. Amounts are base units, values nano-dollars, instants UTC."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    CheckConstraint,
    Index,
    Integer,
    LargeBinary,
    String,
    UniqueConstraint,
    false,
    text,
)
from sqlalchemy.orm import Mapped, mapped_column

from app.core.columns import ID, Units, UtcDateTime
from app.extensions import Model

_SERIAL = BigInteger().with_variant(Integer, "sqlite")


class Wallet(Model):
    """A wallet: one key, one address per chain family."""

    __tablename__ = "wallets"
    __table_args__ = (Index("ix_wallets_agent_id_created_at", "agent_id", "created_at", "id"),)

    id: Mapped[str] = mapped_column(ID, primary_key=True)
    agent_id: Mapped[str] = mapped_column(ID)
    name: Mapped[str] = mapped_column(String(100))
    evm_address: Mapped[str] = mapped_column(String(42), unique=True)
    solana_address: Mapped[str] = mapped_column(String(44), unique=True)
    transaction_count: Mapped[int] = mapped_column(default=0)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)


class WalletKey(Model):
    """The sealed BIP-39 entropy of a wallet."""

    __tablename__ = "wallet_keys"

    wallet_id: Mapped[str] = mapped_column(ID, primary_key=True)
    sealed: Mapped[str] = mapped_column(String(200))


class KeyStore(Model):
    """For which network this database's keys were made: one row, written with the first wallet."""

    __tablename__ = "key_store"

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    network: Mapped[str] = mapped_column(String(20))


class RetiredKey(Model):
    """The sealed key of a deleted wallet, kept for an operator's rescue until it is purged."""

    __tablename__ = "retired_keys"
    __table_args__ = (Index("ix_retired_keys_purge_after", "purge_after"),)

    wallet_id: Mapped[str] = mapped_column(ID, primary_key=True)
    agent_id: Mapped[str] = mapped_column(ID)
    evm_address: Mapped[str] = mapped_column(String(42))
    solana_address: Mapped[str] = mapped_column(String(44))
    sealed: Mapped[str] = mapped_column(String(200))
    retired_at: Mapped[datetime] = mapped_column(UtcDateTime)
    purge_after: Mapped[datetime] = mapped_column(UtcDateTime)
    # Since when every look found nothing at its addresses; one look at one node is no proof.
    empty_since: Mapped[datetime | None] = mapped_column(UtcDateTime)


class Transaction(Model):
    """A movement or a funding request. `lifecycle` alone writes `status`."""

    __tablename__ = "transactions"
    __table_args__ = (
        UniqueConstraint("chain", "from_address", "nonce", name="uq_transactions_slot"),
        Index("ix_transactions_history", "wallet_id", "created_at", "id"),
        Index(
            "ix_transactions_due",
            "chain",
            "next_check_at",
            postgresql_where=text("next_check_at IS NOT NULL"),
        ),
        Index(
            "ix_transactions_open_funding",
            "chain",
            "wallet_id",
            postgresql_where=text("type = 'funding' AND status = 'pending'"),
            sqlite_where=text("type = 'funding' AND status = 'pending'"),
        ),
        # What movements without a nonce still take from a balance (`history.outflows_not_mined`).
        Index(
            "ix_transactions_in_flight",
            "chain",
            "from_address",
            "block_number",
            postgresql_where=text("nonce IS NULL AND fee_cap_units IS NOT NULL"),
            sqlite_where=text("nonce IS NULL AND fee_cap_units IS NOT NULL"),
        ),
        Index(
            "ix_transactions_queries",
            "created_at",
            postgresql_where=text("type = 'trading_query'"),
            sqlite_where=text("type = 'trading_query'"),
        ),
        Index(
            "ix_transactions_bridge",
            "bridge_id",
            postgresql_where=text("bridge_id IS NOT NULL"),
            sqlite_where=text("bridge_id IS NOT NULL"),
        ),
        CheckConstraint("cost_nanos >= 0", name="ck_transactions_cost"),
    )

    id: Mapped[str] = mapped_column(ID, primary_key=True)
    wallet_id: Mapped[str] = mapped_column(ID)
    type: Mapped[str] = mapped_column(String(20))
    kind: Mapped[str | None] = mapped_column(String(20))
    chain: Mapped[str] = mapped_column(String(20))
    from_address: Mapped[str | None] = mapped_column(String(64))
    to_address: Mapped[str] = mapped_column(String(64))
    amount_units: Mapped[int] = mapped_column(Units)
    currency: Mapped[str] = mapped_column(String(10))
    tx_hash: Mapped[str | None] = mapped_column(String(100))
    status: Mapped[str] = mapped_column(String(10))
    error: Mapped[str | None] = mapped_column(String(200))
    cost_nanos: Mapped[int] = mapped_column(BigInteger)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    confirmed_at: Mapped[datetime | None] = mapped_column(UtcDateTime)

    # What an exchange was quoted to bring, brings at least, and has brought by the chain's word.
    output_currency: Mapped[str | None] = mapped_column(String(10))
    output_quoted_units: Mapped[int | None] = mapped_column(Units)
    output_minimum_units: Mapped[int | None] = mapped_column(Units)
    output_units: Mapped[int | None] = mapped_column(Units)

    nonce: Mapped[int | None] = mapped_column(BigInteger)
    expires_at_height: Mapped[int | None] = mapped_column(BigInteger)
    fee_cap_units: Mapped[int | None] = mapped_column(Units)
    fee_units: Mapped[int | None] = mapped_column(Units)
    native_out_units: Mapped[int | None] = mapped_column(Units)
    block_number: Mapped[int | None] = mapped_column(BigInteger)
    block_hash: Mapped[str | None] = mapped_column(String(100))
    opened_block: Mapped[int | None] = mapped_column(BigInteger)

    # A transaction that a bridge consists of: which bridge's, and which leg it is. Callers see the bridge alone.
    bridge_id: Mapped[str | None] = mapped_column(ID)
    leg: Mapped[str | None] = mapped_column(String(12))
    expires_at: Mapped[datetime | None] = mapped_column(UtcDateTime)

    # When the confirmation worker looks again; NULL once nothing about the row can change any more.
    next_check_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    checks: Mapped[int] = mapped_column(default=0)
    # The request that it goes back to: whoever carries it on says so in the logs.
    request_id: Mapped[str | None] = mapped_column(String(40))


class Bridge(Model):
    """How far a bridge is; its own row in `transactions` is what callers see. `bridge_steps` alone moves it."""

    __tablename__ = "bridges"
    __table_args__ = (Index("ix_bridges_due", "next_step_at"), Index("ix_bridges_wallet_id", "wallet_id"))

    id: Mapped[str] = mapped_column(ID, primary_key=True)
    wallet_id: Mapped[str] = mapped_column(ID)
    adapter: Mapped[str] = mapped_column(String(20))
    route: Mapped[str] = mapped_column(String(60))
    destination_chain: Mapped[str] = mapped_column(String(20))
    stage: Mapped[str] = mapped_column(String(12))
    fee_units: Mapped[int] = mapped_column(Units)
    # The adapter's own facts, and what proves the source transaction to the destination. Both are public.
    terms: Mapped[dict[str, Any]] = mapped_column(JSON)
    proof: Mapped[dict[str, Any]] = mapped_column(JSON)
    attested_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    received_units: Mapped[int | None] = mapped_column(Units)
    # By which transaction it arrived: one of ours, or somebody else's.
    arrival_hash: Mapped[str | None] = mapped_column(String(100))
    arrival_block: Mapped[int | None] = mapped_column(BigInteger)
    arrival_block_hash: Mapped[str | None] = mapped_column(String(100))
    # Whether it used up a nonce of the wallet, though none of our movements has it.
    arrival_takes_slot: Mapped[bool] = mapped_column(default=False)
    # Whether it can come back on its source chain, and by which transaction it did: that is no deposit.
    may_return: Mapped[bool] = mapped_column(default=False, server_default=false())
    refund_hash: Mapped[str | None] = mapped_column(String(100))
    refund_block: Mapped[int | None] = mapped_column(BigInteger)
    refund_block_hash: Mapped[str | None] = mapped_column(String(100))
    refund_units: Mapped[int | None] = mapped_column(Units)
    # When the bridge worker looks again; NULL once nothing can change any more.
    next_step_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    steps: Mapped[int] = mapped_column(default=0)


class TransactionEvent(Model):
    """One move of a transaction's state, append-only."""

    __tablename__ = "transaction_events"
    __table_args__ = (
        Index("ix_transaction_events_transaction_id", "transaction_id"),
        Index("ix_transaction_events_at", "at"),
    )

    id: Mapped[int] = mapped_column(_SERIAL, primary_key=True, autoincrement=True)
    transaction_id: Mapped[str] = mapped_column(ID)
    status: Mapped[str] = mapped_column(String(10))
    reason: Mapped[str | None] = mapped_column(String(200))
    at: Mapped[datetime] = mapped_column(UtcDateTime)


class SignedAttempt(Model):
    """Bytes that were signed for a transaction. Any of them may land; none is ever forgotten while it can."""

    __tablename__ = "signed_attempts"
    __table_args__ = (
        Index("ix_signed_attempts_transaction_id", "transaction_id"),
        UniqueConstraint("chain", "tx_hash", name="uq_signed_attempts_hash"),
    )

    id: Mapped[int] = mapped_column(_SERIAL, primary_key=True, autoincrement=True)
    transaction_id: Mapped[str] = mapped_column(ID)
    chain: Mapped[str] = mapped_column(String(20))
    tx_hash: Mapped[str] = mapped_column(String(100))
    purpose: Mapped[str] = mapped_column(String(12))
    raw: Mapped[bytes] = mapped_column(LargeBinary)
    terms: Mapped[dict[str, Any]] = mapped_column(JSON)
    refusal: Mapped[str | None] = mapped_column(String(40))
    seen_at_block: Mapped[int | None] = mapped_column(BigInteger)
    sent_at: Mapped[datetime] = mapped_column(UtcDateTime)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)


class Nonce(Model):
    """The lock and high-water mark of an address's nonce slots on a chain."""

    __tablename__ = "nonces"

    chain: Mapped[str] = mapped_column(String(20), primary_key=True)
    address: Mapped[str] = mapped_column(String(64), primary_key=True)
    next_nonce: Mapped[int] = mapped_column(BigInteger)


class FundingDeposit(Model):
    """A deposit as found on a chain."""

    __tablename__ = "funding_deposits"
    __table_args__ = (
        UniqueConstraint("chain", "wallet_id", "position", name="uq_funding_deposits_position"),
        Index("ix_funding_deposits_open", "chain", "final"),
    )

    id: Mapped[str] = mapped_column(ID, primary_key=True)
    wallet_id: Mapped[str] = mapped_column(ID)
    chain: Mapped[str] = mapped_column(String(20))
    currency: Mapped[str] = mapped_column(String(10))
    units: Mapped[int] = mapped_column(Units)
    tx_hash: Mapped[str | None] = mapped_column(String(100))
    payer: Mapped[str | None] = mapped_column(String(64))
    position: Mapped[str] = mapped_column(String(160))
    block_number: Mapped[int] = mapped_column(BigInteger)
    block_hash: Mapped[str] = mapped_column(String(100))
    # The wallet's mark when this was found, and whether its balance told of it: where to look again from.
    mark_before: Mapped[dict[str, Any]] = mapped_column(JSON)
    mark_block: Mapped[int] = mapped_column(BigInteger)
    mark_revision: Mapped[int] = mapped_column(BigInteger)
    by_mark: Mapped[bool]
    final: Mapped[bool] = mapped_column(default=False)
    found_at: Mapped[datetime] = mapped_column(UtcDateTime)


class FundingAllocation(Model):
    """How much of a deposit went to which funding request."""

    __tablename__ = "funding_allocations"

    deposit_id: Mapped[str] = mapped_column(ID, primary_key=True)
    transaction_id: Mapped[str] = mapped_column(ID, primary_key=True, index=True)
    units: Mapped[int] = mapped_column(Units)


class DepositCursor(Model):
    """Up to which block a chain's deposits are known, and who is looking just now."""

    __tablename__ = "deposit_cursors"

    chain: Mapped[str] = mapped_column(String(20), primary_key=True)
    block_number: Mapped[int | None] = mapped_column(BigInteger)
    block_hash: Mapped[str | None] = mapped_column(String(100))


class DepositMark(Model):
    """What a wallet's address had on a chain when we last looked; the chain's adapter alone reads the mark."""

    __tablename__ = "deposit_marks"

    wallet_id: Mapped[str] = mapped_column(ID, primary_key=True)
    chain: Mapped[str] = mapped_column(String(20), primary_key=True)
    mark: Mapped[dict[str, Any]] = mapped_column(JSON)
    block_number: Mapped[int] = mapped_column(BigInteger)
    # Rises with every write, so that marks have an order even where block numbers fall back.
    revision: Mapped[int] = mapped_column(BigInteger, default=0)
