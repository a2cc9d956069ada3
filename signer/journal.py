"""The signer's own record of what it has signed and what owners asked for, which no other process can write to.

A signature leaves the process only after its row is committed. Nothing is changed or deleted, except that
refusals are counted. On PostgreSQL, which several signers share, each transaction is serializable and repeated if it
conflicts with another one's. Statements are the driver's, because each signature waits for them.
"""

import sqlite3
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import psycopg
from psycopg.errors import SerializationFailure

from app.core.chains import ChainName
from app.db.libpq import LOSS_DETECTION, PreparedStatements
from signer.intended import Intended, Refused, Signable, require

_SCHEMA = """
CREATE TABLE IF NOT EXISTS signed (
    intent_id VARCHAR(36) NOT NULL, digest VARCHAR(64) NOT NULL, wallet_id VARCHAR(36) NOT NULL,
    part VARCHAR(16) NOT NULL, chain VARCHAR(20) NOT NULL, sender VARCHAR(64) NOT NULL, nonce BIGINT,
    effect VARCHAR(64) NOT NULL, valid_until BIGINT, signed_at BIGINT NOT NULL,
    PRIMARY KEY (intent_id, digest)
);
CREATE INDEX IF NOT EXISTS ix_signed_nonce ON signed (chain, sender, nonce);
CREATE INDEX IF NOT EXISTS ix_signed_signed_at ON signed (signed_at);
CREATE TABLE IF NOT EXISTS closed (intent_id VARCHAR(36) PRIMARY KEY, closed_at BIGINT NOT NULL);
CREATE TABLE IF NOT EXISTS exports (
    request_id VARCHAR(36) PRIMARY KEY, wallet_id VARCHAR(36) NOT NULL, announced_at BIGINT NOT NULL
);
CREATE TABLE IF NOT EXISTS imports (import_id VARCHAR(36) PRIMARY KEY, wallet_id VARCHAR(36) NOT NULL);
CREATE TABLE IF NOT EXISTS refusals (reason VARCHAR(40) PRIMARY KEY, number BIGINT NOT NULL)
"""
_IS_CLOSED = "EXISTS (SELECT 1 FROM closed WHERE intent_id = ?1)"
_IS_NONCE_TAKEN = (
    "EXISTS (SELECT 1 FROM signed WHERE intent_id <> ?1 AND chain = ?2 AND sender = ?3 AND nonce = ?4"
    " AND NOT EXISTS (SELECT 1 FROM closed WHERE closed.intent_id = signed.intent_id))"
)
_INSERT = (
    "INSERT INTO signed (intent_id, chain, sender, nonce, digest, wallet_id, part, effect, valid_until, signed_at)"
    " SELECT CAST(?1 AS VARCHAR(36)), CAST(?2 AS VARCHAR(20)), CAST(?3 AS VARCHAR(64)), CAST(?4 AS BIGINT),"
    " CAST(?5 AS VARCHAR(64)), CAST(?6 AS VARCHAR(36)), CAST(?7 AS VARCHAR(16)), CAST(?8 AS VARCHAR(64)),"
    " CAST(?9 AS BIGINT), CAST(?10 AS BIGINT)"
)
_IS_SIGNED = "EXISTS (SELECT 1 FROM signed WHERE intent_id = ?1)"
_INSERT_FIRST = f"{_INSERT} WHERE NOT {_IS_CLOSED} AND NOT {_IS_SIGNED} AND NOT {_IS_NONCE_TAKEN} RETURNING 1"
_EARLIER = "SELECT digest, part, nonce, effect, valid_until FROM signed WHERE intent_id = ?1"
_CLOSE = "INSERT INTO closed VALUES (?1, ?2) ON CONFLICT DO NOTHING"
_PAYING = "SELECT nonce, valid_until FROM signed WHERE intent_id = ?1 AND part <> 'permit' ORDER BY signed_at DESC"
_SINCE = "SELECT intent_id, wallet_id FROM signed WHERE signed_at >= ?1 AND part <> 'permit'"
_ANNOUNCE = "INSERT INTO exports VALUES (?1, ?2, ?3) ON CONFLICT DO NOTHING"
_ANNOUNCED = "SELECT 1 FROM exports WHERE request_id = ?1 AND wallet_id = ?2 AND announced_at <= ?3"
_IMPORT = "INSERT INTO imports VALUES (?1, ?2) ON CONFLICT DO NOTHING"
_IMPORTED = "SELECT wallet_id FROM imports WHERE import_id = ?1"
_REFUSE = "INSERT INTO refusals VALUES (?1, 1) ON CONFLICT (reason) DO UPDATE SET number = refusals.number + 1"
_REFUSALS = "SELECT reason, number FROM refusals"
_PERMIT = "permit"
_MAX_PERMITS = 8
"""A draft is simulated with a permit, and signed with another one if a swap came first; neither pays by itself."""
_BUSY_SECONDS, _TRIES = 4, 50
# A signature may not outlive its row, so the server's default for commits does not count.
_OPTIONS = "-c default_transaction_isolation=serializable -c synchronous_commit=on"
_Run = Callable[..., Sequence[Sequence[Any]]]
_ResultT = TypeVar("_ResultT")


