"""The steps of metered calls as statements: for PostgreSQL one for all steps of a kind in a batch, for SQLite one each.

They do what the functions of `app.usage.service` do in the usual case, and return the account's credits; a step of any
other case changes nothing. Holds are locked first, then accounts, both in the order of their ids, then the budgets of
keys with limits, which belong to the account, then sums.

PostgreSQL's take a JSON array of `Step.parameters`, and the time. They find keys and holds by subqueries for each row,
which can only use the index of their ids: as joins, the planner, which expects 100 steps, scans all open holds, and
the entries of those that ended since the last VACUUM. SQLite's take an open transaction, the parameters of one step
and the time as `stored`.
"""

import json
import sqlite3
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

PARAMETER_TYPES = (114, 1184)
"""The object ids of `json` and `timestamptz`."""
_STEPS = "set_config('lock_timeout', '200ms', true), json_to_recordset($1)"
# The caller's look-up may be some seconds old. Without ONLY, `lock_order` would take the table for locked.
_KEY_IS_VALID = """t.api_key_id = (
    SELECT k.id FROM ONLY api_keys k WHERE k.id = t.api_key_id AND k.account_id = t.account_id
      AND k.revoked_at IS NULL AND (k.expires_at IS NULL OR k.expires_at > $2)
  )"""
_LOCKED = """locked AS MATERIALIZED (
  SELECT id FROM credit_accounts WHERE id IN (SELECT account_id FROM {}) ORDER BY id FOR NO KEY UPDATE
)"""
_CREDITS = "a.id AS account_id, a.available_nanos + a.held_nanos AS credits_nanos"
_RESULTS = "SELECT id::text, credits_nanos FROM done"
# `locked` precedes it: a budget only changes with the lock of its account.
_BUDGETS = """budgets AS MATERIALIZED (
  SELECT b.id, b.limit_nanos, greatest(b.window_start, w.start) AS start,
    CASE WHEN w.start > b.window_start THEN 0 ELSE b.used_nanos END AS used_nanos
  FROM key_limits b CROSS JOIN LATERAL (
    SELECT CASE b.period WHEN 'total' THEN b.window_start ELSE date_trunc(b.period, $2, 'UTC') END AS start
  ) w
  WHERE b.account_id IN (SELECT id FROM locked) AND b.id IN (SELECT api_key_id FROM asked)
  ORDER BY b.id FOR NO KEY UPDATE
)"""
_LIMITED_RESULTS = """SELECT done.id::text, done.credits_nanos, k.limit_nanos - k.used_nanos
FROM done JOIN counted k ON k.id = {}"""
_LOG_AND_SUMS = """logged AS (
  INSERT INTO usage_logs (id, account_id, api_key_id, provider, model, tokens_in, tokens_out, cost_nanos,
    price_version, created_at)
  SELECT id, account_id, (memo->>'api_key_id')::uuid, memo->>'provider', memo->>'model', tokens_in, tokens_out, cost,
    price_version, $2 FROM done
), summed AS (
  INSERT INTO usage_by_provider AS u (account_id, provider, calls, cost_nanos, tokens_in, tokens_out)
  SELECT account_id, memo->>'provider', count(*), sum(cost), sum(tokens_in), sum(tokens_out)
  FROM done GROUP BY 1, 2 ORDER BY 1, 2
  ON CONFLICT (account_id, provider) DO UPDATE SET calls = u.calls + excluded.calls,
    cost_nanos = u.cost_nanos + excluded.cost_nanos, tokens_in = u.tokens_in + excluded.tokens_in,
    tokens_out = u.tokens_out + excluded.tokens_out
)"""


