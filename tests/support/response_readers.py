"""Readers of responses, by the parts of a head that they look at."""

from __future__ import annotations

from typing import Any

from app.gateway.dialects.request.cost_params import CostParams
from app.gateway.dialects.response.response_reader import ResponseReader
from app.gateway.operator_errors import ReadResponse


def reader_of(
    params: CostParams, *, status: int, content_type: str | None = None, content_encoding: str | None = None
) -> ResponseReader:
    """Return the reader of a response with this head."""
    named = {"Content-Type": content_type, "Content-Encoding": content_encoding}
    rest: Any = None
    headers = [(name, value) for name, value in named.items() if value is not None]
    return ResponseReader(params, ReadResponse(status, headers, b"", rest))
