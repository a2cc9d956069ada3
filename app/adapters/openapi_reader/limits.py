"""What is looked at before a library sees the document: size, depth, and where its references lead.

No step here is recursive or takes more than a few operations for each value of the document.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

from app.ports.specifications import MAX_BYTES, MAX_DEPTH, MAX_OPERATIONS

METHODS = ("get", "put", "post", "delete", "options", "head", "patch", "trace")
MAX_PARAMETERS = 5_000
_VERSION = re.compile(r"3\.[01]\.[0-9]{1,3}(-.{1,50})?", re.ASCII)
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef", "operationRef")
_POINTER = re.compile(r"#(/.*)?", re.DOTALL)


class InvalidDocumentError(Exception):
    """The document is refused: a sentence, and where in it the reason stands."""

    def __init__(self, problem: str, place: str = "#") -> None:
        super().__init__(problem)
        self.problem = problem
        self.place = place


@dataclass(frozen=True, slots=True)
class Value:
    """A value of the document and the keys that lead to it."""

    value: Any
    place: tuple[str, ...]


def pointer(place: tuple[str, ...] | list[Any]) -> str:
    """Write a place as a JSON pointer in a fragment (RFC 6901), cut to what fits a line."""
    parts = (str(part).replace("~", "~0").replace("/", "~1") for part in place)
    return "/".join(["#", *parts])[:500]


def load(text: str) -> dict[str, Any]:
    """Parse a document and refuse what is too large, too deep, of another version, or points outside of itself.

    Raises: InvalidDocumentError.
    """
    if len(text.encode(errors="surrogatepass")) > MAX_BYTES:
        raise InvalidDocumentError("The document is larger than 1 MiB.")
    try:
        document = json.loads(text, object_pairs_hook=_object, parse_constant=_refuse_constant)
    except InvalidDocumentError:
        raise
    except RecursionError:
        raise InvalidDocumentError(f"The document is nested deeper than {MAX_DEPTH} levels.") from None
    except ValueError:
        raise InvalidDocumentError("The document is not valid JSON (YAML is not read).") from None
    if not isinstance(document, dict):
        raise InvalidDocumentError("The document must be a JSON object.")
    version = document.get("openapi")
    if not isinstance(version, str) or not _VERSION.fullmatch(version):
        raise InvalidDocumentError('Must be a version 3.0.x or 3.1.x, such as "3.1.0".', "#/openapi")
    _check_values(document)
    _check_operations(document)
    return document


def resolve(document: Any, value: Any) -> Any:
    """Follow a value's reference, and that one's, to what they stand for. Raises: InvalidDocumentError."""
    seen: set[str] = set()
    while isinstance(value, dict) and isinstance(value.get("$ref"), str):
        reference = value["$ref"]
        if reference in seen:
            raise InvalidDocumentError("The reference leads back to itself.", reference[:500])
        seen.add(reference)
        value = lookup(document, reference)
    return value


def lookup(document: Any, reference: str) -> Any:
    """Return what a reference within the document points to. Raises: InvalidDocumentError, LookupError."""
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
    open_values = [Value(document, ())]
    while open_values:
        current = open_values.pop()
        if len(current.place) > MAX_DEPTH:
            raise InvalidDocumentError(
                f"The document is nested deeper than {MAX_DEPTH} levels.", pointer(current.place)
            )
        texts = current.value if isinstance(current.value, dict) else (current.value,)
        if any(isinstance(text, str) and not _is_text(text) for text in texts):
            # JSON's escapes can name half of a letter, which nothing can write down again.
            raise InvalidDocumentError(
                "A text of the document holds half of a letter.", pointer(current.place)
            )
        if isinstance(current.value, dict):
            for name in _REFERENCES:
                if name in current.value:
                    _check_reference(document, current, name)
            open_values += [Value(inner, (*current.place, key)) for key, inner in current.value.items()]
        elif current.value in (math.inf, -math.inf):
            # 1e999 is JSON, but what is read from it is written as none.
            raise InvalidDocumentError("The number is larger than programs can hold.", pointer(current.place))
        elif isinstance(current.value, list):
            open_values += [
                Value(inner, (*current.place, str(index))) for index, inner in enumerate(current.value)
            ]


def _is_text(text: str) -> bool:
    return text.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in text)


def _check_reference(document: dict[str, Any], current: Value, name: str) -> None:
    reference = current.value[name]
    if not isinstance(reference, str):
        if current.place[-1:] in {("properties",), ("example",), ("examples",), ("default",)}:
            return  # a property that happens to be called so
        raise InvalidDocumentError("A reference must be a text.", pointer((*current.place, name)))
    place = pointer((*current.place, name))
    if not _POINTER.fullmatch(reference):
        raise InvalidDocumentError("Only references within the document (#/…) are followed.", place)
    try:
        lookup(document, reference)
    except LookupError:
        raise InvalidDocumentError("The reference points to nothing.", place) from None


def _check_operations(document: dict[str, Any]) -> None:
    """Count before anything multiplies: paths may share one item, and operations its parameters."""
    operations = parameters = 0
    paths = document.get("paths")
    for path, item in paths.items() if isinstance(paths, dict) else ():
        resolved = resolve(document, item)
        if not isinstance(resolved, dict):
            continue
        shared = resolved.get("parameters")
        for method in METHODS:
            operation = resolved.get(method)
            if not isinstance(operation, dict):
                continue
            own = operation.get("parameters")
            operations += 1
            parameters += sum(len(some) for some in (shared, own) if isinstance(some, list))
            if operations > MAX_OPERATIONS:
                raise InvalidDocumentError(
                    f"The document has more than {MAX_OPERATIONS} operations.", pointer(("paths", path))
                )
            if parameters > MAX_PARAMETERS:
                raise InvalidDocumentError(
                    f"The operations have more than {MAX_PARAMETERS} parameters.", pointer(("paths", path))
                )


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise InvalidDocumentError("An object of the document names a field twice.")
    return found


def _refuse_constant(_name: str) -> NoReturn:
    msg = "NaN and Infinity are not JSON"
    raise ValueError(msg)
