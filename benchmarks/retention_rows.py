"""Years of calls as the service leaves them behind, made by the database itself: on PostgreSQL and on SQLite.

Every call has a hold, three postings and a line of the log: five rows. Ids are scattered as random ones are.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sqlalchemy import Connection, text

ACCOUNTS = 1000
DAYS = 800
_BATCH = 200_000
_ACCOUNT_OFFSET = 10**9
_GRANTED = 10**15


@dataclass(frozen=True, slots=True, order=True)
class Amounts:
    """How many of what there shall be."""

    calls: int
    spending_holds: int
    queries: int
    answers: int

    @property
    def rows(self) -> int:
        """How many rows that is: five for a call, two for a query."""
        return 5 * self.calls + self.spending_holds + 2 * self.queries + self.answers


@dataclass(frozen=True, slots=True)
class _Dialect:
    """What the two databases write in different words."""

    is_postgresql: bool

    @property
    def head(self) -> str:
        return "" if self.is_postgresql else (
            "WITH RECURSIVE s(n) AS (SELECT :low UNION ALL SELECT n + 1 FROM s WHERE n < :high) "
        )  # fmt: skip

    @property
    def source(self) -> str:
        return (
            "generate_series(CAST(:low AS bigint), CAST(:high AS bigint)) s(n)" if self.is_postgresql else "s"
        )

    def id_of(self, number: str) -> str:
        """Return the id of a number, as the column has it."""
        if self.is_postgresql:
            scattered = f"lpad(to_hex((({number}) * 2654435761) & 4294967295), 8, '0')"
            return f"CAST({scattered} || lpad(to_hex({number}), 24, '0') AS uuid)"
        return f"printf('%08x%024x', (({number}) * 2654435761) & 4294967295, {number})"

    def text_of(self, number: str) -> str:
        """Return the id of a number, as texts have it."""
        made = self.id_of(number)
        if self.is_postgresql:
            return f"CAST({made} AS text)"
        cuts = ((1, 8), (9, 4), (13, 4), (17, 4), (21, 12))
        return " || '-' || ".join(f"substr({made}, {start}, {length})" for start, length in cuts)

    def at(self, part: str) -> str:
        """Return the instant at which a part of the time has passed."""
        if self.is_postgresql:
            return f"to_timestamp(:start + ({part}) * :span)"
        return f"strftime('%Y-%m-%d %H:%M:%S', CAST(:start + ({part}) * :span AS INTEGER), 'unixepoch') || '.000000'"

    def day(self, part: str) -> str:
        """Return the day of such an instant."""
        return f"CAST({self.at(part)} AS date)" if self.is_postgresql else f"substr({self.at(part)}, 1, 10)"


@dataclass(frozen=True, slots=True)
class _Filler:
    """A connection that makes rows of numbers."""

    connection: Connection
    dialect: _Dialect
    common: Mapping[str, object]

    def run(self, low: int, high: int, statement: str) -> None:
        """Run a statement for the numbers from low to high, and commit it."""
        self.connection.execute(
            text(self.dialect.head + statement), {**self.common, "low": low, "high": high}
        )
        self.connection.commit()


def fill(connection: Connection, amounts: Amounts, *, first_account: str) -> None:
    """Make all rows. The first of the accounts exists already, so that somebody is charged on it meanwhile."""
    dialect = _Dialect(connection.dialect.name == "postgresql")
    account = _account(dialect)
    if not dialect.is_postgresql:
        connection.exec_driver_sql("PRAGMA cache_size = -1000000")
        first_account = first_account.replace("-", "")
    span = DAYS * 86_400
    common = {"start": int(time.time()) - span, "span": span, "first": first_account, "granted": _GRANTED}
    filler = _Filler(connection, dialect, common)
    # The first account has a grant and no calls yet, and stays as it was made.
    filler.run(
        1,
        ACCOUNTS - 1,
        f"""
        INSERT INTO credit_accounts (id, available_nanos, held_nanos, granted_nanos, spent_nanos, created_at)
        SELECT {dialect.id_of(f"n + {_ACCOUNT_OFFSET}")}, :granted, 0, :granted, 0, {dialect.at("0")} FROM {dialect.source}""",
    )
    filler.run(
        1,
        ACCOUNTS - 1,
        f"""
        INSERT INTO credit_postings (reference, kind, account_id, debit, credit, amount_nanos, created_at)
        SELECT 'grant:bench:' || n, 'grant', {dialect.id_of(f"n + {_ACCOUNT_OFFSET}")}, 'issuance', 'available', :granted,
            {dialect.at("0")} FROM {dialect.source}""",
    )
    _calls(filler, amounts.calls, account)
    _sums(connection, dialect)
    _wallets(filler)
    wallet = dialect.id_of(f"n % {ACCOUNTS} + {_ACCOUNT_OFFSET}")
    part = f"n * 0.875 / {amounts.spending_holds}"  # none in a window that is still counted
    filler.run(
        1,
        amounts.spending_holds,
        f"""
        INSERT INTO spending_holds (reference, wallet_id, amount_nanos, state, made_on, created_at)
        SELECT {dialect.text_of("n")}, {wallet}, 1000000, 'spent', {dialect.day(part)}, {dialect.at(part)} FROM {dialect.source}""",
    )
    part = f"n * 1.0 / {amounts.queries}"
    filler.run(
        1,
        amounts.queries,
        f"""
        INSERT INTO transactions (id, wallet_id, type, chain, to_address, amount_units, currency, status, cost_nanos,
            created_at, confirmed_at, checks)
        SELECT {dialect.id_of("n")}, {wallet}, 'trading_query', 'perpdex', '', '0', 'USDC', 'confirmed', 0, {dialect.at(part)},
            {dialect.at(part)}, 0 FROM {dialect.source}""".replace(
            "'0', 'USDC'", "0, 'USDC'" if dialect.is_postgresql else "'0', 'USDC'"
        ),
    )
    filler.run(
        1,
        amounts.queries,
        f"""
        INSERT INTO transaction_events (transaction_id, status, at) SELECT {dialect.id_of("n")}, 'confirmed', {dialect.at(part)}
        FROM {dialect.source}""",
    )
    connection.execute(
        text(
            "UPDATE wallets SET transaction_count = (SELECT count(*) FROM transactions t WHERE t.wallet_id = wallets.id)"
        )
    )
    filler.run(
        1,
        amounts.answers,
        f"""
        INSERT INTO idempotency_keys (id, owner_id, method, path, key, body_hmac, holder, lease_until, created_at)
        SELECT {dialect.id_of("n")}, {wallet}, 'POST', '/v1/wallets', 'key-' || n, '{"0" * 64}', {dialect.id_of("n")}, {dialect.at("0.99")},
            {dialect.at("0.99")} FROM {dialect.source}""",
    )
    connection.commit()


def _account(dialect: _Dialect) -> str:
    number = f"n % {ACCOUNTS}"
    first = "CAST(:first AS uuid)" if dialect.is_postgresql else ":first"
    return f"CASE WHEN {number} = 0 THEN {first} ELSE {dialect.id_of(f'{number} + {_ACCOUNT_OFFSET}')} END"


def _calls(filler: _Filler, calls: int, account: str) -> None:
    dialect = filler.dialect
    at, cost = dialect.at(f"n * 1.0 / {calls}"), "1000 + n % 997"
    hold, reference = dialect.id_of("n"), dialect.text_of("n")
    for low, high in _batches(calls):
        filler.run(
            low,
            high,
            f"""
            INSERT INTO credit_holds (id, account_id, amount_nanos, state, settled_nanos, unpaid_nanos, memo, lease_until, created_at)
            SELECT {hold}, {account}, 6000, 'settled', {cost}, 0, '{{}}', {at}, {at} FROM {dialect.source}""",
        )
        for kind, debit, credit, amount in (
            ("hold", "available", "held", "6000"), ("settle", "held", "revenue", cost),
            ("release", "held", "available", f"6000 - ({cost})"),
        ):  # fmt: skip
            filler.run(
                low,
                high,
                f"""
                INSERT INTO credit_postings (reference, kind, account_id, debit, credit, amount_nanos, created_at)
                SELECT '{kind}:' || {reference}, '{kind}', {account}, '{debit}', '{credit}', {amount}, {at} FROM {dialect.source}""",
            )
        filler.run(
            low,
            high,
            f"""
            INSERT INTO usage_logs (id, account_id, api_key_id, provider, model, tokens_in, tokens_out, cost_nanos, created_at)
            SELECT {hold}, {account}, {account}, CASE WHEN n % 2 = 0 THEN 'openai' ELSE 'brave' END, 'gpt-5-mini', n % 1000, n % 500,
                {cost}, {at} FROM {dialect.source}""",
        )


def _sums(connection: Connection, dialect: _Dialect) -> None:
    connection.execute(
        text("""
        INSERT INTO usage_by_provider (account_id, provider, calls, cost_nanos, tokens_in, tokens_out)
        SELECT account_id, provider, count(*), sum(cost_nanos), sum(tokens_in), sum(tokens_out) FROM usage_logs
        GROUP BY account_id, provider""")
    )
    spent = (
        "(SELECT coalesce(sum(settled_nanos), 0) FROM credit_holds h WHERE h.account_id = credit_accounts.id)"
    )
    if dialect.is_postgresql:
        connection.execute(
            text("""
            UPDATE credit_accounts SET spent_nanos = s.spent, available_nanos = granted_nanos - s.spent
            FROM (SELECT account_id, sum(settled_nanos) AS spent FROM credit_holds GROUP BY account_id) s
            WHERE s.account_id = credit_accounts.id""")
        )
        connection.commit()
        return
    connection.execute(text("CREATE INDEX bench_holds ON credit_holds (account_id, settled_nanos)"))
    connection.execute(
        text(f"UPDATE credit_accounts SET spent_nanos = {spent}, available_nanos = granted_nanos - {spent}")
    )
    connection.execute(text("DROP INDEX bench_holds"))
    connection.commit()


def _wallets(filler: _Filler) -> None:
    dialect = filler.dialect
    wallet = dialect.id_of(f"n + {_ACCOUNT_OFFSET}")
    today = dialect.day("1")
    filler.run(
        0,
        ACCOUNTS - 1,
        f"""
        INSERT INTO wallets (id, agent_id, name, evm_address, solana_address, transaction_count, created_at)
        SELECT {wallet}, {wallet}, 'bench', 'evm-' || n, 'sol-' || n, 0, {dialect.at("0")} FROM {dialect.source}""",
    )
    filler.run(
        0,
        ACCOUNTS - 1,
        f"""
        INSERT INTO spending_accounts (wallet_id, agent_id, lock_version, counted_on, day_nanos, week_nanos, month_nanos)
        SELECT {wallet}, {wallet}, 0, {today}, 0, 0, 0 FROM {dialect.source}""",
    )


def _batches(count: int) -> Iterator[tuple[int, int]]:
    for low in range(1, count + 1, _BATCH):
        yield low, min(low + _BATCH - 1, count)
