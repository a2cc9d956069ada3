"""Error messages of nodes and programs, in tables with their sources; and recipients that must not be paid."""

from collections.abc import Mapping

from solders.pubkey import Pubkey

from app.adapters.solana.client.wire import AccountState
from app.adapters.solana.send import tokens

ALREADY_PROCESSED = "already_processed"
"""The chain has these very bytes: success."""

# Agave `rpc_custom_error.rs` and `TransactionError` of solana-sdk, by their messages: codes are shared between many.
SEND_REFUSALS: tuple[tuple[str, str], ...] = (
    ("already been processed", ALREADY_PROCESSED),  # TransactionError::AlreadyProcessed, from preflight
    ("alreadyprocessed", ALREADY_PROCESSED),  # the same, where a gateway prints the variant
    ("signature verification fail", "invalid_transaction"),  # -32003 of Agave
    ("failed to deserialize", "invalid_transaction"),  # -32602 of Agave `decode_and_deserialize`
    ("failed to sanitize", "invalid_transaction"),  # -32602 of Agave `sanitize_transaction`
    ("invalid transaction", "invalid_transaction"),  # -32602 of Agave `sanitize_transaction`, older message
    ("too large", "invalid_transaction"),  # -32602 of Agave `decode_and_deserialize`
)

# `TokenError` of github.com/solana-program/token, by its number in `Custom`.
_TOKEN_ERRORS: Mapping[int, str] = {
    1: "insufficient token balance", 3: "the token account is of another mint",
    4: "the token account has another owner", 17: "the token account is frozen", 18: "the mint has other decimals",
}  # fmt: skip

_MAX_NAME = 60  # no variant is longer
_OWNED_BY_THE_RUNTIME = frozenset(
    Pubkey.from_string(program)
    for program in (
        "NativeLoader1111111111111111111111111111111",
        "BPFLoader1111111111111111111111111111111111",
        "BPFLoader2111111111111111111111111111111111",
        "BPFLoaderUpgradeab1e11111111111111111111111",
        "LoaderV411111111111111111111111111111111111",
        "Sysvar1111111111111111111111111111111111111",
    )
)


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
                return _TOKEN_ERRORS.get(code, f"custom program error {code:#x}")
    is_name = isinstance(variant, str) and variant.isascii() and variant.isalnum() and len(variant) <= _MAX_NAME
    return str(variant) if is_name else "the transaction would fail"
