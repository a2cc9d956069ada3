"""The steps of metered calls as statements: on PostgreSQL one for all steps of a kind in a batch, on SQLite some each.

They do what the functions of `app.usage.service` do in the usual case, and return the account's credits; a step of any
other case changes nothing. The counters of budgets are locked first, then holds, then accounts, all in the order of
their ids, then sums.

PostgreSQL's take a JSON array of `Step.parameters`, and the time. They find keys, holds and budgets by subqueries for
each row, which use the index of their ids: as joins, the planner, which expects 100 steps, scans all open holds, and
the entries of those that ended since the last VACUUM.
"""

import json
import sqlite3
from collections.abc import Mapping, Sequence
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
_BUDGETS_OF_CALL = """, ARRAY(
    SELECT DISTINCT budget_id FROM budget_members WHERE member_id IN (t.account_id, t.api_key_id) ORDER BY 1
  ) AS budgets"""
_COVERS = "limit_nanos IS NULL OR (used_nanos < limit_nanos AND used_nanos + wanted <= limit_nanos)"
# What functions return to counters is left to the function that finds too little.
_COUNTERS = """counters AS MATERIALIZED (
  SELECT b.* FROM (
    SELECT b.id, sum({amount}) AS wanted FROM asked t CROSS JOIN unnest(t.budgets) b(id) GROUP BY 1 ORDER BY 1
  ) c CROSS JOIN LATERAL (
    SELECT b.id, c.wanted, b.limit_nanos, b.period, w.start,
      CASE WHEN w.start > b.window_start THEN 0 ELSE b.used_nanos END AS used_nanos
    FROM budget_counters b CROSS JOIN LATERAL (SELECT CASE WHEN b.period = 'total' THEN b.window_start
      ELSE greatest(b.window_start, date_trunc(b.period, $2, 'UTC')) END AS start) w
    WHERE b.id = c.id FOR NO KEY UPDATE
  ) b
), """
_COUNTERS_FIRST = "AND (SELECT count(*) FROM counters) >= 0 "
_COUNTED = """, counted AS (
  UPDATE budget_counters s SET (window_start, used_nanos, announced_percent) = (
    SELECT c.start, c.used_nanos + (SELECT coalesce(sum({amount}), 0) FROM done WHERE s.id = ANY(budgets)),
      CASE WHEN s.window_start = c.start THEN s.announced_percent ELSE 0 END
    FROM counters c WHERE c.id = s.id
  ) WHERE id = ANY(ARRAY(SELECT id FROM counters)) RETURNING id, limit_nanos - used_nanos AS left_nanos
)"""
_RESULTS = "SELECT id::text, credits_nanos FROM done"
_RESULTS_WITH_LEFT = """SELECT id::text, credits_nanos, (
  SELECT min(left_nanos) FROM counted WHERE counted.id = ANY(budgets)
) FROM done"""
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


_MEMO = """CASE WHEN budgets = '{}' THEN memo
    ELSE (memo::jsonb || jsonb_build_object('budgets', budgets))::json END"""
"""The memo of a step that is done, with the budgets that count it."""


def _hold(*, has_budgets: bool) -> str:
    """Return the statement that takes the amounts of all steps from accounts that have enough; these steps are `done`.

    Without budgets, accounts with shared ones are left out. With budgets, the steps that one of theirs does not cover.
    """
    steps, condition, counters, counted = "asked", "AND NOT a.has_budgets", "", ""
    locked = _LOCKED.format("asked", "")
    if has_budgets:
        steps, condition = "covered", ""
        counters, counted = _COUNTERS.format(amount="nanos"), _COUNTED.format(amount="nanos")
        locked = f"""{_LOCKED.format("asked", _COUNTERS_FIRST)}, covered AS (
  SELECT * FROM asked WHERE budgets <@ ARRAY(SELECT id FROM counters WHERE {_COVERS})
)"""  # noqa: S608 - constants
    return f"""
WITH asked AS MATERIALIZED (
  SELECT t.*{_BUDGETS_OF_CALL if has_budgets else ""} FROM {_STEPS}
    AS t(id uuid, account_id uuid, api_key_id uuid, memo json, nanos bigint, lease_until timestamptz)
  WHERE {_KEY_IS_VALID}
), {counters}{locked}, wanted AS (
  SELECT account_id, sum(nanos)::bigint AS nanos FROM {steps} GROUP BY 1
), changed AS (
  UPDATE credit_accounts a SET available_nanos = a.available_nanos - w.nanos, held_nanos = a.held_nanos + w.nanos
  FROM locked l JOIN wanted w ON w.account_id = l.id
  WHERE a.id = l.id AND a.available_nanos > 0 AND a.available_nanos >= w.nanos {condition} RETURNING {_CREDITS}
), done AS (SELECT * FROM {steps} JOIN changed USING (account_id)
){counted}, placed AS (
  INSERT INTO credit_holds (id, account_id, amount_nanos, unpaid_nanos, memo, created_at, state, settled_nanos,
    lease_until)
  SELECT id, account_id, nanos, 0, {_MEMO if has_budgets else "memo"}, $2, 'held', 0, lease_until FROM done
), posted AS (
  INSERT INTO credit_postings (account_id, amount_nanos, created_at, reference, kind, debit, credit)
  SELECT account_id, nanos, $2, id || ':hold', 'hold', 'available', 'held' FROM done WHERE nanos > 0
)
{_RESULTS_WITH_LEFT if has_budgets else _RESULTS}
"""  # noqa: S608 - constants


