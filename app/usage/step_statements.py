"""The steps of metered calls as statements for PostgreSQL: one for all steps of a kind in a batch.

Each takes a JSON array of `Step.parameters`, and the time. It does what the functions of `app.usage.service` do
in the usual case, and returns the steps that it did, with the account's credits; a step of any other case changes
nothing.

Holds are locked first, then accounts, both in the order of their ids, then sums.

Keys and holds are found by subqueries for each row, which can only use the index of their ids. As joins, the planner,
which expects 100 steps, scans all open holds, and the entries of those that ended since the last VACUUM.
"""

from __future__ import annotations

PARAMETER_TYPES = (114, 1184)
"""The object ids of `json` and `timestamptz`."""
_STEPS = "set_config('lock_timeout', '200ms', true), json_to_recordset($1)"
# The caller's look-up may be some seconds old. Without ONLY, `lock_order` would take the table for locked.
_KEY_IS_VALID = """t.api_key_id = (
    SELECT k.id FROM ONLY api_keys k WHERE k.id = t.api_key_id AND k.account_id = t.account_id
      AND k.revoked_at IS NULL AND (k.expires_at IS NULL OR k.expires_at > $2)
  )"""
_LOCKED = """locked AS MATERIALIZED (
  SELECT id FROM credit_accounts WHERE id IN (SELECT account_id FROM wanted) ORDER BY id FOR NO KEY UPDATE
)"""
_CREDITS = "a.id AS account_id, a.available_nanos + a.held_nanos AS credits_nanos"
_RESULTS = "SELECT id::text, credits_nanos FROM done"
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


def _taken(amount: str, *, into: str) -> str:
    """Take the amounts of all steps asked for from accounts that have enough; these steps are `done`."""
    return f"""wanted AS (SELECT account_id, sum({amount})::bigint AS nanos FROM asked GROUP BY 1
), {_LOCKED}, changed AS (
  UPDATE credit_accounts a SET available_nanos = a.available_nanos - w.nanos, {into} = a.{into} + w.nanos
  FROM locked l JOIN wanted w ON w.account_id = l.id
  WHERE a.id = l.id AND a.available_nanos > 0 AND a.available_nanos >= w.nanos RETURNING {_CREDITS}
), done AS (SELECT * FROM asked JOIN changed USING (account_id)
)"""  # noqa: S608 - constants


HOLD = f"""
WITH asked AS MATERIALIZED (
  SELECT t.* FROM {_STEPS}
    AS t(id uuid, account_id uuid, api_key_id uuid, nanos bigint, memo json, lease_until timestamptz)
  WHERE {_KEY_IS_VALID}
), {_taken("nanos", into="held_nanos")}, placed AS (
  INSERT INTO credit_holds (id, account_id, amount_nanos, state, settled_nanos, unpaid_nanos, memo, lease_until,
    created_at)
  SELECT id, account_id, nanos, 'held', 0, 0, memo, lease_until, $2 FROM done
), posted AS (
  INSERT INTO credit_postings (reference, kind, account_id, debit, credit, amount_nanos, created_at)
  SELECT 'hold:' || id, 'hold', account_id, 'available', 'held', nanos, $2 FROM done WHERE nanos > 0
)
{_RESULTS}
"""  # noqa: S608 - constants

CHARGE = f"""
WITH asked AS MATERIALIZED (
  SELECT t.* FROM {_STEPS}
    AS t(id uuid, account_id uuid, api_key_id uuid, cost bigint, tokens_in bigint, tokens_out bigint,
      price_version text, memo json)
  WHERE {_KEY_IS_VALID}
), {_taken("cost", into="spent_nanos")}, placed AS (
  INSERT INTO credit_holds (id, account_id, amount_nanos, state, settled_nanos, unpaid_nanos, memo, lease_until,
    created_at)
  SELECT id, account_id, cost, 'settled', cost, 0, memo, $2, $2 FROM done
), posted AS (
  INSERT INTO credit_postings (reference, kind, account_id, debit, credit, amount_nanos, created_at)
  SELECT 'charge:' || id, 'settle', account_id, 'available', 'revenue', cost, $2 FROM done WHERE cost > 0
), {_LOG_AND_SUMS}
{_RESULTS}
"""  # noqa: S608 - constants

SETTLEMENT = f"""
WITH asked AS MATERIALIZED (
  SELECT DISTINCT ON (t.id) t.* FROM {_STEPS}
    AS t(id uuid, account_id uuid, cost bigint, tokens_in bigint, tokens_out bigint, price_version text)
  ORDER BY t.id
), found AS MATERIALIZED (
  SELECT h.*, t.cost, t.tokens_in, t.tokens_out, t.price_version
  FROM asked t CROSS JOIN LATERAL (
    SELECT id, account_id, amount_nanos, state, memo FROM credit_holds WHERE id = t.id FOR NO KEY UPDATE
  ) h
), open AS (SELECT * FROM found WHERE state = 'held' AND amount_nanos >= cost
), wanted AS MATERIALIZED (
  SELECT account_id, sum(amount_nanos)::bigint AS nanos, sum(cost)::bigint AS cost FROM open GROUP BY 1
), {_LOCKED}, closed AS (
  UPDATE credit_holds h SET state = 'settled', settled_nanos = o.cost
  FROM open o JOIN locked l ON l.id = o.account_id WHERE h.id = o.id
  RETURNING o.id, o.account_id, o.amount_nanos, o.memo, o.cost, o.tokens_in, o.tokens_out, o.price_version
), changed AS (
  UPDATE credit_accounts a SET available_nanos = a.available_nanos + w.nanos - w.cost,
    held_nanos = a.held_nanos - w.nanos, spent_nanos = a.spent_nanos + w.cost
  FROM locked l JOIN wanted w ON w.account_id = l.id WHERE a.id = l.id RETURNING {_CREDITS}
), done AS (SELECT * FROM closed JOIN changed USING (account_id)
), posted AS (
  INSERT INTO credit_postings (reference, kind, account_id, debit, credit, amount_nanos, created_at)
  SELECT 'release:' || id, 'release', account_id, 'held', 'available', amount_nanos - cost, $2
    FROM done WHERE amount_nanos > cost
  UNION ALL SELECT 'settle:' || id, 'settle', account_id, 'held', 'revenue', cost, $2 FROM done WHERE cost > 0
), {_LOG_AND_SUMS}
{_RESULTS}
"""  # noqa: S608 - constants


def without_waiting(statement: str) -> str:
    """Return a statement that leaves out steps on rows that another unit has locked."""
    return statement.replace("FOR NO KEY UPDATE", "FOR NO KEY UPDATE SKIP LOCKED")
