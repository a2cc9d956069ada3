"""Error messages of nodes and programs, read from tables; and recipients that must not be paid."""

import tomllib
from collections.abc import Sequence
from pathlib import Path

from solders.pubkey import Pubkey

from app.adapters.solana.client.wire import AccountState
from app.adapters.solana.send import tokens

ALREADY_PROCESSED = "already_processed"
"""The chain has these very bytes: success."""

_TABLES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
SEND_REFUSALS: Sequence[tuple[str, str]] = [(words, reason) for words, reason in _TABLES["sends"]]
_MAX_NAME = 60  # no variant is longer
_OWNED_BY_THE_RUNTIME = frozenset(map(Pubkey.from_string, _TABLES["runtime"]))


def account_refusal(account: AccountState | None) -> str | None:
    """Return what kind of account must not be paid, since SOL or tokens would be unreachable in it; None for others."""
    if account is None:
        return None
    if account.is_executable or account.owner in _OWNED_BY_THE_RUNTIME:
        return "program"
    if account.owner in tokens.TOKEN_PROGRAMS:
        return "token_account_or_mint"
    return None


def simulation_error(error: object) -> str:
    """Return a failed simulation's error as text that is safe to show: only from our tables and names of variants."""
    variant = error
    if isinstance(error, dict) and len(error) == 1:
        ((variant, detail),) = error.items()
        if variant == "InstructionError" and isinstance(detail, list) and len(detail) == 2:  # noqa: PLR2004 - [place, error]
            variant = detail[1]
            if isinstance(variant, dict) and type(code := variant.get("Custom")) is int:
                return str(_TABLES["token_errors"].get(str(code), f"custom program error {code:#x}"))
    is_name = isinstance(variant, str) and variant.isascii() and variant.isalnum() and len(variant) <= _MAX_NAME
    return str(variant) if is_name else "the transaction would fail"
