"""The settings of all processes: the environment, below it `.env`, below that what is made here."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from launcher import network_ports
from launcher.errors import LauncherError
from launcher.secret_file import REQUIRED_OUTSIDE_SANDBOX, ensure_secrets

DATABASE_FILE = "purser.sqlite"
SECRETS_FILE = "secrets.env"
CHAIN_PORTS = {"ETHEREUM_RPC_URL": 18545, "BASE_RPC_URL": 18546, "SOLANA_RPC_URL": 18899}
SERVICE_PORTS = {
    "FAUCET_URL": 18547,
    "PERPDEX_BASE_URL": 18548,
    "JUPITER_BASE_URL": 18549,
    "CCTP_ATTESTATION_URL": 18550,
}
BESIDE_ATTESTATIONS = {"RELAY_BASE_URL": "", "LIFI_BASE_URL": "/v1"}
"""The sandbox has all that bridges rely on at one address."""
REDIS_PORT = 16379
_DEFAULT_PORT = 8000
_LAST_PORT = 65_535


@dataclass(slots=True)
class Plan:
    """What to run and with which settings. `environment` grows while the parts take their ports."""

    root: Path
    var: Path
    environment: dict[str, str]
    network: str
    port: int
    embeds_database: bool = False
    redis_port: int | None = None
    sandbox_ports: dict[str, int] = field(default_factory=dict)
    chosen: dict[str, str] = field(default_factory=dict)
    """The addresses of the embedded servers, which nobody has set."""

    @property
    def address(self) -> str:
        """Return where the service answers on this machine."""
        return f"http://{network_ports.LOOPBACK}:{self.port}"


def read_settings(root: Path, environment: Mapping[str, str], dotenv: Mapping[str, str]) -> Plan:
    """Put the given settings together, the environment first; make nothing.

    Raises: LauncherError naming what is missing or malformed.
    """
    # An empty setting is an absent one, as the service reads it.
    merged = {**dotenv, **{name: value for name, value in environment.items() if value or name not in dotenv}}
    var = Path(merged.get("VAR_DIR") or root / "var").absolute()
    network = merged.get("NETWORK") or "sandbox"
    text = merged.get("PORT") or str(_DEFAULT_PORT)
    if not text.isascii() or not text.isdigit() or not 0 < int(text) <= _LAST_PORT:
        raise LauncherError(f"PORT must be a number from 1 to {_LAST_PORT}, not {text!r}.", status=2)
    missing = [name for name in REQUIRED_OUTSIDE_SANDBOX if not merged.get(name)]
    if network != "sandbox" and missing:
        raise LauncherError(
            f"NETWORK={network} needs {', '.join(missing)}: set them in the environment or in .env "
            "(docs/configuration.md says how to make them).",
            status=2,
        )
    merged |= {"NETWORK": network, "PORT": text, "VIRTUAL_ENV": str(root / ".venv")}
    merged["PATH"] = f"{root / '.venv' / 'bin'}{os.pathsep}{merged.get('PATH') or os.defpath}"
    plan = Plan(root, var, merged, network, int(text))
    merged["BASE_URL"] = merged.get("BASE_URL") or plan.address
    if not any(option in merged.get("GUNICORN_CMD_ARGS", "") for option in ("-b", "--bind")):
        # Here the service is for this machine; on a host, gunicorn.conf.py listens to all of the network.
        bind = f"--bind {network_ports.LOOPBACK}:{text}"
        merged["GUNICORN_CMD_ARGS"] = f"{bind} {merged.get('GUNICORN_CMD_ARGS', '')}".strip()
    return plan


def complete(plan: Plan) -> None:
    """Add the secrets, the embedded servers' addresses and the ports that are free now. Makes `var/`.

    Raises: LauncherError when the secrets of an existing database are gone.
    """
    plan.var.mkdir(mode=0o700, parents=True, exist_ok=True)
    settings = plan.environment
    if plan.network == "sandbox":
        _add_secrets(plan)
    if not settings.get("DATABASE_URL"):
        plan.embeds_database = True
        plan.chosen["DATABASE_URL"] = f"sqlite:///{plan.var / DATABASE_FILE}"
    taken = {plan.port}
    if not settings.get("REDIS_URL"):
        plan.redis_port = network_ports.choose(REDIS_PORT, taken=taken)
        taken.add(plan.redis_port)
        plan.chosen["REDIS_URL"] = f"redis://{network_ports.LOOPBACK}:{plan.redis_port}/0"
    if plan.network == "sandbox" and not all(settings.get(name) for name in CHAIN_PORTS):
        for name, preferred in {**CHAIN_PORTS, **SERVICE_PORTS}.items():
            width = 2 if name == "SOLANA_RPC_URL" else 1  # its WebSocket is one port above
            port = network_ports.choose(preferred, taken=taken, width=width)
            taken |= set(range(port, port + width))
            plan.sandbox_ports[name] = port
            if not settings.get(name):
                plan.chosen[name] = f"http://{network_ports.LOOPBACK}:{port}"
        bridges = f"http://{network_ports.LOOPBACK}:{plan.sandbox_ports['CCTP_ATTESTATION_URL']}"
        for name, path in BESIDE_ATTESTATIONS.items():
            if not settings.get(name):
                plan.chosen[name] = bridges + path
    settings |= plan.chosen


def _add_secrets(plan: Plan) -> None:
    path = plan.var / SECRETS_FILE
    given = all(plan.environment.get(name) for name in REQUIRED_OUTSIDE_SANDBOX)
    if (plan.var / DATABASE_FILE).exists() and not path.exists() and not given:
        raise LauncherError(
            f"{path} is gone, and without it the wallets in {DATABASE_FILE} cannot be opened: "
            "put it back, or start anew with ./run --reset."
        )
    for name, value in ensure_secrets(path).items():
        plan.environment[name] = plan.environment.get(name) or value
