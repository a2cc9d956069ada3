"""Alembic's environment: the application's own engine and metadata, one transaction per migration."""

from __future__ import annotations

import time

from alembic import context
from flask import current_app
from sqlalchemy import Table
from sqlalchemy.exc import OperationalError

config = context.config
database = current_app.extensions["migrate"].db


# A change of a table waits for its readers, and all later queries wait behind it. It waits for at most this long, then
# ends and is retried. Its work after it has the lock is not limited.
_LOCK_SECONDS = 2
_SECONDS_BETWEEN_TRIES = 3
_TRIES = 20
# Lock timeout; statement timeout (a migration may lock several tables by one statement with a time limit); deadlock.
_RETRYABLE = frozenset({"55P03", "57014", "40P01"})

# Migrations use SQLAlchemy's types, because the application's may change.
_PLAIN_TYPES = {
    "UtcDateTime": "sa.DateTime(timezone=True)",
    "Units": "sa.Numeric(78, 0).with_variant(sa.String(80), 'sqlite')",
}


def _render(type_: str, item: object, _context: object) -> str | bool:
    return _PLAIN_TYPES.get(type(item).__name__, False) if type_ == "type" else False


def run_offline() -> None:
    """Write the SQL without executing it."""
    url = database.engine.url.render_as_string(hide_password=False)
    context.configure(url=url, target_metadata=database.metadata, literal_binds=True)
    with context.begin_transaction():
        context.run_migrations()


def run_online() -> None:
    """Run the migrations on the application's database."""
    for tries_left in reversed(range(_TRIES)):
        try:
            _run_once()
        except OperationalError as error:
            if getattr(error.orig, "sqlstate", None) not in _RETRYABLE or not tries_left:
                raise
            time.sleep(_SECONDS_BETWEEN_TRIES)
        else:
            return


def _run_once() -> None:
    """Run the outstanding migrations, each in its own transaction; a retry continues with the one that failed."""
    arguments = current_app.extensions["migrate"].configure_args
    arguments.setdefault("process_revision_directives", _skip_empty)
    with database.engine.connect() as connection:
        if connection.dialect.name == "postgresql":
            # The settings below must not reach a pooled connection.
            connection.detach()
            connection.exec_driver_sql(f"SET lock_timeout = '{_LOCK_SECONDS}s'")
            connection.exec_driver_sql("SET statement_timeout = 0")
            connection.commit()
        context.configure(
            connection=connection,
            target_metadata=database.metadata,
            transaction_per_migration=True,
            include_object=_is_ours,
            render_item=_render,
            **arguments,
        )
        with context.begin_transaction():
            context.run_migrations()


def _skip_empty(_context: object, _revision: object, directives: list[object]) -> None:
    if getattr(config.cmd_opts, "autogenerate", False) and directives[0].upgrade_ops.is_empty():  # type: ignore[attr-defined]
        directives[:] = []


def _is_ours(item: object, name: str | None, type_: str, reflected: bool, compare_to: object) -> bool:  # noqa: FBT001
    if name is not None and name.startswith("search_trigrams"):
        return False  # a search index that differs by database; no model describes it
    return not (type_ == "table" and reflected and compare_to is None and isinstance(item, Table))


if context.is_offline_mode():
    run_offline()
else:
    run_online()
