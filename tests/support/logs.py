"""Capture of the log output of the service."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from app.observability.telemetry import LineHandler


@contextmanager
def written_logs() -> Iterator[Callable[[], list[dict[str, Any]]]]:
    """Return the log lines that the service has written."""
    buffer = io.StringIO()
    handler = next(each for each in logging.getLogger().handlers if isinstance(each, LineHandler))
    before = handler.setStream(buffer)
    try:
        yield lambda: [json.loads(line) for line in buffer.getvalue().splitlines()]
    finally:
        handler.setStream(before or io.StringIO())
