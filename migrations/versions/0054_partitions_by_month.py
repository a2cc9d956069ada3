"""The usage log and the ledger by month, on PostgreSQL; the sums of months that were dropped.

Revision: 0054; after: 0053
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0054"
down_revision = "0053"
branch_labels = None
depends_on = None

_KEYS = {"usage_logs": "id", "credit_postings": "reference"}
# Ids of version 7 from June 2024 to September 2039. References that begin otherwise begin with a word.
_LOW, _HIGH = "01900000-0000-0000-0000-000000000000", "02000000-0000-0000-0000-000000000000"
_ID_CHARS = 36
_AMOUNTS = ("calls", "cost_nanos", "tokens_in", "tokens_out")
_INDEXES = {
    "usage_logs": (
        "ADD CONSTRAINT usage_logs_pkey PRIMARY KEY (id)",
        "CREATE INDEX ix_usage_logs_history ON usage_logs (account_id, created_at DESC, id DESC)",
    ),
    # The number is no key any more: a unique key of a partitioned table contains what it is partitioned by.
    "credit_postings": (
        "ADD CONSTRAINT credit_postings_reference_key UNIQUE (reference)",
        "CREATE INDEX ix_credit_postings_account_id ON credit_postings (account_id)",
    ),
}
_OF_ACCOUNT = """ALTER TABLE credit_postings ADD CONSTRAINT credit_postings_account_id_fkey
    FOREIGN KEY (account_id) REFERENCES credit_accounts (id)"""


def upgrade() -> None:
    """Let the tables of now be the partitions of what belongs to no month; nothing is copied but stray ids."""
    if op.get_context().dialect.name == "postgresql":
        _check_references()
        _lock()
        op.execute("CREATE SCHEMA partitions")
        for table, key in _KEYS.items():
            _partition(table, key)
        op.execute("ALTER TABLE partitions.credit_postings_undated DROP CONSTRAINT ck_credit_postings_undated")
        op.execute("ALTER SEQUENCE partitions.credit_postings_id_seq OWNED BY NONE")
        op.execute("ALTER SEQUENCE partitions.credit_postings_id_seq SET SCHEMA public")
        op.execute("ALTER SEQUENCE credit_postings_id_seq OWNED BY credit_postings.id")
    op.create_table(
        "usage_by_month",
        sa.Column("account_id", sa.Uuid(as_uuid=False), primary_key=True),
        sa.Column("provider", sa.String(100), primary_key=True),
        sa.Column("first_day", sa.Date(), primary_key=True),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in _AMOUNTS),
    )


def downgrade() -> None:
    """Copy all rows into plain tables."""
    sums = ", ".join(f"carried_{name} = u.carried_{name} + m.{name}" for name in _AMOUNTS)
    months = ", ".join(f"sum({name}) AS {name}" for name in _AMOUNTS)
    op.execute(
        f"UPDATE usage_by_provider AS u SET {sums} FROM (SELECT account_id, provider, {months} FROM usage_by_month"
        " GROUP BY account_id, provider) AS m WHERE u.account_id = m.account_id AND u.provider = m.provider"
    )
    op.drop_table("usage_by_month")
    if op.get_context().dialect.name == "postgresql":
        _lock()
        op.execute("ALTER SEQUENCE credit_postings_id_seq OWNED BY NONE")
        op.execute("CREATE SCHEMA partitioned")
        for table in _KEYS:
            op.execute(f"ALTER TABLE {table} SET SCHEMA partitioned")
            op.execute(f"CREATE TABLE {table} (LIKE partitioned.{table} INCLUDING DEFAULTS INCLUDING CONSTRAINTS)")
            op.execute(f"INSERT INTO {table} SELECT * FROM partitioned.{table}")
            op.execute(f"DROP TABLE partitioned.{table}")
            _add_indexes(table)
        op.execute("DROP SCHEMA partitioned")
        op.execute("ALTER TABLE credit_postings ADD CONSTRAINT credit_postings_pkey PRIMARY KEY (id)")
        op.execute("ALTER SEQUENCE credit_postings_id_seq OWNED BY credit_postings.id")
        op.execute("DROP SCHEMA partitions")
    # Those of calls began with a word before.
    former = f"substr(reference, {_ID_CHARS + 2}) || ':' || substr(reference, 1, {_ID_CHARS})"
    op.execute(f"UPDATE credit_postings SET reference = {former} WHERE substr(reference, {_ID_CHARS + 1}, 1) = ':'")


def _check_references() -> None:
    """Prove that no reference belongs to a month, while others write: the partition is attached without a scan."""
    # Alembic's own block needs a connection of the pool, which that of migrations is not.
    connection: Any = op.get_bind().connection.dbapi_connection
    connection.commit()
    connection.autocommit = True
    table, name = "ALTER TABLE credit_postings", "CONSTRAINT ck_credit_postings_undated"
    try:
        op.execute(f"{table} DROP CONSTRAINT IF EXISTS ck_credit_postings_undated")
        op.execute(f"{table} ADD {name} CHECK (reference < '{_LOW}' OR reference >= '{_HIGH}') NOT VALID")
        op.execute(f"{table} VALIDATE {name}")
    finally:
        connection.autocommit = False


def _lock() -> None:
    op.execute("SET LOCAL statement_timeout = '2s'")
    op.execute("LOCK TABLE credit_accounts, credit_postings, usage_logs IN ACCESS EXCLUSIVE MODE")
    op.execute("SET LOCAL statement_timeout = 0")


def _partition(table: str, key: str) -> None:
    undated, by_month, other = (f"partitions.{table}_{name}" for name in ("undated", "by_month", "other"))
    op.execute(f"ALTER TABLE {table} SET SCHEMA partitions")
    op.execute(f"ALTER TABLE partitions.{table} RENAME TO {table}_undated")
    columns = f"LIKE {undated} INCLUDING DEFAULTS INCLUDING CONSTRAINTS"
    op.execute(f"CREATE TABLE {table} ({columns}) PARTITION BY RANGE ({key})")
    op.execute(f"ALTER TABLE {table} DROP CONSTRAINT IF EXISTS ck_credit_postings_undated")
    _add_indexes(table)
    bounds = f"FOR VALUES FROM ('{_LOW}') TO ('{_HIGH}')"
    op.execute(f"CREATE TABLE {by_month} PARTITION OF {table} {bounds} PARTITION BY RANGE ({key})")
    op.execute(f"CREATE TABLE {other} PARTITION OF {by_month} DEFAULT")
    strays = f"DELETE FROM {undated} WHERE {key} >= '{_LOW}' AND {key} < '{_HIGH}' RETURNING *"
    op.execute(f"WITH moved AS ({strays}) INSERT INTO {other} SELECT * FROM moved")
    op.execute(f"ALTER TABLE {table} ATTACH PARTITION {undated} DEFAULT")


def _add_indexes(table: str) -> None:
    key, index = _INDEXES[table]
    op.execute(f"ALTER TABLE {table} {key}")
    op.execute(index)
    if table == "credit_postings":
        op.execute(_OF_ACCOUNT)
