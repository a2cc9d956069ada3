"""The steps of metered calls as statements: for PostgreSQL one for all steps of a kind in a batch, for SQLite one each.

They do what the functions of `app.usage.service` do in the usual case, and return the account's credits; a step of any
other case changes nothing. Shared budgets or holds are locked first, then accounts, all in the order of their ids, then
the budgets of keys with limits, which belong to the account, then sums.

PostgreSQL's take a JSON array of `Step.parameters`, and the time. They find keys, holds and budgets by subqueries for
each row, which use the index of their ids: as joins, the planner, which expects 100 steps, scans all open holds, and
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
  SELECT id FROM credit_accounts WHERE id IN (SELECT account_id FROM {}) {}ORDER BY id FOR NO KEY UPDATE
)"""
_CREDITS = "a.id AS account_id, a.available_nanos + a.held_nanos AS credits_nanos"
_RESULTS = "SELECT id::text, credits_nanos FROM done"
_WINDOW = "CASE WHEN b.period = 'total' THEN b.window_start ELSE date_trunc(b.period, $2, 'UTC') END AS start"
_COVERS = "limit_nanos IS NULL OR (used_nanos < limit_nanos AND used_nanos + wanted <= limit_nanos)"
# Shared budgets are locked before accounts. What was returned to them is subtracted, whether or not a step is done.
_SHARED = f"""counts_in AS MATERIALIZED (
  SELECT t.id, t.{{amount}} AS nanos, m.budget_id FROM asked t CROSS JOIN LATERAL (
    SELECT budget_id FROM budget_members WHERE member_id = t.account_id
    UNION SELECT budget_id FROM budget_members WHERE member_id = t.api_key_id
  ) m
), shared AS MATERIALIZED (
  SELECT b.* FROM (SELECT budget_id, sum(nanos) AS wanted FROM counts_in GROUP BY 1 ORDER BY 1) c CROSS JOIN LATERAL (
    SELECT b.id, c.wanted, b.limit_nanos, b.period, b.window_start, b.used_nanos,
      greatest(b.window_start, w.start) AS start
    FROM budgets b CROSS JOIN LATERAL (SELECT {_WINDOW}) w WHERE b.id = c.budget_id FOR NO KEY UPDATE
  ) b
), returned AS (
  DELETE FROM budget_returns r USING shared b WHERE r.budget_id = b.id
  RETURNING r.budget_id, CASE WHEN b.period = 'total' OR b.start <= r.held_at THEN r.nanos ELSE 0 END AS nanos
), left_of_shared AS MATERIALIZED (
  SELECT b.id, b.wanted, b.limit_nanos, b.start, CASE WHEN b.start > b.window_start THEN 0 ELSE b.used_nanos END
    - (SELECT coalesce(sum(r.nanos), 0) FROM returned r WHERE r.budget_id = b.id) AS used_nanos
  FROM shared b
), """  # noqa: S608 - constants
_SHARED_FIRST = "AND (SELECT count(*) FROM left_of_shared) >= 0 "
_COUNTED_IN_SHARED = """, counted_in_shared AS (
  UPDATE budgets s SET (window_start, used_nanos, announced_percent) = (
    SELECT b.start, b.used_nanos + (
        SELECT coalesce(sum(c.nanos), 0) FROM counts_in c WHERE c.budget_id = b.id AND c.id IN (SELECT id FROM done)
      ), CASE WHEN s.window_start = b.start THEN s.announced_percent ELSE 0 END
    FROM left_of_shared b WHERE b.id = s.id
  ) WHERE id = ANY(ARRAY(SELECT id FROM left_of_shared)) RETURNING id, limit_nanos - used_nanos AS left_nanos
)"""
# `locked` precedes it: the budget of a key only changes with the lock of its account.
_BUDGETS = f"""budgets_of_keys AS MATERIALIZED (
  SELECT b.* FROM (
    SELECT api_key_id, sum({{amount}}) AS wanted FROM asked WHERE is_limited GROUP BY 1 ORDER BY 1
  ) t CROSS JOIN LATERAL (
    SELECT b.id, t.wanted, b.limit_nanos, greatest(b.window_start, w.start) AS start,
      CASE WHEN w.start > b.window_start THEN 0 ELSE b.used_nanos END AS used_nanos
    FROM key_limits b CROSS JOIN LATERAL (SELECT {_WINDOW}) w
    WHERE b.id = t.api_key_id AND b.account_id IN (SELECT id FROM locked) FOR NO KEY UPDATE
  ) b
), """  # noqa: S608 - constants
_COUNTED = """, counted AS (
  UPDATE key_limits k SET (window_start, used_nanos, announced_percent) = (
    SELECT b.start, b.used_nanos + (SELECT coalesce(sum(d.{amount}), 0) FROM done d WHERE d.api_key_id = b.id),
      CASE WHEN k.window_start = b.start THEN k.announced_percent ELSE 0 END
    FROM budgets_of_keys b WHERE b.id = k.id
  ) WHERE id = ANY(ARRAY(SELECT api_key_id FROM done WHERE is_limited)) RETURNING id, limit_nanos, used_nanos
)"""
_LIMITED_RESULTS = """SELECT done.id::text, done.credits_nanos, least(k.limit_nanos - k.used_nanos, ({})::bigint)
FROM done LEFT JOIN counted k ON k.id = {}"""
_LOG_AND_SUMS = """logged AS (
  INSERT INTO usage_logs (id, account_id, api_key_id, provider, model, tokens_in, tokens_out, cached_tokens,
    reasoning_tokens, cost_nanos, price_version, created_at)
  SELECT id, account_id, (memo->>'api_key_id')::uuid, memo->>'provider', memo->>'model', tokens_in, tokens_out,
    cached_tokens, reasoning_tokens, cost, price_version, $2 FROM done
), summed AS (
  INSERT INTO usage_by_provider AS u (account_id, provider, calls, cost_nanos, tokens_in, tokens_out)
  SELECT account_id, memo->>'provider', count(*), sum(cost), sum(tokens_in), sum(tokens_out)
  FROM done GROUP BY 1, 2 ORDER BY 1, 2
  ON CONFLICT (account_id, provider) DO UPDATE SET calls = u.calls + excluded.calls,
    cost_nanos = u.cost_nanos + excluded.cost_nanos, tokens_in = u.tokens_in + excluded.tokens_in,
    tokens_out = u.tokens_out + excluded.tokens_out
)"""


