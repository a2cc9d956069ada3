"""Authenticated rows: what gives power in the database carries a MAC that only this service can compute.

Who can write to the database, and has no encryption key, can neither add nor change a row of these tables unnoticed:
a row is verified where it is read before money moves or access is given, and by the hourly audit. The MAC covers the
network, the table and every column but those of `not_authenticated`, which give no power.

A row without a valid MAC is accepted only while the permit of an upgrade is in force: it is sealed and has an end, so
that it can be deleted, but not forged or extended (docs/decisions/0144).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import partial
from operator import attrgetter
from typing import Any, ClassVar

import structlog
from sqlalchemy import ColumnElement, String, Text, bindparam, event, select, tuple_, update
from sqlalchemy.orm import Mapped, Session, mapped_column
from sqlalchemy.orm.attributes import set_committed_value
from sqlalchemy.orm.util import identity_key

from app.core import clock
from app.db.state_machine import StateMachine, StateT
from app.db.tables import rows_after, table_of
from app.db.unit_of_work import unit_of_work
from app.errors import InternalError
from app.extensions import Base, Model
from app.ports.errors import Rejected
from app.ports.vault import SecretLocation
from app.state import AppState, app_state

_log = structlog.get_logger(__name__)
_PERMIT_ID = 1
_PERMIT = SecretLocation("unsealed_row_permits", "sealed", str(_PERMIT_ID))
_PAGE = 500
_MAX_REMEMBERED = 20_000
_seals: dict[Any, RowSeal] = {}


class RowChanged(InternalError):
    """A row that gives power was not written by this service: nothing is done with it."""

    def __init__(self, table: str = "a table", row_id: str = "") -> None:
        super().__init__(
            f"A record of this service ({table}) was changed outside of it, so nothing was done with it and nothing"
            " was paid. Report this to the operator of the service: `flask --app wsgi doctor` names the record."
        )
        self.table, self.row_id = table, row_id


class UnsealedRowPermit(Model):
    """Until when rows without a valid MAC are accepted, after an upgrade from a version that wrote none: one row."""

    __tablename__ = "unsealed_row_permits"

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    sealed: Mapped[str] = mapped_column(Text)


class VerifiedRows(dict[str, tuple[Any, ...]]):
    """The values of this process's verified rows by their MAC: comparing them is faster than computing it."""