def _taken(amount: str, *, into: str, is_limited: bool) -> str:
    """Take the amounts of all steps asked for from accounts that have enough; these steps are `done`.

    With limits, those of a key whose budget does not cover all of its steps are left out.
    """
    covered = f"""{_BUDGETS}, covered AS (
  SELECT * FROM asked WHERE api_key_id IN (
    SELECT b.id FROM budgets b JOIN asked t ON t.api_key_id = b.id GROUP BY b.id, b.limit_nanos, b.used_nanos
    HAVING b.limit_nanos IS NULL
      OR (b.used_nanos < b.limit_nanos AND b.used_nanos + sum(t.{amount}) <= b.limit_nanos)
  )
), """  # noqa: S608 - constants
    counted = f""", counted AS (
  UPDATE key_limits k SET used_nanos = b.used_nanos + d.nanos, window_start = b.start,
    announced_percent = CASE WHEN k.window_start = b.start THEN k.announced_percent ELSE 0 END
  FROM budgets b JOIN (SELECT api_key_id, sum({amount})::bigint AS nanos FROM done GROUP BY 1) d ON d.api_key_id = b.id
  WHERE k.id = b.id RETURNING k.id, k.limit_nanos, k.used_nanos
)"""  # noqa: S608 - constants
    steps, first, last = ("covered", covered, counted) if is_limited else ("asked", "", "")
    return f"""{_LOCKED.format("asked")}, {first}wanted AS (
  SELECT account_id, sum({amount})::bigint AS nanos FROM {steps} GROUP BY 1
), changed AS (
  UPDATE credit_accounts a SET available_nanos = a.available_nanos - w.nanos, {into} = a.{into} + w.nanos
  FROM locked l JOIN wanted w ON w.account_id = l.id
  WHERE a.id = l.id AND a.available_nanos > 0 AND a.available_nanos >= w.nanos RETURNING {_CREDITS}
), done AS (SELECT * FROM {steps} JOIN changed USING (account_id)
){last}"""  # noqa: S608 - constants


def _hold(results: str, *, is_limited: bool) -> str:
    return f"""
WITH asked AS MATERIALIZED (
  SELECT t.* FROM {_STEPS}
    AS t(id uuid, account_id uuid, api_key_id uuid, nanos bigint, memo json, lease_until timestamptz)
  WHERE {_KEY_IS_VALID}
), {_taken("nanos", into="held_nanos", is_limited=is_limited)}, placed AS (
  INSERT INTO credit_holds (id, account_id, amount_nanos, state, settled_nanos, unpaid_nanos, memo, lease_until,
    created_at)
  SELECT id, account_id, nanos, 'held', 0, 0, memo, lease_until, $2 FROM done
), posted AS (
  INSERT INTO credit_postings (reference, kind, account_id, debit, credit, amount_nanos, created_at)
  SELECT 'hold:' || id, 'hold', account_id, 'available', 'held', nanos, $2 FROM done WHERE nanos > 0
)
{results}
"""  # noqa: S608 - constants


def _charge(results: str, *, is_limited: bool) -> str:
    return f"""
WITH asked AS MATERIALIZED (
  SELECT t.* FROM {_STEPS}
    AS t(id uuid, account_id uuid, api_key_id uuid, cost bigint, tokens_in bigint, tokens_out bigint,
      price_version text, memo json)
  WHERE {_KEY_IS_VALID}
), {_taken("cost", into="spent_nanos", is_limited=is_limited)}, placed AS (
  INSERT INTO credit_holds (id, account_id, amount_nanos, state, settled_nanos, unpaid_nanos, memo, lease_until,
    created_at)
  SELECT id, account_id, cost, 'settled', cost, 0, memo, $2, $2 FROM done
), posted AS (
  INSERT INTO credit_postings (reference, kind, account_id, debit, credit, amount_nanos, created_at)
  SELECT 'charge:' || id, 'settle', account_id, 'available', 'revenue', cost, $2 FROM done WHERE cost > 0
), {_LOG_AND_SUMS}
{results}
"""  # noqa: S608 - constants


# A batch with calls of the former window returns nothing to the budget: too little is better than too much.
_RETURNED = """, counted AS (
  UPDATE key_limits k SET used_nanos = k.used_nanos
    - CASE WHEN k.period = 'total' OR k.window_start <= d.held_at THEN d.nanos ELSE 0 END
  FROM (
    SELECT (memo->>'api_key_id')::uuid AS id, min(held_at) AS held_at, sum(amount_nanos - cost)::bigint AS nanos
    FROM done GROUP BY 1
  ) d
  WHERE k.id = d.id RETURNING k.id, k.limit_nanos, k.used_nanos
)"""


