"""The signer process of `RUN_SIGNER=1 ./run`: it alone gets the keys of wallets' keys, and only its own settings."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.sandbox_secrets import write_privately
from launcher.settings import Plan

if TYPE_CHECKING:
    from launcher.supervisor import Program

FOLDER = "signer"
_KEY_FILE = "wallet.key"
_KEY_BYTES = 32
# What it verifies rows and opens keys with, and what bounds what it signs.
_OWN_SETTINGS = (
    "NETWORK", "BASE_URL", "DATABASE_URL", "ENCRYPTION_KEYS", "WALLET_ENCRYPTION_KEYS", "VAULT_TOKEN", "PKCS11_PIN",
    "SIGNER_SOCKET", "SIGNER_DATABASE_URL", "WALLET_EXPORT_WAIT_SECONDS", "LOG_LEVEL", "DATABASE_PREPARED_STATEMENTS",
)  # fmt: skip
_NOT_OF_CLIENTS = ("WALLET_ENCRYPTION_KEYS", "VAULT_TOKEN", "PKCS11_PIN", "SIGNER_DATABASE_URL")


def add_signer(plan: Plan, *, tier: int) -> Program | None:
    """Take the signer's settings from those of the other processes; return its program, None if it is off."""
    from launcher.supervisor import Program  # noqa: PLC0415 - commands of the launcher do without it

    folder, settings = plan.var / FOLDER, plan.environment
    if not _is_on(plan):
        add_wallet_key(plan)
        return None
    folder.mkdir(mode=0o700, exist_ok=True)
    key = folder / _KEY_FILE
    if not key.exists() and not settings.get("WALLET_ENCRYPTION_KEYS"):
        write_privately(key, secrets.token_bytes(_KEY_BYTES))
        key.chmod(0o400)  # it is never replaced
    settings.pop("SIGNER_SOCKET", None)
    add_wallet_key(plan)
    plan.embedded_addresses["SIGNER_SOCKET"] = settings["SIGNER_SOCKET"] = str(folder / "socket")
    settings["SIGNER_DATABASE_URL"] = settings.get("SIGNER_DATABASE_URL") or f"sqlite:///{folder / 'signed.sqlite'}"
    own = {name: settings[name] for name in _OWN_SETTINGS if name in settings}
    for name in _NOT_OF_CLIENTS:
        settings.pop(name, None)
    Path(settings["SIGNER_SOCKET"]).unlink(missing_ok=True)
    command = [str(plan.root / ".venv/bin/python"), "-m", "signer"]
    # Not a fork of the launcher: it shares no memory with what has the other settings.
    return Program("signer", command, {**plan.non_secret_environment, **own}, tier)


def add_wallet_key(plan: Plan) -> None:
    """Name the key that a signer has made, if there is one: without it, wallets cannot be opened any more."""
    key, settings = plan.var / FOLDER / _KEY_FILE, plan.environment
    if key.exists() and not any(settings.get(name) for name in ("WALLET_ENCRYPTION_KEYS", "SIGNER_SOCKET")):
        settings["WALLET_ENCRYPTION_KEYS"] = f"{'' if _is_on(plan) else 'local,'}w1:file://{key}"


def _is_on(plan: Plan) -> bool:
    return plan.environment.get("RUN_SIGNER", "0") not in {"", "0"}
