"""Log lines: one shape for our own and foreign records, each redacted and written in one piece."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from typing import Any

import pytest
import structlog

from app.observability import telemetry
from tests.support.logs import written_logs
from tests.support.waiting import PATIENCE_SECONDS

_KEY = "ak_" + "x" * 40
_LOGGERS = [structlog.get_logger("app.test"), logging.getLogger("library")]


@pytest.fixture(autouse=True)
def _configured() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    telemetry.configure_logs("INFO")
    structlog.contextvars.clear_contextvars()
    yield
    root.handlers[:], root.level = handlers, level


class _Pieces:
    """A stream that records each write."""

    def __init__(self) -> None:
        self.written: list[str] = []

    def write(self, text: str) -> None:
        self.written.append(text)

    def flush(self) -> None:
        pass


def test_an_event_and_a_foreign_record_have_one_shape() -> None:
    with written_logs() as lines:
        for logger in _LOGGERS:
            logger.warning("happened")
            try:
                int(_KEY)
            except ValueError:
                logger.exception("failed")
        logger.debug("below the level")
        found = lines()
    for line, name in zip(found[::2], ("app.test", "library"), strict=True):
        assert line.keys() == {"event", "level", "logger", "timestamp"}
        assert (line["event"], line["level"], line["logger"]) == ("happened", "warning", name)
    for line in found[1::2]:
        assert line["level"] == "error"
        assert line["exception"].endswith("base 10: 'ak_…'")


@pytest.mark.parametrize("logger", _LOGGERS)
@pytest.mark.parametrize(
    "value", [_KEY, {"key": _KEY}, {_KEY: 1}, [[_KEY]], ValueError(f"postgresql://x:{_KEY}@host"), f"sent\n{_KEY}"]
)
def test_no_key_is_written_whatever_is_logged(logger: Any, value: object) -> None:
    with written_logs() as lines:
        logger.warning(value)
        logger.warning("message %s", value)
        found = lines()
    assert len(found) == 2
    assert _KEY not in json.dumps(found, ensure_ascii=False)


def test_values_that_json_lacks_are_written_as_text() -> None:
    with written_logs() as lines:
        _LOGGERS[0].info("message", amount=Decimal("1.5"), count=3, where=None, key=b"x", name="é")
        (line,) = lines()
    assert [line[name] for name in ("amount", "count", "where", "key", "name")] == [
        "Decimal('1.5')", 3, None, "b'x'", "é",
    ]  # fmt: skip


def test_each_line_of_concurrent_threads_is_written_in_one_piece() -> None:
    stream = _Pieces()
    handler = logging.getLogger().handlers[0]
    assert isinstance(handler, logging.StreamHandler)
    handler.setStream(stream)
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda number: _LOGGERS[number % 2].warning("message %d", number), range(200)))
    events = {json.loads(piece)["event"] for piece in stream.written if piece.endswith("\n")}
    assert events == {f"message {number}" for number in range(200)}
    assert len(stream.written) == len(events)


class _Blocked(_Pieces):
    """A stream that writes nothing until it is released, like a full pipe."""

    def __init__(self) -> None:
        super().__init__()
        self.is_writing, self.released = threading.Event(), threading.Event()

    def write(self, text: str) -> None:
        self.is_writing.set()
        assert self.released.wait(PATIENCE_SECONDS)
        super().write(text)


def test_a_thread_does_not_wait_while_another_writes_and_its_line_is_written_in_order() -> None:
    stream = _Blocked()
    handler = logging.getLogger().handlers[0]
    assert isinstance(handler, logging.StreamHandler)
    handler.setStream(stream)
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(_LOGGERS[0].warning, "first")
        assert stream.is_writing.wait(PATIENCE_SECONDS)
        for logger in _LOGGERS:
            logger.warning("second")
        assert stream.written == []
        stream.released.set()
        first.result(PATIENCE_SECONDS)
    assert [json.loads(each)["event"] for each in stream.written] == ["first", "second", "second"]
