"""Column types whose values survive both databases exactly: instants in UTC, token units of up to 256 bits."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import DateTime, Numeric, String, Uuid
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator, TypeEngine

ID = Uuid(as_uuid=False)
"""A UUID, as text in Python: native on PostgreSQL, 32 characters on SQLite."""


class UtcDateTime(TypeDecorator[datetime]):
    """An aware instant; SQLite, which has no time zones, holds it as naive UTC."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Refuse naive instants: they would mean a different time on every machine."""
        if value is None:
            return None
        if value.tzinfo is None:
            msg = "an instant needs a time zone"
            raise ValueError(msg)
        value = value.astimezone(UTC)
        return value.replace(tzinfo=None) if dialect.name == "sqlite" else value

    def process_result_value(self, value: datetime | None, _dialect: Dialect) -> datetime | None:
        """Return the instant in UTC."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class Units(TypeDecorator[int]):
    """A token amount in base units: NUMERIC(78, 0) on PostgreSQL, text on SQLite, whose NUMERIC loses digits."""

    impl = Numeric(78, 0)
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """Choose the storage that keeps every digit."""
        return dialect.type_descriptor(String(80) if dialect.name == "sqlite" else Numeric(78, 0))

    def process_bind_param(self, value: int | None, dialect: Dialect) -> Any:
        """Write the integer."""
        if value is None:
            return None
        return str(value) if dialect.name == "sqlite" else value

    def process_result_value(self, value: Any, _dialect: Dialect) -> int | None:
        """Read the integer back."""
        return None if value is None else int(value)
