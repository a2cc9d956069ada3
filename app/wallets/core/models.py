"""Tables of wallets. Amounts are base units, values nano-dollars, instants UTC."""

from datetime import date, datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from app.authenticated import Authenticated
from app.db.tables import ID, SERIAL, Units, UtcDateTime, partial_index
from app.extensions import Model


class Wallet(Authenticated, Model):
    """A wallet: one key, one address per chain family."""

    __tablename__ = "wallets"
    not_authenticated = frozenset({
        "name", "transaction_count", "created_at", "active_at", "new_to_scans", "exported_at"
    })  # fmt: skip
    __table_args__ = (
        sa.Index("ix_wallets_agent_id_created_at", "agent_id", "created_at", "id"),
        sa.Index("ix_wallets_active_at", "active_at"),
    )

    id: Mapped[str] = mapped_column(ID, primary_key=True)
    agent_id: Mapped[str] = mapped_column(ID)
    name: Mapped[str] = mapped_column(sa.String(100))
    evm_address: Mapped[str] = mapped_column(sa.String(42), unique=True)
    solana_address: Mapped[str] = mapped_column(sa.String(44), unique=True)
    transaction_count: Mapped[int] = mapped_column(default=0)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    # When it was last used, to the day; NULL for wallets of the service, which are not scanned for deposits.
    active_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    # Whether the first scan for deposits may assume that it was never used before.
    new_to_scans: Mapped[bool] = mapped_column(default=True)
    # Since when others may have its keys: its owner took them out, or brought them in.
    exported_at: Mapped[datetime | None] = mapped_column(UtcDateTime)


class WalletKey(Model):
    """The sealed BIP-39 entropy of a wallet, with the keys derived from it; an imported one has keys alone."""

    __tablename__ = "wallet_keys"

    wallet_id: Mapped[str] = mapped_column(ID, primary_key=True)
    sealed: Mapped[str] = mapped_column(sa.Text)


class KeyTransfer(Authenticated, Model):
    """An owner's act to take the keys of a wallet out, or to bring some in; it ends with that owner key."""

    __tablename__ = "key_transfers"
    not_authenticated = frozenset()

    id: Mapped[str] = mapped_column(ID, primary_key=True)
    owner_key_id: Mapped[str] = mapped_column(ID, sa.ForeignKey("owner_keys.id", ondelete="CASCADE"), index=True)
    wallet_id: Mapped[str | None] = mapped_column(ID, sa.ForeignKey("wallets.id", ondelete="CASCADE"), unique=True)
    # Of an import, which has no wallet yet: the private key that opens what the owner's browser seals.
    key_sealed: Mapped[str | None] = mapped_column(sa.Text)
    valid_from: Mapped[datetime] = mapped_column(UtcDateTime)
    expires_at: Mapped[datetime] = mapped_column(UtcDateTime)


class SigningIntent(Authenticated, Model):
    """What a signer process was asked to sign, until its movement has ended; see `intents`."""

    __tablename__ = "signing_intents"
    not_authenticated = frozenset({"created_at", "closed_at", "nonce", "valid_until"})
    __table_args__ = (sa.Index("ix_signing_intents_created_at", "created_at"),)

    id: Mapped[str] = mapped_column(ID, primary_key=True)
    wallet_id: Mapped[str] = mapped_column(ID)
    chain: Mapped[str] = mapped_column(sa.String(20))
    kind: Mapped[str] = mapped_column(sa.String(20))
    recipient: Mapped[str] = mapped_column(sa.String(64))
    amount_units: Mapped[int] = mapped_column(Units)
    currency: Mapped[str] = mapped_column(sa.String(50))
    minimum_units: Mapped[int | None] = mapped_column(Units)
    # The hold that covers it: there is none for what costs a wallet only network fees.
    hold_id: Mapped[str] = mapped_column(sa.String(64))
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    # When it was withdrawn although it was signed, and what ends the validity of the signature.
    closed_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    nonce: Mapped[int | None] = mapped_column(sa.BigInteger)
    valid_until: Mapped[datetime | None] = mapped_column(UtcDateTime)


class KeyStore(Model):
    """The network of the keys in this database: one row, written with the first wallet."""

    __tablename__ = "key_store"

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    network: Mapped[str] = mapped_column(sa.String(20))


