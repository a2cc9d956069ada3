"""The process that reads one document: `python -m app.adapters.openapi_reader.child`.

It says when it is ready, reads a document to the end of its input, and answers with one JSON object. Before it
looks at the document it gives up the right to open anything, and to use more than a little memory and time.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from typing import Any

from app.adapters.openapi_reader import endpoints, limits, structure
from app.adapters.openapi_reader.limits import InvalidDocumentError
from app.ports.specifications import MAX_SECONDS

READY = b"ready\n"
_MAX_MEMORY = 1024**3
_MAX_PROBLEM = 300
_RECURSION_LIMIT = 3_000


def main() -> None:
    """Read, answer, end."""
    sys.setrecursionlimit(_RECURSION_LIMIT)
    schemas = structure.Schemas()
    # What libraries load at their first use has to be loaded now.
    read("\ud800", schemas)
    _give_up_rights()
    sys.stdout.buffer.write(READY)
    sys.stdout.buffer.flush()
    text = sys.stdin.buffer.read().decode(errors="replace")
    answer = json.dumps(read(text, schemas)).encode()
    sys.stdout.buffer.write(answer)
    sys.stdout.buffer.flush()
    # Nothing that the document left behind is worth tidying up.
    os._exit(0)


def read(text: str, schemas: structure.Schemas) -> dict[str, Any]:
    """Return what a document offers, or where it is wrong."""
    try:
        document = limits.load(text)
        schemas.check(document)
        structure.check_rules(document)
        return {
            "document": json.dumps(document),
            "endpoints": endpoints.endpoints(document),
            "example": endpoints.example(document),
        }
    except InvalidDocumentError as error:
        return {"problem": error.problem[:_MAX_PROBLEM], "place": error.place}
    except MemoryError:
        return {"problem": "Reading the document takes too much memory.", "place": "#"}
    except Exception as error:
        return {"problem": f"The document cannot be read ({type(error).__name__}).", "place": "#"}


def _give_up_rights() -> None:
    # Three descriptors are open, and no more may be: neither a file nor a connection, whatever a library tries.
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
    # Should nobody be left to kill this process, the kernel does.
    used = int(sum(os.times()[:2])) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (used + MAX_SECONDS, used + MAX_SECONDS))
    _limit_memory()


def _limit_memory() -> None:
    try:
        resource.setrlimit(resource.RLIMIT_AS, (_MAX_MEMORY, _MAX_MEMORY))
    except (ValueError, OSError):
        return  # macOS has no such limit


if __name__ == "__main__":
    main()
