"""State machines of status columns, which only this module writes."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from enum import StrEnum
from functools import partial
from typing import Any, Generic, TypeVar

from sqlalchemy import ClauseElement, ColumnElement, bindparam, update
from sqlalchemy.orm import InstrumentedAttribute, Session
from sqlalchemy.orm.util import identity_key
from structlog.stdlib import BoundLogger

from app.core import clock
from app.db.prepared import PreparedInsert, PreparedStatement
from app.db.tables import table_of
from app.db.unit_of_work import after_commit
from app.extensions import Base

StateT = TypeVar("StateT", bound=StrEnum)

_NO_PARAMETERS: Mapping[str, Any] = {}


class StateMachine(Generic[StateT]):
    """The writer of one column. A transition is a conditional UPDATE: of concurrent ones, only one has an effect.

    A row begins in one of the states `initial`; `permitted` are the states that may follow each.

    With `event`, each state is stored as a row of that model in the same unit; with `logger`, each transition is logged
    after the commit. `values` are what else a transition to a state changes. `announce` is called in the unit with each
    row that is added or moved, with the columns `announced`, to record an event (`app.events.outbox`).
    """

    def __init__(
        self,
        column: InstrumentedAttribute[str],
        *,
        initial: AbstractSet[StateT],
        permitted: Mapping[StateT, AbstractSet[StateT]],
        event: type[Base] | None = None,
        logger: BoundLogger | None = None,
        values: Callable[[StateT, str | None], Mapping[str, Any]] = lambda _state, _reason: {},
        announce: Callable[[Session, Any, StateT, str | None], None] | None = None,
        announced: Sequence[InstrumentedAttribute[Any]] = (),
    ) -> None:
        self.column, self.initial_states, self.permitted = column, initial, permitted
        self._logger, self._values, self._announce = logger, values, announce
        self._model: type[Base] = column.parent.class_
        table = table_of(self._model)
        [key] = table.primary_key.columns
        self._key: InstrumentedAttribute[str] = getattr(self._model, key.name)
        self._subject = self._model.__name__.lower()
        self._insert = PreparedInsert(self._model)
        self._insert_event = None if event is None else PreparedInsert(event)
        self._moves: dict[Hashable, PreparedStatement] = {}
        logged = {key.name: f"{self._subject}_id", "request_id": "caused_by", "chain": "chain"}
        self._logged = [label for name, label in logged.items() if name in table.c]
        self._returned: list[Any] = [
            getattr(self._model, name).label(label) for name, label in logged.items() if name in table.c
        ]
        self._returned += [each for each in announced if each.key not in self._logged]

    def initial(self, state: StateT) -> dict[str, str]:
        """Return the value of the column for a new row. Raises: ValueError if no row begins in this state."""
        if state not in self.initial_states:
            raise ValueError(f"no {self._subject} begins as {state}")
        return {self.column.key: state.value}

    def add(self, session: Session, row: Any, state: StateT, *, reason: str | None = None) -> None:
        """Insert a new row with its first event; the session does not get the object."""
        setattr(row, *self.initial(state).popitem())
        self._insert.execute_for(session, row)
        if self._insert_event is not None:
            self._insert_event.execute(session, {**self._event_values(row.id, state, reason), "at": row.created_at})
        if self._announce is not None:
            self._announce(session, row, state, reason)

    def move(self, session: Session, rows: str | ColumnElement[bool], *args: Any, **changes: Any) -> list[str]:
        """Move rows as `transition` does; return the keys of those moved."""
        return [row[0] for row in self.transition(session, rows, *args, **changes)]

    def transition(
        self,
        session: Session,
        rows: str | ColumnElement[bool],
        sources: StateT | AbstractSet[StateT],
        target: StateT,
        *,
        reason: str | None = None,
        where: ColumnElement[bool] | None = None,
        parameters: Mapping[str, Any] = _NO_PARAMETERS,
        **changes: Any,
    ) -> Sequence[Any]:
        """Move the row with a key, or those that meet a condition, from `sources`; return the columns `announced`.

        A row with a key may have to meet the condition `where` in addition; its `parameters` are those of `where` and
        of expressions among the changes. Both conditions and expressions are constants of a module.

        Raises: ValueError for a transition that does not exist: a bug.
        """
        sources = sources if isinstance(sources, AbstractSet) else {sources}
        for source in sources:
            if target not in self.permitted.get(source, ()):
                raise ValueError(f"there is no transition of a {self._subject} from {source} to {target}")
        values = {**self._values(target, reason), **changes, self.column.key: target.value}
        if isinstance(rows, str) and session.identity_map.get(identity_key(self._model, rows)) is None:
            moved = self._move_row(session, sources, values, where, {**parameters, "row_key": rows})
        else:
            # The ORM changes objects that the session has loaded, too.
            moved = session.execute(
                update(self._model)
                .where(
                    self._key == rows if isinstance(rows, str) else rows,
                    self.column.in_([source.value for source in sources]),
                    *([] if where is None else [where]),
                )
                .values(values)
                .returning(*self._returned),
                parameters,
            ).all()
        for row in moved:
            if self._insert_event is not None:
                self._insert_event.execute(session, {**self._event_values(row[0], target, reason), "at": clock.now()})
            if self._announce is not None:
                self._announce(session, row, target, reason)
            if self._logger is not None:
                fields = {name: getattr(row, name) for name in self._logged}
                after_commit(partial(self._log, self._logger, fields, target, reason))
        return moved

    def _move_row(
        self,
        session: Session,
        sources: AbstractSet[StateT],
        values: Mapping[str, Any],
        where: ColumnElement[bool] | None,
        parameters: Mapping[str, Any],
    ) -> Sequence[Any]:
        """Move one row by a statement that is prepared once for these columns and conditions."""
        expressions = {name: value for name, value in values.items() if isinstance(value, ClauseElement)}
        shape = len(sources), tuple(values), tuple(expressions.values()), where
        statement = self._moves.get(shape)
        if statement is None:
            table, conditions = table_of(self._model), [] if where is None else [where]
            is_source = self.column.in_([bindparam(f"source_{number}") for number in range(len(sources))])
            statement = self._moves[shape] = PreparedStatement(
                update(table)
                .where(self._key == bindparam("row_key"), is_source, *conditions)
                .values({table.c[name]: expressions.get(name, bindparam(f"new_{name}")) for name in values})
                .returning(*self._returned)
            )
        states = {f"source_{number}": source.value for number, source in enumerate(sources)}
        changes = {f"new_{name}": value for name, value in values.items() if name not in expressions}
        return statement.all(session, {**states, **changes, **parameters})

    def _event_values(self, key: str, state: StateT, reason: str | None) -> dict[str, Any]:
        return {f"{self._subject}_id": key, self.column.key: state.value, "reason": reason}

    def _log(self, logger: BoundLogger, row: dict[str, Any], state: StateT, reason: str | None) -> None:
        # Without a cause of its own, the line has that of the context.
        fields = {name: value for name, value in row.items() if value is not None}
        event = f"{self._subject}_{self.column.key}_changed"
        logger.info(event, **fields, **{self.column.key: state.value}, reason=reason)