class RetiredKey(Model):
    """The sealed key of a deleted wallet, kept for recovery by the operator until it is purged."""

    __tablename__ = "retired_keys"
    __table_args__ = (sa.Index("ix_retired_keys_purge_after", "purge_after"),)

    wallet_id: Mapped[str] = mapped_column(ID, primary_key=True)
    agent_id: Mapped[str] = mapped_column(ID)
    evm_address: Mapped[str] = mapped_column(sa.String(42))
    solana_address: Mapped[str] = mapped_column(sa.String(44))
    sealed: Mapped[str] = mapped_column(sa.Text)
    retired_at: Mapped[datetime] = mapped_column(UtcDateTime)
    purge_after: Mapped[datetime] = mapped_column(UtcDateTime)
    # Since when every check found its addresses empty; a single check of one node is no proof.
    empty_since: Mapped[datetime | None] = mapped_column(UtcDateTime)


class Transaction(Authenticated, Model):
    """A movement or a funding request."""

    __tablename__ = "transactions"
    # What is signed again for a stuck movement is authenticated; outcomes are what the chain shows.
    not_authenticated = frozenset({
        "from_address", "tx_hash", "status", "error", "cost_nanos", "created_at", "confirmed_at", "output_currency",
        "output_quoted_units", "output_minimum_units", "output_units", "gas_fee_units", "expires_at_height",
        "fee_cap_units", "fee_units", "native_out_units", "block_number", "block_hash", "opened_block",
        "expires_at", "next_check_at", "quarantined_at", "checks", "request_id"
    })  # fmt: skip
    __table_args__ = (
        sa.UniqueConstraint("chain", "from_address", "nonce", name="uq_transactions_slot"),
        sa.Index("ix_transactions_history", "wallet_id", "created_at", "id"),
        sa.Index(
            "ix_transactions_due", "chain", "next_check_at", postgresql_where=sa.text("next_check_at IS NOT NULL")
        ),
        partial_index(
            "ix_transactions_open_funding", "chain", "wallet_id", where="type = 'funding' AND status = 'pending'"
        ),
        # Unmined movements without a nonce (`unmined.outflows`).
        partial_index(
            "ix_transactions_in_flight",
            "chain",
            "from_address",
            "block_number",
            where="nonce IS NULL AND fee_cap_units IS NOT NULL",
        ),
        partial_index("ix_transactions_queries", "created_at", where="type = 'trading_query'"),
        partial_index("ix_transactions_bridge", "bridge_id", where="bridge_id IS NOT NULL"),
        partial_index("ix_transactions_request_id", "request_id", where="request_id IS NOT NULL"),
        sa.CheckConstraint("cost_nanos >= 0", name="ck_transactions_cost"),
    )

    id: Mapped[str] = mapped_column(ID, primary_key=True)
    wallet_id: Mapped[str] = mapped_column(ID)
    type: Mapped[str] = mapped_column(sa.String(20))
    kind: Mapped[str | None] = mapped_column(sa.String(20))
    chain: Mapped[str] = mapped_column(sa.String(20))
    from_address: Mapped[str | None] = mapped_column(sa.String(64))
    to_address: Mapped[str] = mapped_column(sa.String(64))
    amount_units: Mapped[int] = mapped_column(Units)
    currency: Mapped[str] = mapped_column(sa.String(50))
    tx_hash: Mapped[str | None] = mapped_column(sa.String(100))
    status: Mapped[str] = mapped_column(sa.String(10))
    error: Mapped[str | None] = mapped_column(sa.String(200))
    cost_nanos: Mapped[int] = mapped_column(sa.BigInteger)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    confirmed_at: Mapped[datetime | None] = mapped_column(UtcDateTime)

    # The output of a swap: quoted, minimum, and actual on the chain.
    output_currency: Mapped[str | None] = mapped_column(sa.String(10))
    output_quoted_units: Mapped[int | None] = mapped_column(Units)
    output_minimum_units: Mapped[int | None] = mapped_column(Units)
    output_units: Mapped[int | None] = mapped_column(Units)

    # In USDC, of a transfer that the service submits: 0 if it is free, NULL if the wallet pays the network itself.
    gas_fee_units: Mapped[int | None] = mapped_column(Units)

    nonce: Mapped[int | None] = mapped_column(sa.BigInteger)
    expires_at_height: Mapped[int | None] = mapped_column(sa.BigInteger)
    fee_cap_units: Mapped[int | None] = mapped_column(Units)
    # What the request allows for the network.
    max_fee_nanos: Mapped[int | None] = mapped_column(sa.BigInteger)
    fee_units: Mapped[int | None] = mapped_column(Units)
    native_out_units: Mapped[int | None] = mapped_column(Units)
    block_number: Mapped[int | None] = mapped_column(sa.BigInteger)
    block_hash: Mapped[str | None] = mapped_column(sa.String(100))
    opened_block: Mapped[int | None] = mapped_column(sa.BigInteger)

    # The movement that this transaction is a leg of, and which leg. Agents see the movement only.
    bridge_id: Mapped[str | None] = mapped_column(ID)
    leg: Mapped[str | None] = mapped_column(sa.String(12))
    expires_at: Mapped[datetime | None] = mapped_column(UtcDateTime)

    # When the confirmation worker checks it next; NULL once the row is final.
    next_check_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    # Since when workers leave a pending row alone: after a database restore, unknown bytes may have executed it.
    quarantined_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    checks: Mapped[int] = mapped_column(default=0)
    # The HTTP request that created it.
    request_id: Mapped[str | None] = mapped_column(sa.String(40))


