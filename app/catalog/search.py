"""Finding active services by a piece of text or a category: one interface over two kinds of index.

PostgreSQL has an index of trigrams below LIKE, SQLite a full-text table of trigrams. Both find any substring;
pieces of one or two letters, which have no trigram, are looked for in all texts. Alone writes `service_texts`.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Select, column, delete, func, insert, select, table, true

from app.catalog.models import Service, ServiceText
from app.core.pagination import PageRequest
from app.extensions import db

# Stands in no text of a caller's, so that nothing is found across the end of a name.
_SEPARATOR = "\x1f"
_TRIGRAM = 3
# Up to so many matches are gathered and sorted; of more, the ranking is walked until the page is full.
_GATHERED = 2_000


@dataclass(frozen=True, slots=True)
class Found:
    """The ids of a page of services in their order, and how many match in all."""

    ids: Sequence[str]
    total: int


def put(service_id: str, *, name: str, description: str, category: str) -> None:
    """Let a service be found, or found by other words. In the caller's unit."""
    drop(service_id)
    text = f"{_folded(name)}{_SEPARATOR}{_folded(description)}"
    db.session.execute(
        insert(ServiceText).values(service_id=service_id, category=_folded(category), text=text)
    )


def drop(service_id: str) -> None:
    """Let a service be found no more. In the caller's unit."""
    db.session.execute(
        delete(ServiceText)
        .where(ServiceText.service_id == service_id)
        .execution_options(synchronize_session=False)
    )


def find(page: PageRequest, *, text: str | None, category: str | None) -> Found:
    """Return active services, those with most calls first, then by name and id. Works in a reading unit."""
    conditions = _conditions(text, category, by_index=True)
    if not conditions:
        total = db.session.scalar(select(func.count()).select_from(ServiceText)) or 0
        return Found(_ids(_ranking(page)), total)
    matching = select(ServiceText.service_id).where(*conditions)
    few = list(db.session.scalars(matching.limit(_GATHERED + 1)))
    if len(few) <= _GATHERED:
        return Found(_ids(_ranking(page).where(Service.id.in_(few))) if few else (), len(few))
    total = db.session.scalar(select(func.count()).select_from(ServiceText).where(*conditions)) or 0
    return Found(_ids(_walk(page, _conditions(text, category, by_index=False))), total)


def _walk(page: PageRequest, conditions: Sequence[ColumnElement[bool]]) -> Select[str]:
    """Go down the ranking and ask of each service whether it matches: many do, so the page is soon full."""
    match = select(true()).where(ServiceText.service_id == Service.id, *conditions).correlate(Service)
    return _ranking(page).where(match.scalar_subquery())


def _ranking(page: PageRequest) -> Select[str]:
    return (
        select(Service.id)
        .where(Service.status == "active")
        .order_by(Service.total_calls.desc(), Service.name, Service.id)
        .limit(page.limit)
        .offset(page.offset)
    )


def _conditions(text: str | None, category: str | None, *, by_index: bool) -> Sequence[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = []
    if category:
        conditions.append(ServiceText.category == _folded(category))
    if text:
        conditions.append(_contains(_folded(text), by_index=by_index))
    return conditions


def _contains(piece: str, *, by_index: bool) -> ColumnElement[bool]:
    is_postgresql = db.session.get_bind().dialect.name == "postgresql"
    if len(piece) < _TRIGRAM or not by_index:
        # Not LIKE, for which PostgreSQL would read the whole index of trigrams, twenty times as slow as the texts.
        return (func.strpos if is_postgresql else func.instr)(ServiceText.text, piece) > 0
    if is_postgresql:
        return ServiceText.text.contains(piece, autoescape=True)
    trigrams = table("search_trigrams", column("rowid"), column("search_trigrams"))
    # As a phrase in quotes nothing in it is an operator.
    phrase = '"' + piece.replace('"', '""') + '"'
    return ServiceText.number.in_(select(trigrams.c.rowid).where(trigrams.c.search_trigrams.match(phrase)))


def _ids(query: Select[str]) -> list[str]:
    return list(db.session.scalars(query))


def _folded(text: str) -> str:
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", text).casefold())