def _taken(amount: str, *, into: str, has_budgets: bool) -> str:
    """Take the amounts of all steps asked for from accounts that have enough; these steps are `done`.

    Without budgets, accounts with shared ones are left out. With budgets, the steps of those that do not cover all
    of theirs, or are locked.
    """
    if not has_budgets:
        return f"{_LOCKED.format('asked', '')}, {_changed(amount, 'asked', into, 'AND NOT a.has_budgets')}"
    return f"""{_SHARED.format(amount=amount)}{_LOCKED.format("asked", _SHARED_FIRST)}, {_BUDGETS.format(amount=amount)}
covered AS (
  SELECT * FROM asked t
  WHERE (NOT is_limited OR api_key_id IN (SELECT id FROM budgets_of_keys WHERE {_COVERS})) AND NOT EXISTS (
    SELECT FROM counts_in c WHERE c.id = t.id AND c.budget_id NOT IN (SELECT id FROM left_of_shared WHERE {_COVERS})
  )
), {_changed(amount, "covered", into)}{_COUNTED.format(amount=amount)}{_COUNTED_IN_SHARED}"""  # noqa: S608 - constants


def _changed(amount: str, steps: str, into: str, condition: str = "") -> str:
    return f"""wanted AS (
  SELECT account_id, sum({amount})::bigint AS nanos FROM {steps} GROUP BY 1
), changed AS (
  UPDATE credit_accounts a SET available_nanos = a.available_nanos - w.nanos, {into} = a.{into} + w.nanos
  FROM locked l JOIN wanted w ON w.account_id = l.id
  WHERE a.id = l.id AND a.available_nanos > 0 AND a.available_nanos >= w.nanos {condition} RETURNING {_CREDITS}
), done AS (SELECT * FROM {steps} JOIN changed USING (account_id)
)"""  # noqa: S608 - constants


_MEMO = """(
    SELECT CASE WHEN count(*) = 0 THEN done.memo
      ELSE (done.memo::jsonb || jsonb_build_object('budgets', json_agg(c.budget_id ORDER BY c.budget_id)))::json END
    FROM counts_in c WHERE c.id = done.id
  )"""
"""The memo of a step that is done, with the shared budgets that count it."""