class SponsoredDay(Model):
    """How many transfers of an agent the service has submitted on a day; of all agents, what free ones cost."""

    __tablename__ = "sponsored_days"

    agent_id: Mapped[str] = mapped_column(ID, primary_key=True)
    day: Mapped[date] = mapped_column(sa.Date, primary_key=True)
    transfers: Mapped[int]


class Bridge(Authenticated, Model):
    """The state of a bridge; agents see its row in `transactions`."""

    __tablename__ = "bridges"
    not_authenticated = frozenset({
        "stage", "fee_units", "proof", "attested_at", "received_units", "arrival_hash", "arrival_block",
        "arrival_block_hash", "arrival_takes_slot", "may_return", "refund_hash", "refund_block", "refund_block_hash",
        "refund_units", "next_step_at", "steps"
    })  # fmt: skip
    __table_args__ = (sa.Index("ix_bridges_due", "next_step_at"), sa.Index("ix_bridges_wallet_id", "wallet_id"))

    id: Mapped[str] = mapped_column(ID, primary_key=True)
    wallet_id: Mapped[str] = mapped_column(ID)
    adapter: Mapped[str] = mapped_column(sa.String(20))
    route: Mapped[str] = mapped_column(sa.String(60))
    destination_chain: Mapped[str] = mapped_column(sa.String(20))
    stage: Mapped[str] = mapped_column(sa.String(12))
    fee_units: Mapped[int] = mapped_column(Units)
    # Data of the adapter, and the proof of the source transaction for the destination. Both are public.
    terms: Mapped[dict[str, Any]] = mapped_column(sa.JSON)
    proof: Mapped[dict[str, Any]] = mapped_column(sa.JSON)
    attested_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    received_units: Mapped[int | None] = mapped_column(Units)
    # The transaction of the arrival: our own, or a relayer's.
    arrival_hash: Mapped[str | None] = mapped_column(sa.String(100))
    arrival_block: Mapped[int | None] = mapped_column(sa.BigInteger)
    arrival_block_hash: Mapped[str | None] = mapped_column(sa.String(100))
    # Whether it used a nonce of the wallet that none of our movements has.
    arrival_takes_slot: Mapped[bool] = mapped_column(default=False)
    # Whether it can be refunded on its source chain, and the transaction of the refund, which is not a deposit.
    may_return: Mapped[bool] = mapped_column(default=False, server_default=sa.false())
    refund_hash: Mapped[str | None] = mapped_column(sa.String(100))
    refund_block: Mapped[int | None] = mapped_column(sa.BigInteger)
    refund_block_hash: Mapped[str | None] = mapped_column(sa.String(100))
    refund_units: Mapped[int | None] = mapped_column(Units)
    # When the bridge worker checks it next; NULL once it is final.
    next_step_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    steps: Mapped[int] = mapped_column(default=0)


class TransactionEvent(Model):
    """One status change of a transaction, append-only."""

    __tablename__ = "transaction_events"
    __table_args__ = (
        sa.Index("ix_transaction_events_transaction_id", "transaction_id"),
        sa.Index("ix_transaction_events_at", "at"),
    )

    id: Mapped[int] = mapped_column(SERIAL, primary_key=True, autoincrement=True)
    transaction_id: Mapped[str] = mapped_column(ID)
    status: Mapped[str] = mapped_column(sa.String(10))
    reason: Mapped[str | None] = mapped_column(sa.String(200))
    at: Mapped[datetime] = mapped_column(UtcDateTime)


