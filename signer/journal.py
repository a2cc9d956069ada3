"""The signer's own record of what it has signed, in a database that no other process can write to.

A signature leaves the process only after its row is committed. Rows are never changed or deleted.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Engine,
    Float,
    Index,
    MetaData,
    String,
    Table,
    create_engine,
    event,
    select,
    text,
)

from app.core.chains import ChainName
from signer.intended import Intended, Signable, require

_METADATA = MetaData()
_SIGNED = Table(
    "signed", _METADATA,
    Column("intent_id", String(36), primary_key=True), Column("digest", String(64), primary_key=True),
    Column("wallet_id", String(36), nullable=False), Column("part", String(16), nullable=False),
    Column("chain", String(20), nullable=False), Column("sender", String(64), nullable=False),
    Column("nonce", BigInteger), Column("effect", String(64), nullable=False), Column("valid_until", Float),
    Column("signed_at", Float, nullable=False),
    Index("ix_signed_nonce", "chain", "sender", "nonce"), Index("ix_signed_signed_at", "signed_at"),
)  # fmt: skip
_CLOSED = Table(
    "closed", _METADATA,
    Column("intent_id", String(36), primary_key=True), Column("closed_at", Float, nullable=False),
)  # fmt: skip
_PERMIT = "permit"
_MAX_PERMITS = 8
"""A draft is simulated with a permit, and signed with another one if a swap came first; neither pays by itself."""


class Journal:
    def __init__(self, url: str) -> None:
        """Create the tables if they are missing."""
        self._engine: Engine = create_engine(url, hide_parameters=True)
        self._is_postgresql = self._engine.dialect.name == "postgresql"
        if not self._is_postgresql:
            event.listen(self._engine, "connect", _prepare_sqlite)
        _METADATA.create_all(self._engine)

    @contextmanager
    def _alone(self) -> Iterator[Connection]:
        """Open a transaction that excludes those of other signers."""
        with self._engine.connect() as connection:
            begins = "LOCK TABLE signed IN EXCLUSIVE MODE" if self._is_postgresql else "BEGIN IMMEDIATE"
            connection.execute(text(begins))
            yield connection
            connection.commit()

    def record(self, signable: Signable) -> None:
        """Record a signature before it is made, unless it was recorded before. Raises: Refused."""
        with self._alone() as connection:
            for intended in signable.intents:
                _record(connection, signable, intended)

    def close(self, intents: Sequence[str]) -> Mapping[str, tuple[int | None, float | None]]:
        """Sign nothing more for intents; return nonce and end of validity of what was signed for them."""
        now = time.time()
        with self._alone() as connection:
            known = set(connection.scalars(select(_CLOSED.c.intent_id).where(_CLOSED.c.intent_id.in_(intents))))
            new = [{"intent_id": each, "closed_at": now} for each in {*intents} - known]
            if new:
                connection.execute(_CLOSED.insert(), new)
            rows = connection.execute(
                select(_SIGNED.c.intent_id, _SIGNED.c.nonce, _SIGNED.c.valid_until).where(
                    _SIGNED.c.intent_id.in_(intents), _SIGNED.c.part != _PERMIT
                )
            )
            return {row.intent_id: (row.nonce, row.valid_until) for row in rows}

    def signed_since(self, since: float) -> Mapping[str, str]:
        """Return the intents of which something that pays was signed, with their wallets."""
        signed = select(_SIGNED.c.intent_id, _SIGNED.c.wallet_id)
        with self._engine.connect() as connection:
            rows = connection.execute(signed.where(_SIGNED.c.signed_at >= since, _SIGNED.c.part != _PERMIT))
            return {row.intent_id: row.wallet_id for row in rows}


def _record(connection: Connection, signable: Signable, intended: Intended) -> None:
    closed = select(_CLOSED.c.intent_id).where(_CLOSED.c.intent_id == intended.id)
    require(connection.scalar(closed) is None, "withdrawn")
    earlier = connection.execute(select(_SIGNED).where(_SIGNED.c.intent_id == intended.id)).all()
    if any(row.digest == signable.digest.hex() for row in earlier):
        return
    if signable.part == _PERMIT:
        require(sum(row.part == _PERMIT for row in earlier) < _MAX_PERMITS, "signed_before")
    for row in earlier:
        if _PERMIT in (row.part, signable.part):
            continue
        is_replacement = row.nonce is not None and row.nonce == signable.nonce and _is_same(row.effect, signable.effect)
        # The delivery of gas that the service has sold is signed again, once the first one has expired.
        is_repeat = intended.is_service and signable.chain is ChainName.SOLANA and row.valid_until < time.time()
        require(row.part == signable.part and (is_replacement or is_repeat), "signed_before")
    if signable.nonce is not None:
        others = select(_SIGNED.c.intent_id).where(
            _SIGNED.c.chain == signable.chain.value, _SIGNED.c.sender == signable.sender,
            _SIGNED.c.nonce == signable.nonce, _SIGNED.c.intent_id != intended.id,
            _SIGNED.c.intent_id.not_in(select(_CLOSED.c.intent_id)),
        )  # fmt: skip
        require(connection.scalar(others.limit(1)) is None, "nonce_in_use")
    new = {
        "intent_id": intended.id, "digest": signable.digest.hex(), "wallet_id": intended.wallet_id,
        "part": signable.part, "chain": signable.chain.value, "sender": signable.sender, "nonce": signable.nonce,
        "effect": signable.effect, "valid_until": signable.valid_until, "signed_at": time.time(),
    }  # fmt: skip
    connection.execute(_SIGNED.insert(), new)


def _is_same(effect: str, other: str) -> bool:
    """Return whether two transactions with one nonce do the same, or one of them does nothing."""
    return effect == other or "" in (effect, other)


def _prepare_sqlite(connection: object, _record: object) -> None:
    connection.isolation_level = None  # type: ignore[attr-defined]
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "busy_timeout=4000"):
        connection.execute(f"PRAGMA {pragma}")  # type: ignore[attr-defined]
