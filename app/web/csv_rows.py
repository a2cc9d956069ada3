"""Lists as CSV (RFC 4180), which clients and owners open in spreadsheets."""

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from typing import Any

from flask import Response, request

from app.web.blueprint import Blueprint, View
from app.web.schemas import Schema

CSV = "text/csv"
_NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?(e[+-]?[0-9]+)?", re.ASCII | re.IGNORECASE)
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


def offers_csv(blp: Blueprint, rows: str, shape: type[Schema]) -> Callable[[View], View]:
    """Return the rows of a view's page, by the name of their member, as CSV to clients that prefer it to JSON."""
    schema = shape()

    def decorate(view: View) -> View:
        @wraps(view)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            page = view(*args, **kwargs)
            if request.accept_mimetypes.best_match(["application/json", CSV]) != CSV:
                return page
            found = page[rows] if isinstance(page, dict) else getattr(page, rows)
            return csv_response(list(schema.fields), schema.dump(found, many=True))

        document: Callable[[View], View] = blp.alt_response(
            200,
            schema={"type": "string", "description": "The rows of the page, below one with the names of their fields."},
            content_type=CSV,
            example=",".join(schema.fields) + "\r\n",
        )
        return document(wrapper)  # type: ignore[arg-type]

    return decorate


def csv_response(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> Response:
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(columns)
    writer.writerows([_cell(row.get(name)) for name in columns] for row in rows)
    return Response(text.getvalue(), mimetype=CSV)


def _cell(value: Any) -> str:
    """Return a value as the text of a cell that no spreadsheet takes for a formula."""
    if value is None:
        return ""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return f"'{text}" if text.startswith(_FORMULA_STARTS) and not _NUMBER.fullmatch(text) else text
