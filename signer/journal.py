"""The signer's own record of what it has signed and what owners asked for, which no other process can write to.

A signature leaves the process only after its row is committed. Rows are never changed or deleted. Statements are the
driver's, because each signature waits for them.
"""

import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg

from app.core.chains import ChainName
from signer.intended import Intended, Signable, require

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
CREATE TABLE IF NOT EXISTS refusals (reason VARCHAR(40) PRIMARY KEY, number BIGINT NOT NULL)
"""
_CLOSED = "SELECT 1 FROM closed WHERE intent_id = ?"
_EARLIER = "SELECT digest, part, nonce, effect, valid_until FROM signed WHERE intent_id = ?"
_OTHERS = (
    "SELECT 1 FROM signed WHERE chain = ? AND sender = ? AND nonce = ? AND intent_id <> ?"
    " AND NOT EXISTS (SELECT 1 FROM closed WHERE closed.intent_id = signed.intent_id) LIMIT 1"
)
_INSERT = "INSERT INTO signed VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_CLOSE = "INSERT INTO closed VALUES (?, ?) ON CONFLICT DO NOTHING"
_PAYING = "SELECT nonce, valid_until FROM signed WHERE intent_id = ? AND part <> 'permit' ORDER BY signed_at DESC"
_SINCE = "SELECT intent_id, wallet_id FROM signed WHERE signed_at >= ? AND part <> 'permit'"
_ANNOUNCE = "INSERT INTO exports VALUES (?, ?, ?) ON CONFLICT DO NOTHING"
_ANNOUNCED = "SELECT 1 FROM exports WHERE request_id = ? AND wallet_id = ? AND announced_at <= ?"
_REFUSE = "INSERT INTO refusals VALUES (?, 1) ON CONFLICT (reason) DO UPDATE SET number = refusals.number + 1"
_REFUSALS = "SELECT reason, number FROM refusals"
_PERMIT = "permit"
_MAX_PERMITS = 8
"""A draft is simulated with a permit, and signed with another one if a swap came first; neither pays by itself."""
_BUSY_SECONDS = 4


class Journal:
    """One connection, which threads use in turn: a signature takes far longer than its row."""

    def __init__(self, url: str) -> None:
        """Store `sqlite:///<path>` or a PostgreSQL URL, and create the tables if they are missing."""
        self._url, self._lock = url, threading.Lock()
        self._connection: Any = None
        self._is_postgresql = not url.startswith("sqlite:")
        with self._alone():
            pass

    def record(self, signable: Signable) -> None:
        """Record a signature before it is made, unless it was recorded before. Raises: Refused."""
        with self._alone() as run:
            for intended in signable.intents:
                _record(run, signable, intended)

    def close(self, intents: Sequence[str]) -> Mapping[str, tuple[int | None, int | None]]:
        """Sign nothing more for intents; return nonce and end of validity of what was signed for them."""
        found = {}
        with self._alone() as run:
            for each in intents:
                run(_CLOSE, each, int(time.time()))
                rows = run(_PAYING, each)
                if rows:
                    found[each] = (rows[0][0], rows[0][1])
        return found

    def signed_since(self, since: int) -> Mapping[str, str]:
        """Return the wallet of each intent for which a payment was signed."""
        with self._alone() as run:
            return dict(run(_SINCE, since))

    def announce_export(self, wallet_id: str, request_id: str) -> None:
        """Record when an owner asked for the keys of a wallet, unless it is recorded."""
        with self._alone() as run:
            run(_ANNOUNCE, request_id, wallet_id, int(time.time()))

    def is_announced(self, wallet_id: str, request_id: str, *, until: int) -> bool:
        with self._alone() as run:
            return bool(run(_ANNOUNCED, request_id, wallet_id, until))

    def count_refusal(self, reason: str) -> None:
        with self._alone() as run:
            run(_REFUSE, reason)

    def refusals(self) -> Mapping[str, int]:
        """Return how often all signers of this journal have refused, by reason."""
        with self._alone() as run:
            return dict(run(_REFUSALS))

    @contextmanager
    def _alone(self) -> Iterator[Any]:
        """Open a transaction that excludes those of other signers; commit it, or roll back on an exception."""
        with self._lock:
            connection = self._connection or self._connect()
            self._connection = None  # of one that fails, nothing is used again
            begin = "BEGIN; LOCK TABLE signed IN EXCLUSIVE MODE" if self._is_postgresql else "BEGIN IMMEDIATE"
            connection.execute(begin)

            def run(statement: str, *values: object) -> Any:
                cursor = connection.execute(self._in_dialect(statement), values)
                return cursor.fetchall() if cursor.description else []

            try:
                yield run
            except BaseException:
                connection.execute("ROLLBACK")
                self._connection = connection
                raise
            connection.execute("COMMIT")
            self._connection = connection

    def _connect(self) -> Any:
        if self._is_postgresql:
            made = psycopg.connect(self._url.replace("+psycopg", ""), autocommit=True, prepare_threshold=1)
            made.execute(_SCHEMA.encode())
            return made
        local = sqlite3.connect(
            self._url.removeprefix("sqlite:///"), _BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
        local.execute("PRAGMA journal_mode=WAL")
        local.execute("PRAGMA synchronous=FULL")
        local.executescript(_SCHEMA)
        return local

    def _in_dialect(self, statement: str) -> str:
        return statement.replace("?", "%s") if self._is_postgresql else statement


def _record(run: Any, signable: Signable, intended: Intended) -> None:
    require(not run(_CLOSED, intended.id), "withdrawn")
    digest = signable.digest.hex()
    earlier = run(_EARLIER, intended.id)
    if any(row[0] == digest for row in earlier):
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
    if signable.nonce is not None:
        others = run(_OTHERS, signable.chain.value, signable.sender, signable.nonce, intended.id)
        require(not others, "nonce_in_use")
    run(
        _INSERT, intended.id, digest, intended.wallet_id, signable.part, signable.chain.value, signable.sender,
        signable.nonce, signable.effect, signable.valid_until, int(time.time()),
    )  # fmt: skip


def _is_same(effect: str, other: str) -> bool:
    """Return whether two transactions with one nonce do the same, or one of them does nothing."""
    return effect == other or "" in (effect, other)
