"""Search for active services by substring or category: one interface over two kinds of index.

PostgreSQL has a trigram index for LIKE, SQLite a full-text table of trigrams. Both find any substring; pieces of one or
two characters, which have no trigram, are searched in all texts. The only writer of
`service_texts`.
"""

import unicodedata
from collections.abc import Sequence

from sqlalchemy import ColumnElement, column, func, select, table, true
from sqlalchemy.orm import Session

from app.catalog.models import IS_ACTIVE, Service, ServiceSearchText, ServiceStatus
from app.core.pagination import Page, PageRequest
from app.db.tables import count, delete_rows
from app.db.unit_of_work import read_only_unit

# Not in any input, so that nothing is found across the end of a name.
_SEPARATOR = "\x1f"
_TRIGRAM = 3
# Up to so many matches are collected and sorted; with more, the ranking is scanned until the page is full.
_MAX_INDEX_MATCHES = 2_000


def update_service(session: Session, service: Service) -> None:
    """Index the present texts of a service that is active; remove any other from the index."""
    remove_service(session, service.id)
    if service.status == ServiceStatus.ACTIVE and not service.is_suspended:
        text = f"{_fold_case(service.name)}{_SEPARATOR}{_fold_case(service.description)}"
        session.add(ServiceSearchText(service_id=service.id, category=_fold_case(service.category), text=text))


def remove_service(session: Session, service_id: str) -> None:
    delete_rows(session, ServiceSearchText, ServiceSearchText.service_id == service_id)


def search(page: PageRequest, *, text: str = "", category: str = "", min_nanos: int = 0) -> Page[Service]:
    """Return active services, those with most calls first, then by name and id.

    `min_nanos` is the lowest price of those that are found without a text and a category.
    """
    with read_only_unit() as session:
        conditions = _conditions(session, text, category, by_index=True)
        if min_nanos:
            is_found: ColumnElement[bool] = Service.price_nanos >= min_nanos
            total = count(session, Service, IS_ACTIVE, is_found)
        elif not conditions:
            is_found, total = true(), count(session, ServiceSearchText)
        else:
            matching = select(ServiceSearchText.service_id).where(*conditions).limit(_MAX_INDEX_MATCHES + 1)
            few = session.scalars(matching).all()
            is_found, total = Service.id.in_(few), len(few)
            if total > _MAX_INDEX_MATCHES:
                # Many match, so a scan of the ranking that tests each service soon fills the page.
                of_service = ServiceSearchText.service_id == Service.id
                tests = _conditions(session, text, category, by_index=False)
                is_found = select(true()).where(of_service, *tests).correlate(Service).scalar_subquery()
                total = count(session, ServiceSearchText, *conditions)
        order = Service.total_calls.desc(), Service.name, Service.id
        # The page is found in the index of the ranking; then its few rows are read.
        ids = select(Service.id).where(IS_ACTIVE, is_found).order_by(*order).limit(page.limit).offset(page.offset)
        shown = ids.subquery()
        rows = session.scalars(select(Service).join(shown, shown.c.id == Service.id).order_by(*order)).all()
    return Page(rows, total, page)


def _conditions(session: Session, text: str, category: str, *, by_index: bool) -> Sequence[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = []
    if category:
        conditions.append(ServiceSearchText.category == _fold_case(category))
    if text:
        conditions.append(_contains(session, _fold_case(text), by_index=by_index))
    return conditions


def _contains(session: Session, piece: str, *, by_index: bool) -> ColumnElement[bool]:
    is_postgresql = session.get_bind().dialect.name == "postgresql"
    if len(piece) < _TRIGRAM or not by_index:
        # Not LIKE, for which PostgreSQL would read the whole trigram index, twenty times as slow as the texts.
        return (func.strpos if is_postgresql else func.instr)(ServiceSearchText.text, piece) > 0
    if is_postgresql:
        return ServiceSearchText.text.contains(piece, autoescape=True)
    trigrams = table("search_trigrams", column("rowid"), column("search_trigrams"))
    # In a quoted phrase nothing is an operator.
    phrase = '"' + piece.replace('"', '""') + '"'
    return ServiceSearchText.number.in_(select(trigrams.c.rowid).where(trigrams.c.search_trigrams.match(phrase)))


def _fold_case(text: str) -> str:
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", text).casefold())