class SignedAttempt(Authenticated, Model):
    """Signed bytes of a transaction. Any of them may land, so none is deleted while it can."""

    __tablename__ = "signed_attempts"
    not_authenticated = frozenset({"id", "raw", "refusal", "seen_at_block", "sent_at"})
    __table_args__ = (
        sa.Index("ix_signed_attempts_transaction_id", "transaction_id"),
        sa.UniqueConstraint("chain", "tx_hash", name="uq_signed_attempts_hash"),
    )

    id: Mapped[int] = mapped_column(SERIAL, primary_key=True, autoincrement=True)
    transaction_id: Mapped[str] = mapped_column(ID)
    chain: Mapped[str] = mapped_column(sa.String(20))
    tx_hash: Mapped[str] = mapped_column(sa.String(100))
    purpose: Mapped[str] = mapped_column(sa.String(12))
    raw: Mapped[bytes] = mapped_column(sa.LargeBinary)
    terms: Mapped[dict[str, Any]] = mapped_column(sa.JSON)
    refusal: Mapped[str | None] = mapped_column(sa.String(40))
    seen_at_block: Mapped[int | None] = mapped_column(sa.BigInteger)
    sent_at: Mapped[datetime] = mapped_column(UtcDateTime)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)


class Nonce(Model):
    """The next nonce of an address on a chain, and the lock of its allocation."""

    __tablename__ = "nonces"

    chain: Mapped[str] = mapped_column(sa.String(20), primary_key=True)
    address: Mapped[str] = mapped_column(sa.String(64), primary_key=True)
    next_nonce: Mapped[int] = mapped_column(sa.BigInteger)


class FundingDeposit(Model):
    __tablename__ = "funding_deposits"
    __table_args__ = (
        sa.UniqueConstraint("chain", "wallet_id", "position", name="uq_funding_deposits_position"),
        sa.Index("ix_funding_deposits_open", "chain", "final"),
    )

    id: Mapped[str] = mapped_column(ID, primary_key=True)
    wallet_id: Mapped[str] = mapped_column(ID)
    chain: Mapped[str] = mapped_column(sa.String(20))
    currency: Mapped[str] = mapped_column(sa.String(10))
    units: Mapped[int] = mapped_column(Units)
    tx_hash: Mapped[str | None] = mapped_column(sa.String(100))
    payer: Mapped[str | None] = mapped_column(sa.String(64))
    position: Mapped[str] = mapped_column(sa.String(160))
    block_number: Mapped[int] = mapped_column(sa.BigInteger)
    block_hash: Mapped[str] = mapped_column(sa.String(100))
    # The scan state before this deposit, to scan again from, and whether the deposit was derived from a balance.
    mark_before: Mapped[dict[str, Any]] = mapped_column(sa.JSON)
    mark_block: Mapped[int] = mapped_column(sa.BigInteger)
    mark_revision: Mapped[int] = mapped_column(sa.BigInteger)
    by_mark: Mapped[bool]
    final: Mapped[bool] = mapped_column(default=False)
    found_at: Mapped[datetime] = mapped_column(UtcDateTime)


class FundingAllocation(Model):
    __tablename__ = "funding_allocations"

    deposit_id: Mapped[str] = mapped_column(ID, primary_key=True)
    transaction_id: Mapped[str] = mapped_column(ID, primary_key=True, index=True)
    units: Mapped[int] = mapped_column(Units)


class DepositCursor(Model):
    """The block up to which the wallets of a tier were scanned for deposits on a chain, and the lock of such scans."""

    __tablename__ = "deposit_cursors"

    chain: Mapped[str] = mapped_column(sa.String(20), primary_key=True)
    tier: Mapped[str] = mapped_column(sa.String(10), primary_key=True)
    block_number: Mapped[int | None] = mapped_column(sa.BigInteger)
    block_hash: Mapped[str | None] = mapped_column(sa.String(100))


class DepositScanState(Model):
    """The scan state of a wallet on a chain; only the chain's adapter interprets `mark`."""

    __tablename__ = "deposit_marks"

    wallet_id: Mapped[str] = mapped_column(ID, primary_key=True)
    chain: Mapped[str] = mapped_column(sa.String(20), primary_key=True)
    mark: Mapped[dict[str, Any]] = mapped_column(sa.JSON)
    block_number: Mapped[int] = mapped_column(sa.BigInteger)
    # Increases with every write, so that states are ordered even if block numbers decrease.
    revision: Mapped[int] = mapped_column(sa.BigInteger, default=0)


OWNED_BY_TRANSACTION = (TransactionEvent, SignedAttempt, FundingAllocation)
OWNED_BY_WALLET = (DepositScanState, FundingDeposit, Transaction, Bridge, SigningIntent)
"""The tables whose rows a wallet's deletion removes, besides those of its transactions."""