def _hold(results: str, *, has_budgets: bool) -> str:
    return f"""
WITH asked AS MATERIALIZED (
  SELECT t.* FROM {_STEPS}
    AS t(id uuid, account_id uuid, api_key_id uuid, is_limited boolean, nanos bigint, memo json,
      lease_until timestamptz)
  WHERE {_KEY_IS_VALID}
), {_taken("nanos", into="held_nanos", has_budgets=has_budgets)}, placed AS (
  INSERT INTO credit_holds (id, account_id, amount_nanos, state, settled_nanos, unpaid_nanos, memo, lease_until,
    created_at)
  SELECT id, account_id, nanos, 'held', 0, 0, {_MEMO if has_budgets else "memo"}, lease_until, $2 FROM done
), posted AS (
  INSERT INTO credit_postings (reference, kind, account_id, debit, credit, amount_nanos, created_at)
  SELECT 'hold:' || id, 'hold', account_id, 'available', 'held', nanos, $2 FROM done WHERE nanos > 0
)
{results}
"""  # noqa: S608 - constants


def _charge(results: str, *, has_budgets: bool) -> str:
    return f"""
WITH asked AS MATERIALIZED (
  SELECT t.* FROM {_STEPS}
    AS t(id uuid, account_id uuid, api_key_id uuid, is_limited boolean, cost bigint, tokens_in bigint,
      tokens_out bigint, cached_tokens bigint, reasoning_tokens bigint, price_version text, memo json)
  WHERE {_KEY_IS_VALID}
), {_taken("cost", into="spent_nanos", has_budgets=has_budgets)}, placed AS (
  INSERT INTO credit_holds (id, account_id, amount_nanos, state, settled_nanos, unpaid_nanos, memo, lease_until,
    created_at)
  SELECT id, account_id, cost, 'settled', cost, 0, {_MEMO if has_budgets else "memo"}, $2, $2 FROM done
), posted AS (
  INSERT INTO credit_postings (reference, kind, account_id, debit, credit, amount_nanos, created_at)
  SELECT 'charge:' || id, 'settle', account_id, 'available', 'revenue', cost, $2 FROM done WHERE cost > 0
), {_LOG_AND_SUMS}
{results}
"""  # noqa: S608 - constants


# A batch with calls of the former window returns nothing to the budget of a key: too little is better than too much.
# Shared budgets get one row for each day, because windows begin at midnight.
_RETURNED = """, counted AS (
  UPDATE key_limits k SET used_nanos = k.used_nanos - (
    SELECT CASE WHEN k.period = 'total' OR k.window_start <= min(held_at) THEN sum(amount_nanos - cost) ELSE 0 END
    FROM done WHERE (memo->>'api_key_id')::uuid = k.id
  )
  WHERE id = ANY(ARRAY(SELECT (memo->>'api_key_id')::uuid FROM done WHERE memo->'is_limited' IS NOT NULL))
  RETURNING id, limit_nanos, used_nanos
), counts_in AS MATERIALIZED (
  SELECT done.id, b.id::uuid AS budget_id, amount_nanos - cost AS nanos, held_at
  FROM done CROSS JOIN LATERAL json_array_elements_text(memo->'budgets') b(id)
), returned AS (
  INSERT INTO budget_returns (budget_id, nanos, held_at)
  SELECT budget_id, sum(nanos), min(held_at) FROM counts_in WHERE nanos > 0
  GROUP BY 1, date_trunc('day', held_at, 'UTC')
), counted_in_shared AS MATERIALIZED (
  SELECT id, limit_nanos - used_nanos AS left_nanos FROM budgets WHERE id = ANY(ARRAY(SELECT budget_id FROM counts_in))
)"""


