"""Column types that are exact on both databases: instants in UTC, token units of up to 256 bits."""

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import BigInteger, DateTime, Index, Integer, Numeric, String, Uuid, text
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator, TypeEngine

ID = Uuid(as_uuid=False)
"""A UUID, as text in Python: native on PostgreSQL, 32 characters on SQLite."""

SERIAL = BigInteger().with_variant(Integer, "sqlite")
"""A number that the database assigns: only an INTEGER does so on SQLite."""


def partial_index(name: str, *columns: Any, where: str, unique: bool = False) -> Index:
    condition = text(where)
    return Index(name, *columns, unique=unique, postgresql_where=condition, sqlite_where=condition)


class UtcDateTime(TypeDecorator[datetime]):
    """An aware instant; SQLite, which has no time zones, stores it as naive UTC."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Convert to UTC. Raises: ValueError for a naive instant, which depends on the machine's time zone."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError("an instant needs a time zone")
        value = value.astimezone(UTC)
        return value.replace(tzinfo=None) if dialect.name == "sqlite" else value

    def process_result_value(self, value: datetime | None, _dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class Units(TypeDecorator[int]):
    """A token amount in base units: NUMERIC(78, 0) on PostgreSQL, text on SQLite, where NUMERIC loses digits."""

    impl = Numeric(78, 0)
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        return dialect.type_descriptor(String(80) if dialect.name == "sqlite" else Numeric(78, 0))

    def process_bind_param(self, value: int | None, dialect: Dialect) -> Any:
        return str(value) if value is not None and dialect.name == "sqlite" else value

    def process_result_value(self, value: Any, _dialect: Dialect) -> int | None:
        return None if value is None else int(value)
