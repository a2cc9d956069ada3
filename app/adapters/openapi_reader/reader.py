"""Our side of reading a document: a new process for each, few concurrently, killed after a time limit."""

import json
import threading
import time
from typing import Any

import structlog

from app.adapters import child_process
from app.adapters.child_process import ChildEndedError, ChildTimeoutError
from app.db.unit_of_work import assert_no_unit
from app.ports.errors import Rejected, Unreachable
from app.ports.specifications import MAX_BYTES, MAX_SECONDS, Specification

_log = structlog.get_logger(__name__)
_COMMAND = ("-m", "app.adapters.openapi_reader.child")
_QUEUE_SECONDS = 10.0
_ENVIRONMENT = {"PYTHONDONTWRITEBYTECODE": "1", "LC_ALL": "C.UTF-8"}


class OpenApiReader:
    def __init__(self, *, max_seconds: float = MAX_SECONDS) -> None:
        self._max_seconds = max_seconds
        self._processes = threading.BoundedSemaphore(2)

    def read(self, document: str) -> Specification:
        assert_no_unit()
        encoded = document.encode(errors="surrogatepass")
        if len(encoded) > MAX_BYTES:
            raise _invalid("The document exceeds the limit of 1 MiB.")
        if not self._processes.acquire(timeout=_QUEUE_SECONDS):
            raise Unreachable("busy")
        try:
            result = self._run(encoded)
        finally:
            self._processes.release()
        if "problem" in result:
            raise _invalid(result["problem"], result["place"])
        return Specification(result["document"], result["endpoints"], result["example"])

    def _run(self, encoded: bytes) -> dict[str, Any]:
        with child_process.run(*_COMMAND, environment=_ENVIRONMENT, max_line=16 * MAX_BYTES) as child:
            try:
                # Starting is our own work (libraries are loaded) and does not count against the document.
                child.read_line(deadline=time.monotonic() + 30.0)
            except (ChildEndedError, ChildTimeoutError):
                _log.error("specification_reader_start_failed")
                raise Unreachable("busy") from None
            deadline = time.monotonic() + self._max_seconds
            try:
                child.write(encoded, deadline=deadline)
                child.close_input()
                result: dict[str, Any] = json.loads(child.read_line(deadline=deadline))
            except ChildTimeoutError:
                raise _invalid(f"Checking the document exceeds the limit of {MAX_SECONDS} seconds.") from None
            except (ChildEndedError, ValueError):
                # It was stopped by the kernel, for its processor time or memory, or crashed.
                raise _invalid("The document cannot be read within the limits of time and memory.") from None
        return result


def _invalid(problem: str, place: str = "#") -> Rejected:
    return Rejected("invalid", details={"place": place, "problem": problem})