def _settlement(results: str, condition: str, returned: str) -> str:
    return f"""
WITH asked AS MATERIALIZED (
  SELECT DISTINCT ON (t.id) t.* FROM {_STEPS}
    AS t(id uuid, account_id uuid, cost bigint, tokens_in bigint, tokens_out bigint, cached_tokens bigint,
      reasoning_tokens bigint, price_version text)
  ORDER BY t.id
), found AS MATERIALIZED (
  SELECT h.*, t.cost, t.tokens_in, t.tokens_out, t.cached_tokens, t.reasoning_tokens, t.price_version
  FROM asked t CROSS JOIN LATERAL (
    SELECT id, account_id, amount_nanos, state, memo, created_at AS held_at FROM credit_holds WHERE id = t.id
    FOR NO KEY UPDATE
  ) h
), open AS (SELECT * FROM found WHERE state = 'held' AND amount_nanos >= cost {condition}
), wanted AS MATERIALIZED (
  SELECT account_id, sum(amount_nanos)::bigint AS nanos, sum(cost)::bigint AS cost FROM open GROUP BY 1
), {_LOCKED.format("wanted", "")}, closed AS (
  UPDATE credit_holds h SET state = 'settled', settled_nanos = o.cost
  FROM open o JOIN locked l ON l.id = o.account_id WHERE h.id = o.id
  RETURNING o.id, o.account_id, o.amount_nanos, o.memo, o.held_at, o.cost, o.tokens_in, o.tokens_out,
    o.cached_tokens, o.reasoning_tokens, o.price_version
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


_LEFT = """SELECT min(s.left_nanos) FROM counted_in_shared s JOIN counts_in c ON c.budget_id = s.id
  WHERE c.id = done.id"""
_OF_KEY = _LIMITED_RESULTS.format(_LEFT, "done.api_key_id")
HOLD = _hold(_RESULTS, has_budgets=False), _hold(_OF_KEY, has_budgets=True)
CHARGE = _charge(_RESULTS, has_budgets=False), _charge(_OF_KEY, has_budgets=True)
# Without what other calls returned and no hold has taken back yet: never too much.
_LEFT_AFTER = """SELECT min(s.left_nanos + c.nanos) FROM counted_in_shared s JOIN counts_in c ON c.budget_id = s.id
  WHERE c.id = done.id"""
_OF_MEMO = _LIMITED_RESULTS.format(_LEFT_AFTER, "(done.memo->>'api_key_id')::uuid")
# A hold that shared budgets count may be of a call that did not know them.
SETTLEMENT = (_settlement(_RESULTS, "AND memo->'budgets' IS NULL", ""), _settlement(_OF_MEMO, "", _RETURNED))


_VALID_KEY = """SELECT 1 FROM api_keys WHERE id = ? AND account_id = ? AND revoked_at IS NULL
  AND (expires_at IS NULL OR expires_at > ?)"""
_TAKE = """UPDATE credit_accounts SET available_nanos = available_nanos - ?2, {} = {} + ?2
  WHERE id = ?1 AND available_nanos > 0 AND available_nanos >= ?2 AND NOT has_budgets
  RETURNING available_nanos + held_nanos"""
_TAKE_INTO = {column: _TAKE.format(column, column) for column in ("held_nanos", "spent_nanos")}
_PLACE = """INSERT INTO credit_holds (id, account_id, amount_nanos, state, settled_nanos, unpaid_nanos, memo,
  lease_until, created_at) VALUES (?, ?, ?, ?, ?, 0, ?, ?, ?)"""
_CLOSE = """UPDATE credit_holds SET state = 'settled', settled_nanos = ?2
  WHERE id = ?1 AND state = 'held' AND amount_nanos >= ?2 AND json_extract(memo, '$.budgets') IS NULL
  RETURNING account_id, amount_nanos, memo"""
_SPEND = """UPDATE credit_accounts SET available_nanos = available_nanos + ?2 - ?3, held_nanos = held_nanos - ?2,
  spent_nanos = spent_nanos + ?3 WHERE id = ?1 RETURNING available_nanos + held_nanos"""
_POST = """INSERT INTO credit_postings (reference, kind, account_id, debit, credit, amount_nanos, created_at)
  VALUES (?, ?, ?, ?, ?, ?, ?)"""
_LOG = """INSERT INTO usage_logs (id, account_id, api_key_id, provider, model, tokens_in, tokens_out, cost_nanos,
  cached_tokens, reasoning_tokens, price_version, created_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""
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
    ids = _hex(step["id"]), _hex(step["account_id"])
    connection.execute(_PLACE, (*ids, nanos, state, settled_nanos, json.dumps(step["memo"]), lease_until, now))


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
    parts = step["cached_tokens"], step["reasoning_tokens"]
    connection.execute(_LOG, (*line, *parts, step["price_version"], now))
    connection.execute(_SUM, (account, provider, step["cost"], *amounts))


def _hex(identifier: str) -> str:
    """Return an id as `app.db.tables.ID` stores it on SQLite."""
    return identifier.replace("-", "")


def stored(moment: datetime) -> str:
    """Return an instant as `UtcDateTime` stores it on SQLite."""
    return moment.astimezone(UTC).replace(tzinfo=None).isoformat(" ", "microseconds")