class Authenticated:
    """A model with authenticated rows. `PreparedInsert` and the ORM's inserts stamp new ones; see `changing`."""

    not_authenticated: ClassVar[frozenset[str]]
    mac: Mapped[str | None] = mapped_column(String(80), sort_order=1000)

    @classmethod
    def stamp(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        return {**values, "mac": seal_of(cls).mac_of(values)}


class RowSeal:
    """The authenticated columns of a model; `labels` rename those that a joined query also has of another table."""

    def __init__(self, model: Any, **labels: str) -> None:
        self.model, self.table = model, table_of(model)
        names = [each.key for each in self.table.columns if each.key not in {*model.not_authenticated, "mac"}]
        labelled = {name: labels.get(name, name) for name in [*names, "mac"]}
        self.columns = [self.table.c[name].label(label) for name, label in labelled.items()]
        """What a query has to select for `verify`."""
        self._read = attrgetter(*labelled.values())
        self._defaults = [(name, getattr(self.table.c[name].default, "arg", None)) for name in names]
        self._keys = [column.key for column in self.table.primary_key.columns]
        self._read_keys = [labels.get(name, name) for name in self._keys]
        unlisted = [self.table.c[name] for name in self._keys if name in model.not_authenticated]
        self.all_columns = [*self.columns, *unlisted]

    def mac_of(self, values: Any) -> str:
        """Return the MAC of a row with these values; absent ones are the defaults."""
        filled = [default if (value := values.get(name)) is None else value for name, default in self._defaults]
        state = app_state()
        return state.ports.vault.authenticate(self._message(state, filled))

    def is_authentic(self, row: Any, *, remembers: bool = True) -> bool:
        """Return whether this service wrote a row that has at least the columns of `columns`."""
        *values, mac = self._read(row)
        if mac is None:
            return False
        state, key = app_state(), (self.table.name, *values)
        memory = state.part(VerifiedRows)
        if remembers and memory.get(mac) == key:
            return True
        is_authentic = state.ports.vault.is_authentic(mac, self._message(state, values))
        if remembers and is_authentic:
            if len(memory) >= _MAX_REMEMBERED:
                memory.clear()
            memory[mac] = key
        return is_authentic

    def accepts(self, session: Session, row: Any, *, is_expected: bool = True) -> bool:
        """Return whether this service wrote a row, and it is the expected one; log it if not."""
        if (is_expected and self.is_authentic(row)) or is_permitted(session):
            return True
        self.refusal(self.id_of(row))
        return False

    def verify(self, session: Session, row: Any, *, is_expected: bool = True) -> None:
        """Check the same. Raises: RowChanged."""
        if not self.accepts(session, row, is_expected=is_expected):
            raise RowChanged(self.table.name, self.id_of(row))

    def refusal(self, row_id: str) -> RowChanged:
        """Log a row that was changed or deleted, and return the error."""
        _log.critical("row_changed", table=self.table.name, row_id=row_id)
        return RowChanged(self.table.name, row_id)

    def id_of(self, row: Any) -> str:
        return "/".join(str(getattr(row, name)) for name in self._read_keys)

    def unauthentic_rows(self, session: Session) -> Iterator[Any]:
        page = self.page_after(session, None)
        while page:
            yield from (row for row in page if not self.is_authentic(row, remembers=False))
            page = self.page_after(session, page[-1]) if len(page) == _PAGE else []

    def is_row(self, row: Any) -> list[ColumnElement[bool]]:
        return [self.table.c[name] == getattr(row, name) for name in self._keys]

    def restamp(self, session: Session, rows: Sequence[Any]) -> None:
        """Store the MACs of locked rows as they are now. Its caller has verified them, or the operator accepts them."""
        if not rows:
            return
        keys = list(self.table.primary_key.columns)
        of_rows = [tuple(getattr(row, name) for name in self._keys) for row in rows]
        are_meant = tuple_(*keys).in_(of_rows) if len(keys) > 1 else keys[0].in_([key for (key,) in of_rows])
        stamped = []
        for now in session.execute(select(*self.all_columns).where(are_meant)).all():
            mac = self.mac_of(now._mapping)  # noqa: SLF001 - the documented way
            key = tuple(getattr(now, name) for name in self._keys)
            stamped.append({"new_mac": mac, **{f"of_{name}": each for name, each in zip(self._keys, key, strict=True)}})
            loaded = session.identity_map.get(identity_key(self.model, key))
            if loaded is not None:
                set_committed_value(loaded, "mac", mac)
        is_row = [each == bindparam(f"of_{each.key}") for each in keys]
        if stamped:
            new_macs = update(self.table).where(*is_row).values(mac=bindparam("new_mac"))
            session.connection().execute(new_macs, stamped)

    def page_after(self, session: Session, last: Any | None, *, batch: int = _PAGE) -> Sequence[Any]:
        return rows_after(session, self.table, self.all_columns, last, limit=batch)

    def _message(self, state: AppState, values: Sequence[Any]) -> bytes:
        return _ENCODER.encode([state.settings.network.value, self.table.name, *values]).encode()


def seal_of(model: Any) -> RowSeal:
    if model not in _seals:
        _seals[model] = RowSeal(model)
    return _seals[model]


def seals() -> list[RowSeal]:
    return [seal_of(mapper.class_) for mapper in Base.registry.mappers if issubclass(mapper.class_, Authenticated)]


@contextmanager
def changing(
    session: Session, model: Any, *conditions: ColumnElement[bool], reduces_power: bool = False
) -> Iterator[None]:
    """Lock and verify the rows that meet conditions, and give them a new MAC when the block has changed them.

    Rows that only meet the conditions afterwards keep theirs. A change that `reduces_power` is not stopped by rows that
    others wrote: they get no MAC, so that they stay refused. Raises: RowChanged.
    """
    seal = seal_of(model)
    rows = _lock(session, seal, conditions)
    if reduces_power:
        rows = [row for row in rows if seal.accepts(session, row)]
    for row in rows:
        seal.verify(session, row)
    yield
    session.flush()
    seal.restamp(session, rows)


def change(
    session: Session, model: Any, *conditions: ColumnElement[bool], reduces_power: bool = False, **values: Any
) -> int:
    """Change the rows that meet conditions, with new MACs; return how many. Raises: RowChanged."""
    with changing(session, model, *conditions, reduces_power=reduces_power):
        done: Any = session.execute(update(model).where(*conditions).values(values))
        return int(done.rowcount)


withdraw = partial(change, reduces_power=True)
"""Changes the rows that meet conditions so that they give less power."""


def is_permitted(session: Session) -> bool:
    """Return whether the permit of an upgrade is in force, so that rows without a valid MAC are accepted."""
    sealed = session.scalar(select(UnsealedRowPermit.sealed).where(UnsealedRowPermit.id == _PERMIT_ID))
    if sealed is None:
        return False
    try:
        until = app_state().ports.vault.open(sealed, _PERMIT).decode()
    except Rejected:
        return False
    return clock.now() < datetime.fromisoformat(until)


def find_changed(session: Session) -> list[str]:
    """Return one sentence for each row that this service did not write, for the audit and `flask doctor`."""
    return [
        f"row {seal.id_of(row)} of {seal.table.name} was not written by this service: one of its authenticated columns"
        " was changed, or the row was added"
        for seal in seals()
        for row in seal.unauthentic_rows(session)
    ]


def restamp_all(*, accepts_changed: bool, batch: int = _PAGE) -> int:
    """Give rows without a MAC of the current encryption key a new one, in short units; return how many.

    `accepts_changed` accepts the rows as they are now. Raises: RowChanged otherwise.
    """
    done, current = 0, f"{app_state().ports.vault.current_key_id}."
    for seal in seals():
        last = None
        while True:
            with unit_of_work() as session:
                page = seal.page_after(session, last, batch=batch)
                if not page:
                    break
                last = page[-1]
                for row in page:
                    if seal.is_authentic(row, remembers=False) and row.mac.startswith(current):
                        continue
                    for locked in _lock(session, seal, seal.is_row(row)):
                        if not accepts_changed:
                            seal.verify(session, locked)
                        seal.restamp(session, [locked])
                        done += 1
    return done


class AuthenticatedStateMachine(StateMachine[StateT]):
    def transition(
        self, session: Session, rows: str | ColumnElement[bool], *args: Any, **changes: Any
    ) -> Sequence[Any]:
        """Move rows as `StateMachine` does, with new MACs. Raises: RowChanged, ValueError."""
        with changing(session, self.column.class_, self._key == rows if isinstance(rows, str) else rows):
            return super().transition(session, rows, *args, **changes)


def _lock(session: Session, seal: RowSeal, conditions: Sequence[ColumnElement[bool]]) -> Sequence[Any]:
    keys = list(seal.table.primary_key.columns)
    columns = seal.all_columns
    if session.get_bind().dialect.name == "postgresql":
        query = select(*columns).where(*conditions).order_by(*keys).with_for_update(key_share=True)
        return session.execute(query).all()
    # SQLite has one lock for the database, which any write takes.
    touch = update(seal.table).where(*conditions).values({keys[0]: keys[0]}).returning(*columns)
    return session.execute(touch).all()


def _plain(value: Any) -> str:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.hex()
    raise TypeError(f"a column of type {type(value).__name__} cannot be authenticated")


_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), default=_plain)


@event.listens_for(Authenticated, "before_insert", propagate=True)
def _stamp(_mapper: Any, _connection: Any, row: Any) -> None:
    row.mac = seal_of(type(row)).mac_of(vars(row))


@dataclass(frozen=True, slots=True)
class SealedColumn:
    """A column of sealed secrets; `name` is `sealed` or ends in `_sealed`, so that key rotation finds it."""

    table: str
    name: str

    def seal(self, secret: bytes | str, row_id: str) -> str:
        plain = secret.encode() if isinstance(secret, str) else secret
        return app_state().ports.vault.seal(plain, SecretLocation(self.table, self.name, row_id))

    def open(self, sealed: str, row_id: str) -> bytes:
        """Open the secret of a row. Raises: Rejected."""
        return app_state().ports.vault.open(sealed, SecretLocation(self.table, self.name, row_id))
