"""Nodes' error messages, read from a table, and texts of contracts."""

import re
import tomllib
from collections.abc import Sequence
from pathlib import Path

from app.adapters.evm.contracts.calls import Function
from app.adapters.jsonrpc.calls import RpcError
from app.core.foreign import MalformedResponseError

ALREADY_KNOWN = "already_known"
"""The node has these very bytes: success."""

_TABLES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
SEND_REFUSALS: Sequence[tuple[str, str]] = [(words, reason) for words, reason in _TABLES["sends"]]
"""Words of a message, and the reason that they prove."""

_ERROR = Function("solidity", "Error")  # Solidity's require and revert
_PANIC = Function("solidity", "Panic")  # Solidity's assert and arithmetic
_UNSAFE_CHARACTERS = re.compile(r"[^A-Za-z0-9 .,:;_()<>=!+*/'-]")
_MAX_TEXT = 120


def is_revert(error: RpcError) -> bool:
    """Return whether an estimate or call failed because of its effect, and not because of the node."""
    text = error.message.lower()
    return error.code == 3 or any(words in text for words in _TABLES["reverts"])  # noqa: PLR2004 - geth's code of reverts


def revert_text(error: RpcError) -> str:
    """Return a contract's revert message in a short form that is safe to show: such texts are untrusted."""
    try:
        data = bytes.fromhex((error.data or "").removeprefix("0x"))
    except ValueError:
        data = b""
    try:
        if data[:4] == _ERROR.selector:
            return _sanitized(_ERROR.decode(data)[0])
        if data[:4] == _PANIC.selector:
            return f"panic {_PANIC.decode(data)[0]:#04x}"
    except MalformedResponseError:
        return "execution reverted"
    if len(data) >= 4:  # noqa: PLR2004 - a selector
        return f"custom error 0x{data[:4].hex()}"
    _, found, words = error.message.partition("execution reverted: ")
    return _sanitized(words) if found else "execution reverted"


def _sanitized(text: str) -> str:
    # Neither URLs nor markup survive this.
    cleaned = _UNSAFE_CHARACTERS.sub("", text).replace("//", "/").strip()[:_MAX_TEXT]
    return cleaned or "execution reverted"