def _settlement(results: str, returned: str) -> str:
    return f"""
WITH asked AS MATERIALIZED (
  SELECT DISTINCT ON (t.id) t.* FROM {_STEPS}
    AS t(id uuid, account_id uuid, cost bigint, tokens_in bigint, tokens_out bigint, price_version text)
  ORDER BY t.id
), found AS MATERIALIZED (
  SELECT h.*, t.cost, t.tokens_in, t.tokens_out, t.price_version
  FROM asked t CROSS JOIN LATERAL (
    SELECT id, account_id, amount_nanos, state, memo, created_at AS held_at FROM credit_holds WHERE id = t.id
    FOR NO KEY UPDATE
  ) h
), open AS (SELECT * FROM found WHERE state = 'held' AND amount_nanos >= cost
), wanted AS MATERIALIZED (
  SELECT account_id, sum(amount_nanos)::bigint AS nanos, sum(cost)::bigint AS cost FROM open GROUP BY 1
), {_LOCKED.format("wanted")}, closed AS (
  UPDATE credit_holds h SET state = 'settled', settled_nanos = o.cost
  FROM open o JOIN locked l ON l.id = o.account_id WHERE h.id = o.id
  RETURNING o.id, o.account_id, o.amount_nanos, o.memo, o.held_at, o.cost, o.tokens_in, o.tokens_out, o.price_version
), changed AS (
  UPDATE credit_accounts a SET available_nanos = a.available_nanos + w.nanos - w.cost,
    held_nanos = a.held_nanos - w.nanos, spent_nanos = a.spent_nanos + w.cost
  FROM locked l JOIN wanted w ON w.account_id = l.id WHERE a.id = l.id RETURNING {_CREDITS}
), done AS (SELECT * FROM closed JOIN changed USING (account_id)
){returned}, posted AS (
  INSERT INTO credit_postings (reference, kind, account_id, debit, credit, amount_nanos, created_at)
  SELECT 'release:' || id, 'release', account_id, 'held', 'available', amount_nanos - cost, $2
    FROM done WHERE amount_nanos > cost
  UNION ALL SELECT 'settle:' || id, 'settle', account_id, 'held', 'revenue', cost, $2 FROM done WHERE cost > 0
), {_LOG_AND_SUMS}
{results}
"""  # noqa: S608 - constants


_OF_KEY = _LIMITED_RESULTS.format("done.api_key_id")
HOLD = _hold(_RESULTS, is_limited=False), _hold(_OF_KEY, is_limited=True)
CHARGE = _charge(_RESULTS, is_limited=False), _charge(_OF_KEY, is_limited=True)
_OF_MEMO = _LIMITED_RESULTS.format("(done.memo->>'api_key_id')::uuid")
SETTLEMENT = _settlement(_RESULTS, ""), _settlement(_OF_MEMO, _RETURNED)


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
    nanos, lease_until = step["nanos"], stored(step["lease_until"])
    credits_nanos = _take(connection, step, nanos, now, into="held_nanos")
    if credits_nanos is None:
        return None
    _place(connection, step, ("held", nanos, 0), lease_until, now)
    _post(connection, step, ("hold", "hold", "available", "held", nanos), now)
    return credits_nanos


def charge(connection: sqlite3.Connection, step: Mapping[str, Any], now: str) -> int | None:
    cost = step["cost"]
    credits_nanos = _take(connection, step, cost, now, into="spent_nanos")
    if credits_nanos is None:
        return None
    _place(connection, step, ("settled", cost, cost), now, now)
    _post(connection, step, ("charge", "settle", "available", "revenue", cost), now)
    _log(connection, step, step["memo"], now)
    return credits_nanos


def settle(connection: sqlite3.Connection, step: Mapping[str, Any], now: str) -> int | None:
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
    account, provider = _hex(step["account_id"]), memo["provider"]
    key, amounts = _hex(memo["api_key_id"]), (step["tokens_in"], step["tokens_out"])
    line = (_hex(step["id"]), account, key, provider, memo["model"], *amounts, step["cost"])
    connection.execute(_LOG, (*line, step["price_version"], now))
    connection.execute(_SUM, (account, provider, step["cost"], *amounts))


def _hex(identifier: str) -> str:
    """Return an id as `app.db.tables.ID` stores it on SQLite."""
    return identifier.replace("-", "")


def stored(moment: datetime) -> str:
    """Return an instant as `UtcDateTime` stores it on SQLite."""
    return moment.astimezone(UTC).replace(tzinfo=None).isoformat(" ", "microseconds")