# The array of ids in the memo. Read without a lock: they never change. ONLY is for `lock_order`, as above.
_BUDGETS_OF_HOLD = """, (
    SELECT translate(memo->>'budgets', '[]" ', '{}')::uuid[] FROM ONLY credit_holds h WHERE h.id = t.id
  ) AS budgets"""
# What was held in an earlier window is not returned.
_NOT_SPENT = "CASE WHEN c.period = 'total' OR c.start <= held_at THEN cost - amount_nanos ELSE 0 END"


def _settlement(*, has_budgets: bool) -> str:
    budgets = ", t.budgets" if has_budgets else ""
    covered = (
        "(budgets IS NULL OR budgets <@ ARRAY(SELECT id FROM counters))" if has_budgets else "memo->'budgets' IS NULL"
    )
    return f"""
WITH asked AS MATERIALIZED (
  SELECT DISTINCT ON (t.id) t.*{_BUDGETS_OF_HOLD if has_budgets else ""} FROM {_STEPS}
    AS t(id uuid, account_id uuid, cost bigint, tokens_in bigint, tokens_out bigint, cached_tokens bigint,
      reasoning_tokens bigint, price_version text)
  ORDER BY t.id
), {_COUNTERS.format(amount="cost") if has_budgets else ""}found AS MATERIALIZED (
  SELECT h.*, t.cost, t.tokens_in, t.tokens_out, t.cached_tokens, t.reasoning_tokens, t.price_version{budgets}
  FROM asked t CROSS JOIN LATERAL (
    SELECT id, account_id, amount_nanos, state, memo, created_at AS held_at FROM credit_holds
    WHERE id = t.id {_COUNTERS_FIRST if has_budgets else ""}FOR NO KEY UPDATE
  ) h
), open AS (SELECT * FROM found WHERE state = 'held' AND amount_nanos >= cost AND {covered}
), wanted AS MATERIALIZED (
  SELECT account_id, sum(amount_nanos)::bigint AS nanos, sum(cost)::bigint AS cost FROM open GROUP BY 1
), {_LOCKED.format("wanted", "")}, closed AS (
  UPDATE credit_holds h SET state = 'settled', settled_nanos = o.cost
  FROM open o JOIN locked l ON l.id = o.account_id WHERE h.id = o.id
  RETURNING o.*
), changed AS (
  UPDATE credit_accounts a SET available_nanos = a.available_nanos + w.nanos - w.cost,
    held_nanos = a.held_nanos - w.nanos, spent_nanos = a.spent_nanos + w.cost
  FROM locked l JOIN wanted w ON w.account_id = l.id WHERE a.id = l.id RETURNING {_CREDITS}
), done AS (SELECT * FROM closed JOIN changed USING (account_id)
){_COUNTED.format(amount=_NOT_SPENT) if has_budgets else ""}, posted AS (
  INSERT INTO credit_postings (reference, kind, account_id, debit, credit, amount_nanos, created_at)
  SELECT id || ':release', 'release', account_id, 'held', 'available', amount_nanos - cost, $2
    FROM done WHERE amount_nanos > cost
  UNION ALL SELECT id || ':settle', 'settle', account_id, 'held', 'revenue', cost, $2 FROM done WHERE cost > 0
), {_LOG_AND_SUMS}
{_RESULTS_WITH_LEFT if has_budgets else _RESULTS}
"""  # noqa: S608 - constants