class UnsafeJournalError(RuntimeError):
    """Transactions of two signers would not see each other's."""


class Journal:
    """One connection, which threads use in turn: a signature takes far longer than its row."""

    def __init__(self, url: str) -> None:
        """Store `sqlite:///<path>` or a PostgreSQL URL, and create the tables if they are missing."""
        self._url, self._lock = url, threading.Lock()
        self._connection: Any = None
        self._run: _Run | None = None
        self._is_postgresql = not url.startswith("sqlite:")
        self._serialized(lambda _run: None)

    def record(self, signable: Signable) -> None:
        """Record a signature before it is made, unless it was recorded before. Raises: Refused."""
        rows = [_row(signable, each) for each in signable.intents]
        # The first signature for an intent, as almost all are, is one statement, and a transaction by itself.
        if len(rows) == 1 and self._serialized(lambda run: run(_INSERT_FIRST, *rows[0]), is_statement=True):
            return

        def record_all(run: _Run) -> None:
            for intended, row in zip(signable.intents, rows, strict=True):
                _record(run, signable, intended, row)

        self._serialized(record_all)

    def close(self, intents: Sequence[str]) -> Mapping[str, tuple[int | None, int | None]]:
        """Sign nothing more for intents; return nonce and end of validity of what was signed for them."""

        def close_all(run: _Run) -> Mapping[str, tuple[int | None, int | None]]:
            for each in intents:
                run(_CLOSE, each, int(time.time()))
            rows = {each: run(_PAYING, each) for each in intents}
            return {each: (found[0][0], found[0][1]) for each, found in rows.items() if found}

        return self._serialized(close_all)

    def signed_since(self, since: int) -> Mapping[str, str]:
        """Return the wallet of each intent for which a payment was signed."""
        return self._serialized(lambda run: {row[0]: row[1] for row in run(_SINCE, since)})

    def announce_export(self, wallet_id: str, request_id: str) -> None:
        """Record when an owner asked for the keys of a wallet, unless it is recorded."""
        self._serialized(lambda run: run(_ANNOUNCE, request_id, wallet_id, int(time.time())))

    def is_announced(self, wallet_id: str, request_id: str, *, until: int) -> bool:
        return bool(self._serialized(lambda run: run(_ANNOUNCED, request_id, wallet_id, until)))

    def use_import(self, import_id: str, wallet_id: str) -> None:
        """Record which wallet an import makes, once. Raises: Refused if it was used for another one."""

        def use(run: _Run) -> str:
            run(_IMPORT, import_id, wallet_id)
            return str(run(_IMPORTED, import_id)[0][0])

        require(self._serialized(use) == wallet_id, "import_used")

    def count_refusal(self, reason: str) -> None:
        self._serialized(lambda run: run(_REFUSE, reason))

    def refusals(self) -> Mapping[str, int]:
        """Return how often all signers of this journal have refused, by reason."""
        return self._serialized(lambda run: {row[0]: row[1] for row in run(_REFUSALS)})

    def _serialized(self, act: Callable[[_Run], _ResultT], *, is_statement: bool = False) -> _ResultT:
        """Run an act as if no other signer did anything meanwhile; commit it, or roll back on an exception.

        An act that is one statement needs no transaction around it.
        """
        with self._lock:
            for tries_left in reversed(range(_TRIES)):
                try:
                    run = self._run or self._connect()
                    return act(run) if is_statement else self._committed(run, act)
                except SerializationFailure:
                    if not tries_left:
                        raise
                except Refused:
                    raise
                except BaseException:
                    self.disconnect()
                    raise
        raise AssertionError

    def disconnect(self) -> None:
        """Close the connection; the next statement opens another one."""
        connection, self._connection, self._run = self._connection, None, None
        if connection is not None:
            connection.close()

    def _committed(self, run: _Run, act: Callable[[_Run], _ResultT]) -> _ResultT:
        run("BEGIN" if self._is_postgresql else "BEGIN IMMEDIATE")
        try:
            result = act(run)
            run("COMMIT")
        except BaseException:
            run("ROLLBACK")
            raise
        return result

    def _connect(self) -> _Run:
        self._run = self._open_postgresql() if self._is_postgresql else self._open_sqlite()
        return self._run

    def _open_postgresql(self) -> _Run:
        url = self._url.replace("+psycopg", "")
        self._connection = psycopg.connect(url, autocommit=True, options=_OPTIONS, **LOSS_DETECTION)
        [level] = self._connection.execute("SHOW transaction_isolation").fetchone()
        if level != "serializable":
            raise UnsafeJournalError("SIGNER_DATABASE_URL names a pooler that ignores options: name PostgreSQL.")
        self._connection.execute(_SCHEMA.encode())
        prepared = PreparedStatements(self._connection)

        def run(statement: str, *values: object) -> Sequence[Sequence[Any]]:
            return prepared.execute(statement.replace("?", "$"), values, in_transaction=False)[0]

        return run

    def _open_sqlite(self) -> _Run:
        path = self._url.removeprefix("sqlite:///")
        local = self._connection = sqlite3.connect(path, _BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        local.execute("PRAGMA journal_mode=WAL")
        local.execute("PRAGMA synchronous=FULL")
        local.executescript(_SCHEMA)
        return lambda statement, *values: local.execute(statement, values).fetchall()


def _record(run: _Run, signable: Signable, intended: Intended, row: Sequence[Any]) -> None:
    require(not run(f"SELECT {_IS_CLOSED}", intended.id)[0][0], "withdrawn")
    earlier = run(_EARLIER, intended.id)
    if any(digest == signable.digest.hex() for digest, *_ in earlier):
        return
    if signable.part == _PERMIT:
        require(sum(part == _PERMIT for _, part, *_ in earlier) < _MAX_PERMITS, "signed_before")
    for _, part, nonce, effect, valid_until in earlier:
        if _PERMIT in (part, signable.part):
            continue
        is_replacement = nonce is not None and nonce == signable.nonce and _is_same(effect, signable.effect)
        # The delivery of gas that the service has sold is signed again, once the first one has expired.
        is_repeat = intended.is_service and signable.chain is ChainName.SOLANA and valid_until < int(time.time())
        require(part == signable.part and (is_replacement or is_repeat), "signed_before")
    require(not run(f"SELECT {_IS_NONCE_TAKEN}", *row[:4])[0][0], "nonce_in_use")
    run(_INSERT, *row)


def _row(signable: Signable, intended: Intended) -> Sequence[Any]:
    return (
        intended.id, signable.chain.value, signable.sender, signable.nonce, signable.digest.hex(), intended.wallet_id,
        signable.part, signable.effect, signable.valid_until, int(time.time()),
    )  # fmt: skip


def _is_same(effect: str, other: str) -> bool:
    """Return whether two transactions with one nonce do the same, or one of them does nothing."""
    return effect == other or "" in (effect, other)
