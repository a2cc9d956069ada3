"""Checks before a library parses the document: size, depth, and the targets of its references.

No step here is recursive or takes more than a few operations for each value of the document.
"""

import json
import math
import re
from collections.abc import Iterator
from typing import Any

from app.core.strict_json import reject_constant
from app.ports.specifications import MAX_BYTES, MAX_DEPTH, MAX_OPERATIONS

METHODS = ("get", "put", "post", "delete", "options", "head", "patch", "trace")
MAX_PARAMETERS = 5_000
_VERSION = re.compile(r"3\.[01]\.[0-9]{1,3}(-.{1,50})?", re.ASCII)
_POINTER = re.compile(r"#(/.*)?", re.DOTALL)
_SURROGATE = re.compile("[\ud800-\udfff]")


class InvalidDocumentError(Exception):
    def __init__(self, problem: str, path: str = "#") -> None:
        super().__init__(problem)
        self.problem = problem
        self.path = path


def json_pointer(path: tuple[str, ...] | list[Any]) -> str:
    """Return a position as a JSON pointer in a fragment (RFC 6901), truncated to one line."""
    parts = (str(part).replace("~", "~0").replace("/", "~1") for part in path)
    return "/".join(["#", *parts])[:500]


def load(text: str) -> dict[str, Any]:
    """Parse a document; refuse what is too large, too deep, or refers outside itself. Raises: InvalidDocumentError."""
    if len(text.encode(errors="surrogatepass")) > MAX_BYTES:
        raise InvalidDocumentError("The document exceeds the limit of 1 MiB.")
    try:
        document = json.loads(text, object_pairs_hook=_object, parse_constant=reject_constant)
    except InvalidDocumentError:
        raise
    except RecursionError:
        raise InvalidDocumentError(f"The document is nested deeper than {MAX_DEPTH} levels.") from None
    except ValueError:
        raise InvalidDocumentError("The document is not valid JSON (YAML is not supported).") from None
    if not isinstance(document, dict):
        raise InvalidDocumentError("The document must be a JSON object.")
    version = document.get("openapi")
    if not isinstance(version, str) or not _VERSION.fullmatch(version):
        raise InvalidDocumentError('Must be a version 3.0.x or 3.1.x, such as "3.1.0".', "#/openapi")
    _check_values(document)
    _check_operations(document)
    return document


def resolve(document: Any, value: Any) -> Any:
    """Follow a value's reference, and further references, to their target. Raises: InvalidDocumentError."""
    visited: set[str] = set()
    while isinstance(value, dict) and isinstance(value.get("$ref"), str):
        reference = value["$ref"]
        if reference in visited:
            raise InvalidDocumentError("The reference is circular.", reference[:500])
        visited.add(reference)
        value = lookup(document, reference)
    return value


def lookup(document: Any, reference: str) -> Any:
    """Return the target of a reference within the document. Raises: InvalidDocumentError, LookupError."""
    found = document
    for part in _parts(reference):
        if isinstance(found, dict):
            found = found[part]
        elif isinstance(found, list) and part.isascii() and part.isdigit() and len(part) < 8:  # noqa: PLR2004 - digits of 1 MiB
            found = found[int(part)]
        else:
            raise LookupError(part)
    return found


def _parts(reference: str) -> Iterator[str]:
    for part in reference.split("/")[1:]:
        decoded = re.sub(r"%([0-9A-Fa-f]{2})", lambda found: chr(int(found[1], 16)), part)
        yield decoded.replace("~1", "/").replace("~0", "~")


def _check_values(document: dict[str, Any]) -> None:
    open_values: list[tuple[Any, tuple[str, ...]]] = [(document, ())]
    while open_values:
        value, path = open_values.pop()
        if len(path) > MAX_DEPTH:
            raise InvalidDocumentError(f"The document is nested deeper than {MAX_DEPTH} levels.", json_pointer(path))
        texts = value if isinstance(value, dict) else (value,)
        if any(isinstance(text, str) and not text.isascii() and _SURROGATE.search(text) for text in texts):
            # JSON's escapes can contain an unpaired surrogate, which cannot be encoded again.
            raise InvalidDocumentError("A string of the document contains an unpaired surrogate.", json_pointer(path))
        if isinstance(value, dict):
            for name in ("$ref", "$dynamicRef", "$recursiveRef", "operationRef"):
                if name in value:
                    _check_reference(document, value[name], (*path, name))
            open_values += [(inner, (*path, key)) for key, inner in value.items()]
        elif value in (math.inf, -math.inf):
            # 1e999 is valid JSON, but its parsed value cannot be written as JSON.
            raise InvalidDocumentError("The number is too large for a double-precision float.", json_pointer(path))
        elif isinstance(value, list):
            open_values += [(inner, (*path, str(index))) for index, inner in enumerate(value)]


def _check_reference(document: dict[str, Any], reference: Any, path: tuple[str, ...]) -> None:
    place = json_pointer(path)
    if not isinstance(reference, str):
        if path[-2:-1] in {("properties",), ("example",), ("examples",), ("default",)}:
            return  # a property with this name
        raise InvalidDocumentError("A reference must be a string.", place)
    if not _POINTER.fullmatch(reference):
        raise InvalidDocumentError("Only references within the document (#/…) are supported.", place)
    try:
        lookup(document, reference)
    except LookupError:
        raise InvalidDocumentError("The target of the reference does not exist.", place) from None


def operations(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any], str, dict[str, Any]]]:
    """Yield path, its item, method and operation, in the document's order. Raises: InvalidDocumentError."""
    paths = document.get("paths")
    for path, raw in paths.items() if isinstance(paths, dict) else ():
        item = resolve(document, raw)
        for method in METHODS if isinstance(item, dict) else ():
            if isinstance(item.get(method), dict):
                yield path, item, method, item[method]


def _check_operations(document: dict[str, Any]) -> None:
    """Count before anything multiplies: paths may share one item, and operations its parameters."""
    parameters = 0
    for number, (path, item, _method, operation) in enumerate(operations(document), 1):
        listed = (item.get("parameters"), operation.get("parameters"))
        parameters += sum(len(some) for some in listed if isinstance(some, list))
        for limit, count, things in (
            (MAX_OPERATIONS, number, "The document has more than {} operations."),
            (MAX_PARAMETERS, parameters, "The operations have more than {} parameters."),
        ):
            if count > limit:
                raise InvalidDocumentError(things.format(limit), json_pointer(("paths", path)))


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise InvalidDocumentError("An object of the document has a duplicate field.")
    return found