HOLD = _hold(has_budgets=False), _hold(has_budgets=True)
SETTLEMENT = _settlement(has_budgets=False), _settlement(has_budgets=True)


# For SQLite: the parameters have their names, and the rows of a call are made from that of its hold.
_TAKE = """UPDATE credit_accounts SET available_nanos = available_nanos - :nanos, held_nanos = held_nanos + :nanos
  WHERE id = :account_id AND available_nanos > 0 AND available_nanos >= :nanos AND NOT has_budgets AND EXISTS (
    SELECT 1 FROM api_keys WHERE id = :api_key_id AND account_id = :account_id AND revoked_at IS NULL
      AND (expires_at IS NULL OR expires_at > :now)
  ) RETURNING available_nanos + held_nanos"""
_SPEND = """UPDATE credit_accounts SET available_nanos = available_nanos + h.amount_nanos - :cost,
  held_nanos = held_nanos - h.amount_nanos, spent_nanos = spent_nanos + :cost
  FROM (SELECT account_id, amount_nanos FROM credit_holds WHERE id = :id AND state = 'held' AND amount_nanos >= :cost
    AND json_extract(memo, '$.budgets') IS NULL) h
  WHERE id = h.account_id RETURNING available_nanos + held_nanos"""
_PLACE = """INSERT INTO credit_holds (id, account_id, amount_nanos, state, settled_nanos, unpaid_nanos, memo,
  lease_until, created_at) VALUES (:id, :account_id, :nanos, 'held', 0, 0, :memo, :lease_until, :now)"""
_CLOSE = "UPDATE credit_holds SET state = 'settled', settled_nanos = :cost WHERE id = :id"
_POST = """INSERT INTO credit_postings (reference, kind, account_id, debit, credit, amount_nanos, created_at)
  SELECT :reference || ':{0}', '{0}', account_id, '{1}', '{2}', {amount}, :now FROM credit_holds
  WHERE id = :id AND {amount} > 0"""
_LOG = """INSERT INTO usage_logs (id, account_id, api_key_id, provider, model, tokens_in, tokens_out, cached_tokens,
  reasoning_tokens, cost_nanos, price_version, created_at)
  SELECT id, account_id, replace(json_extract(memo, '$.api_key_id'), '-', ''), json_extract(memo, '$.provider'),
    json_extract(memo, '$.model'), :tokens_in, :tokens_out, :cached_tokens, :reasoning_tokens, :cost, :price_version,
    :now FROM credit_holds WHERE id = :id"""
_SUM = """INSERT INTO usage_by_provider (account_id, provider, calls, cost_nanos, tokens_in, tokens_out)
  SELECT account_id, json_extract(memo, '$.provider'), 1, :cost, :tokens_in, :tokens_out
  FROM credit_holds WHERE id = :id
  ON CONFLICT (account_id, provider) DO UPDATE SET calls = calls + 1, cost_nanos = cost_nanos + excluded.cost_nanos,
    tokens_in = tokens_in + excluded.tokens_in, tokens_out = tokens_out + excluded.tokens_out"""
_IDS = frozenset({"id", "account_id", "api_key_id"})
SQLITE_HOLD = (_TAKE, _PLACE, _POST.format("hold", "available", "held", amount="amount_nanos"))
SQLITE_SETTLEMENT = (
    _SPEND,
    _CLOSE,
    _POST.format("release", "held", "available", amount="amount_nanos - settled_nanos"),
    _POST.format("settle", "held", "revenue", amount="settled_nanos"),
    _LOG,
    _SUM,
)


def run_on_sqlite(
    connection: sqlite3.Connection, statements: Sequence[str], step: Mapping[str, Any], now: datetime
) -> int | None:
    """Run a step; return the account's credits. None: the first statement finds another than the usual case."""
    values = {name: _stored(value) for name, value in {**step, "reference": step["id"], "now": now}.items()}
    # As `app.db.tables.ID` stores them.
    values |= {name: step[name].replace("-", "") for name in _IDS & step.keys()}
    first, *others = statements
    found = connection.execute(first, values).fetchall()
    for statement in others if found else ():
        connection.execute(statement, values)
    return found[0][0] if found else None


def _stored(value: Any) -> Any:
    """Return a value as `UtcDateTime` and `JSON` store it on SQLite."""
    if isinstance(value, datetime):
        return value.astimezone(UTC).replace(tzinfo=None).isoformat(" ", "microseconds")
    return json.dumps(value) if isinstance(value, Mapping) else value
