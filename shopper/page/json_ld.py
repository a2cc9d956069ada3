"""JSON-LD of a page, which is hostile: bounded in depth and size. No I/O."""

import json
from typing import Any

from app.core.json_limits import measure_json

_MAX_DEPTH = 32
_MAX_VALUES = 20_000


def parse(text: str) -> Any:
    """Return the data of a script; None if they are not JSON, too deep or too large."""
    try:
        measure_json(text.encode(errors="replace"), max_depth=_MAX_DEPTH, max_values=_MAX_VALUES)
        return json.loads(text)
    except ValueError:
        return None
