"""Advice on purchases that failed, from the table beside this module, which has all of it."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_TABLE: Mapping[str, Mapping[str, str]] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
ADVICE, ADVICE_ON_LIMITS = _TABLE["failures"], _TABLE["limits"]
_OTHER_LIMIT = "Ask the owner about the wallet's limits; `limit_code` names the one that refused the order."


def advice_on(error: Mapping[str, Any]) -> str:
    if error.get("is_permanent"):
        return "Nothing was ordered. Send it again only after the operator of this service has fixed it."
    if limit_code := error.get("limit_code"):
        return ADVICE_ON_LIMITS.get(limit_code, _OTHER_LIMIT)
    return ADVICE[error["code"]]
