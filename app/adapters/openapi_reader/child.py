"""The process that reads one document: `python -m app.adapters.openapi_reader.child`.

It reports that it is ready, reads a document to the end of its input, and writes one JSON object in a line. Before it
parses the document it drops the right to open anything, and to use more than a little memory and time.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from contextlib import suppress
from typing import Any

from app.adapters.openapi_reader import endpoints, limits, schema_validation
from app.adapters.openapi_reader.limits import InvalidDocumentError
from app.ports.specifications import MAX_SECONDS

READY = b"ready\n"
_MAX_MEMORY = 1024**3
_MAX_PROBLEM = 300
_RECURSION_LIMIT = 3_000


def main() -> None:
    sys.setrecursionlimit(_RECURSION_LIMIT)
    schemas = schema_validation.OpenApiSchemas()
    # What libraries load at their first use has to be loaded now.
    read_document("\ud800", schemas)
    _drop_privileges()
    sys.stdout.buffer.write(READY)
    sys.stdout.buffer.flush()
    text = sys.stdin.buffer.read().decode(errors="replace")
    result = json.dumps(read_document(text, schemas)).encode()
    sys.stdout.buffer.write(result + b"\n")
    sys.stdout.buffer.flush()
    # No clean-up is needed for what the document left behind.
    os._exit(0)


def read_document(text: str, schemas: schema_validation.OpenApiSchemas) -> dict[str, Any]:
    """Return the content of a document, or where it is invalid."""
    try:
        document = limits.load(text)
        schemas.check(document)
        schema_validation.check_rules(document)
        return {
            "document": json.dumps(document),
            "endpoints": endpoints.list_endpoints(document),
            "example": endpoints.example_request(document),
        }
    except InvalidDocumentError as error:
        return {"problem": error.problem[:_MAX_PROBLEM], "place": error.path}
    except MemoryError:
        return {"problem": "Reading the document exceeds the memory limit.", "place": "#"}
    except Exception as error:
        return {"problem": f"The document cannot be read ({type(error).__name__}).", "place": "#"}


def _drop_privileges() -> None:
    # Three descriptors are open, and no more are allowed: neither a file nor a connection, whatever a library tries.
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
    # If no parent is left to kill this process, the kernel does.
    used = int(sum(os.times()[:2])) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (used + MAX_SECONDS, used + MAX_SECONDS))
    with suppress(ValueError, OSError):  # macOS has no such limit
        resource.setrlimit(resource.RLIMIT_AS, (_MAX_MEMORY, _MAX_MEMORY))


if __name__ == "__main__":
    main()
