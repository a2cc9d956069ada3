"""The steps of metered calls as plain statements for SQLite, where a round trip costs nothing and the ORM most.

Each function takes an open transaction, the step's parameters (`Step.parameters`) and the time as `stored`. It does
what the functions of `app.usage.service` do in the usual case, and returns the account's credits; in any other case it
returns None and changes nothing.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

_VALID_KEY = """SELECT 1 FROM api_keys WHERE id = ? AND account_id = ? AND revoked_at IS NULL
  AND (expires_at IS NULL OR expires_at > ?)"""
_TAKE = """UPDATE credit_accounts SET available_nanos = available_nanos - ?2, {} = {} + ?2
  WHERE id = ?1 AND available_nanos > 0 AND available_nanos >= ?2
  RETURNING available_nanos + held_nanos"""
_TAKE_INTO = {column: _TAKE.format(column, column) for column in ("held_nanos", "spent_nanos")}
_PLACE = """INSERT INTO credit_holds (id, account_id, amount_nanos, state, settled_nanos, unpaid_nanos, memo,
  lease_until, created_at) VALUES (?, ?, ?, ?, ?, 0, ?, ?, ?)"""
_CLOSE = """UPDATE credit_holds SET state = 'settled', settled_nanos = ?2
  WHERE id = ?1 AND state = 'held' AND amount_nanos >= ?2 RETURNING account_id, amount_nanos, memo"""
_SPEND = """UPDATE credit_accounts SET available_nanos = available_nanos + ?2 - ?3, held_nanos = held_nanos - ?2,
  spent_nanos = spent_nanos + ?3 WHERE id = ?1 RETURNING available_nanos + held_nanos"""
_POST = """INSERT INTO credit_postings (reference, kind, account_id, debit, credit, amount_nanos, created_at)
  VALUES (?, ?, ?, ?, ?, ?, ?)"""
_LOG = """INSERT INTO usage_logs (id, account_id, api_key_id, provider, model, tokens_in, tokens_out, cost_nanos,
  price_version, created_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""
_SUM = """INSERT INTO usage_by_provider (account_id, provider, calls, cost_nanos, tokens_in, tokens_out)
  VALUES (?, ?, 1, ?, ?, ?) ON CONFLICT (account_id, provider) DO UPDATE SET calls = calls + 1,
  cost_nanos = cost_nanos + excluded.cost_nanos, tokens_in = tokens_in + excluded.tokens_in,
  tokens_out = tokens_out + excluded.tokens_out"""


def hold(connection: sqlite3.Connection, step: Mapping[str, Any], now: str) -> int | None:
    """Hold credits for a call."""
    nanos, lease_until = step["nanos"], stored(step["lease_until"])
    credits_nanos = _take(connection, step, nanos, now, into="held_nanos")
    if credits_nanos is None:
        return None
    _place(connection, step, ("held", nanos, 0), lease_until, now)
    _post(connection, step, ("hold", "hold", "available", "held", nanos), now)
    return credits_nanos


def charge(connection: sqlite3.Connection, step: Mapping[str, Any], now: str) -> int | None:
    """Charge a known price."""
    cost = step["cost"]
    credits_nanos = _take(connection, step, cost, now, into="spent_nanos")
    if credits_nanos is None:
        return None
    _place(connection, step, ("settled", cost, cost), now, now)
    _post(connection, step, ("charge", "settle", "available", "revenue", cost), now)
    _log(connection, step, step["memo"], now)
    return credits_nanos


def settle(connection: sqlite3.Connection, step: Mapping[str, Any], now: str) -> int | None:
    """Settle a hold at a cost that it covers."""
    cost = step["cost"]
    closed = connection.execute(_CLOSE, (_hex(step["id"]), cost)).fetchall()
    if not closed:
        return None
    [(account, nanos, stored_memo)] = closed
    memo = json.loads(stored_memo)
    credits_nanos: int
    [(credits_nanos,)] = connection.execute(_SPEND, (account, nanos, cost)).fetchall()
    _post(connection, step, ("release", "release", "held", "available", nanos - cost), now)
    _post(connection, step, ("settle", "settle", "held", "revenue", cost), now)
    _log(connection, step, memo, now)
    return credits_nanos


def _take(connection: sqlite3.Connection, step: Mapping[str, Any], nanos: int, now: str, *, into: str) -> int | None:
    """Take credits if the key is valid and they suffice; return the account's credits."""
    account = _hex(step["account_id"])
    # The caller's look-up may be some seconds old.
    if not connection.execute(_VALID_KEY, (_hex(step["api_key_id"]), account, now)).fetchall():
        return None
    taken = connection.execute(_TAKE_INTO[into], (account, nanos)).fetchall()
    return taken[0][0] if taken else None


def _place(
    connection: sqlite3.Connection, step: Mapping[str, Any], values: tuple[str, int, int], lease_until: str, now: str
) -> None:
    state, nanos, settled_nanos = values
    memo = json.dumps(step["memo"])
    ids = _hex(step["id"]), _hex(step["account_id"])
    connection.execute(_PLACE, (*ids, nanos, state, settled_nanos, memo, lease_until, now))


def _post(
    connection: sqlite3.Connection, step: Mapping[str, Any], entry: tuple[str, str, str, str, int], now: str
) -> None:
    reason, kind, debit, credit, nanos = entry
    if nanos:
        account = _hex(step["account_id"])
        connection.execute(_POST, (f"{reason}:{step['id']}", kind, account, debit, credit, nanos, now))


def _log(connection: sqlite3.Connection, step: Mapping[str, Any], memo: Mapping[str, Any], now: str) -> None:
    """Write the log entry of a call and add it to the sums."""
    account, provider = _hex(step["account_id"]), memo["provider"]
    key, amounts = _hex(memo["api_key_id"]), (step["tokens_in"], step["tokens_out"])
    line = (_hex(step["id"]), account, key, provider, memo["model"], *amounts, step["cost"])
    connection.execute(_LOG, (*line, step["price_version"], now))
    connection.execute(_SUM, (account, provider, step["cost"], *amounts))


def _hex(identifier: str) -> str:
    """Return an id as `app.db.columns.ID` stores it on SQLite."""
    return identifier.replace("-", "")


def stored(moment: datetime) -> str:
    """Return an instant as `UtcDateTime` stores it on SQLite."""
    return moment.astimezone(UTC).replace(tzinfo=None).isoformat(" ", "microseconds")
