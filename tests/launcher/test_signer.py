"""`RUN_SIGNER=1 ./run`: the signer process has its own settings only, and the others lack its keys."""

from __future__ import annotations

import stat
from pathlib import Path

from app.config import Settings
from launcher.settings import Plan, read_settings
from launcher.signer_process import add_signer, add_wallet_key
from launcher.supervisor import Program

SECRETS = {
    name.upper()
    for name, field in Settings.model_fields.items()
    if "SecretStr" in str(field.annotation)
}  # fmt: skip


def started(root: Path, **given: str) -> tuple[Plan, Program | None]:
    every = {**dict.fromkeys(SECRETS, "x"), "SIGNER_DATABASE_URL": "", "DATABASE_URL": "sqlite:///db", **given}
    plan = read_settings(root, every, {})
    plan.var.mkdir(exist_ok=True)
    return plan, add_signer(plan, tier=1)


def test_the_signer_gets_its_own_settings_and_the_others_no_key_of_wallets(tmp_path: Path) -> None:
    plan, signer = started(tmp_path, RUN_SIGNER="1")
    assert signer is not None
    own = SECRETS & signer.environment.keys()
    assert own == {"DATABASE_URL", "ENCRYPTION_KEYS", "PKCS11_PIN", "SIGNER_DATABASE_URL", "VAULT_TOKEN"}
    assert signer.environment["WALLET_ENCRYPTION_KEYS"] == f"w1:file://{tmp_path}/var/signer/wallet.key"
    assert not {"WALLET_ENCRYPTION_KEYS", "VAULT_TOKEN", "PKCS11_PIN", "SIGNER_DATABASE_URL"} & plan.environment.keys()
    assert plan.environment["SIGNER_SOCKET"] == signer.environment["SIGNER_SOCKET"]
    key = tmp_path / "var" / "signer" / "wallet.key"
    assert [stat.S_IMODE(each.stat().st_mode) for each in (key, key.parent)] == [0o400, 0o700]


def test_a_key_is_made_once_and_wallets_can_be_opened_without_the_signer_again(tmp_path: Path) -> None:
    key = tmp_path / "var" / "signer" / "wallet.key"
    plan, signer = started(tmp_path)
    assert (signer, key.exists(), "WALLET_ENCRYPTION_KEYS" in plan.environment) == (None, False, False)
    started(tmp_path, RUN_SIGNER="1")
    made = key.read_bytes()
    assert len(made) == 32
    started(tmp_path, RUN_SIGNER="1")
    assert key.read_bytes() == made
    plan, signer = started(tmp_path, RUN_SIGNER="0")
    assert signer is None
    assert plan.environment["WALLET_ENCRYPTION_KEYS"] == f"local,w1:file://{key}"


def test_a_command_beside_a_running_signer_gets_no_key(tmp_path: Path) -> None:
    started(tmp_path, RUN_SIGNER="1")
    for given, expected in ({"SIGNER_SOCKET": "/run/s"}, None), ({"RUN_SIGNER": "1"}, "w1:file://"):
        plan = read_settings(tmp_path, given, {})
        add_wallet_key(plan)
        assert (plan.environment.get("WALLET_ENCRYPTION_KEYS") or "")[:10] == (expected or "")
