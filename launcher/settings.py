"""The settings of all processes: from the environment, then `.env`; what neither sets is generated."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dotenv.parser import parse_stream

from launcher import network_ports
from launcher.errors import LauncherError
from launcher.sandbox_secrets import ensure_secrets

DATABASE_FILE = "purser.sqlite"
SECRETS_FILE = "secrets.env"
CHAIN_PORTS = {"ETHEREUM_RPC_URL": 18545, "BASE_RPC_URL": 18546, "SOLANA_RPC_URL": 18899}
SERVICE_PORTS = {
    "FAUCET_URL": 18547,
    "PERPDEX_BASE_URL": 18548,
    "JUPITER_BASE_URL": 18549,
    "CCTP_ATTESTATION_URL": 18550,
    "OPENAI_BASE_URL": 18551,
}
SHARED_BRIDGE_PATHS = {"RELAY_BASE_URL": "", "LIFI_BASE_URL": "/v1"}
"""The sandbox serves all bridge services at one address."""
# Of app.config, which takes longer to import than a short command does; a test compares them.
REQUIRED = ("SECRET_KEY", "CODE_PEPPERS", "ENCRYPTION_KEYS")
DEFAULT_PORT = 8000
REDIS_PORT = 16379
_PORTS_EACH = 10
_SERVICES = 1_000
_LAST_PORT = 65_535
# Variables for programs other than the service: paths and network access, no setting of the service.
_NON_SECRET_VARIABLES = re.compile(
    r"PATH|HOME|USER|LANG|LC_\w+|TZ|TMPDIR|XDG_\w+|LD_LIBRARY_PATH|ANVIL|NODE_\w+|SSL_CERT_\w+"
    r"|(?i:npm_config_\w+|(https?|all|no)_proxy)"
)


@dataclass(slots=True)
class Plan:
    """The processes to run and their settings. Ports are added to `environment` as they are chosen."""

    root: Path
    var: Path
    environment: dict[str, str]
    network: str
    port: int
    embeds_database: bool = False
    redis_port: int | None = None
    redis_password: str = field(default="", repr=False)
    sandbox_ports: dict[str, int] = field(default_factory=dict)
    embedded_addresses: dict[str, str] = field(default_factory=dict)
    """The settings for which an embedded server is started."""

    @property
    def non_secret_environment(self) -> dict[str, str]:
        """Return the environment for programs other than the service, such as Redis; it contains no secret."""
        return {name: value for name, value in self.environment.items() if _NON_SECRET_VARIABLES.fullmatch(name)}

    @property
    def address(self) -> str:
        """Return the address of the service on this machine."""
        return f"http://{network_ports.LOOPBACK}:{self.port}"


def read_dotenv(path: Path) -> dict[str, str]:
    """Return the settings of a file of KEY=VALUE lines, none if it does not exist.

    Raises: LauncherError naming a line that is neither a setting nor a comment (its content may be secret).
    """
    try:
        with path.open() as file:
            lines = list(parse_stream(file))
    except FileNotFoundError:
        return {}
    for line in lines:
        if line.error or (line.key and line.value is None):
            # The text of a line begins with the empty ones before it.
            text = line.original.string
            number = line.original.line + text[: len(text) - len(text.lstrip())].count("\n")
            raise LauncherError(f"{path.name} line {number} is not KEY=VALUE.", status=2)
    return {line.key: line.value or "" for line in lines if line.key}


def read_settings(root: Path, environment: Mapping[str, str], dotenv: Mapping[str, str]) -> Plan:
    """Combine the given settings, the environment first; generate nothing.

    Raises: LauncherError naming what is missing or malformed.
    """
    # An empty setting counts as absent, as in the service.
    merged = {**dotenv, **{name: value for name, value in environment.items() if value or name not in dotenv}}
    var = Path(merged.get("VAR_DIR") or root / "var").absolute()
    network = merged.get("NETWORK") or "sandbox"
    text = merged.get("PORT") or str(DEFAULT_PORT)
    if not text.isascii() or not text.isdigit() or not 0 < int(text) <= _LAST_PORT:
        raise LauncherError(f"PORT must be a number from 1 to {_LAST_PORT}, not {text!r}.", status=2)
    missing = [name for name in REQUIRED if not merged.get(name)]
    if network != "sandbox" and missing:
        raise LauncherError(
            f"NETWORK={network} needs {', '.join(missing)}: set them in the environment or in .env "
            "(docs/configuration.md explains how to create them).",
            status=2,
        )
    merged |= {"NETWORK": network, "PORT": text, "VIRTUAL_ENV": str(root / ".venv")}
    merged["PATH"] = f"{root / '.venv' / 'bin'}{os.pathsep}{merged.get('PATH') or os.defpath}"
    plan = Plan(root, var, merged, network, int(text))
    merged["BASE_URL"] = merged.get("BASE_URL") or plan.address
    if network != "sandbox" and not any(option in merged.get("GUNICORN_CMD_ARGS", "") for option in ("-b", "--bind")):
        # Loopback only on this machine. On a host, and in the sandbox, gunicorn.conf.py decides.
        bind = f"--bind {network_ports.LOOPBACK}:{text}"
        merged["GUNICORN_CMD_ARGS"] = f"{bind} {merged.get('GUNICORN_CMD_ARGS', '')}".strip()
    return plan


def complete(plan: Plan) -> None:
    """Add the secrets, the addresses of the embedded servers and free ports. Creates `var/`.

    Raises: LauncherError when the secrets of an existing database are gone.
    """
    plan.var.mkdir(mode=0o700, parents=True, exist_ok=True)
    settings = plan.environment
    if plan.network == "sandbox":
        _add_secrets(plan)
    if not settings.get("DATABASE_URL"):
        plan.embeds_database = True
        plan.embedded_addresses["DATABASE_URL"] = f"sqlite:///{plan.var / DATABASE_FILE}"
    settings["AUDIT_WITNESS_FILE"] = settings.get("AUDIT_WITNESS_FILE") or str(plan.var / "audit-heads.log")
    taken = {plan.port}
    # Services on other ports that start at the same moment look for ports of their own from different numbers on.
    offset = (plan.port - DEFAULT_PORT) % _SERVICES * _PORTS_EACH
    if not settings.get("REDIS_URL"):
        plan.redis_port = network_ports.choose_port(REDIS_PORT + offset, taken=taken)
        taken.add(plan.redis_port)
        plan.redis_password = secrets.token_hex(32)
        address = f"{network_ports.LOOPBACK}:{plan.redis_port}"
        plan.embedded_addresses["REDIS_URL"] = f"redis://:{plan.redis_password}@{address}/0"
    if plan.network == "sandbox" and not all(settings.get(name) for name in CHAIN_PORTS):
        for name, preferred in {**CHAIN_PORTS, **SERVICE_PORTS}.items():
            width = 2 if name == "SOLANA_RPC_URL" else 1  # its WebSocket is one port above
            port = network_ports.choose_port(preferred + offset, taken=taken, search_width=width)
            taken |= set(range(port, port + width))
            plan.sandbox_ports[name] = port
            if not settings.get(name):
                plan.embedded_addresses[name] = f"http://{network_ports.LOOPBACK}:{port}"
        models = plan.embedded_addresses.pop("OPENAI_BASE_URL", "")
        if models and not settings.get("OPENAI_API_KEY"):
            plan.embedded_addresses |= {"OPENAI_BASE_URL": f"{models}/v1", "OPENAI_API_KEY": "sk-sandbox"}
        bridges = f"http://{network_ports.LOOPBACK}:{plan.sandbox_ports['CCTP_ATTESTATION_URL']}"
        for name, path in SHARED_BRIDGE_PATHS.items():
            if not settings.get(name):
                plan.embedded_addresses[name] = bridges + path
    settings |= plan.embedded_addresses


def _add_secrets(plan: Plan) -> None:
    path = plan.var / SECRETS_FILE
    given = all(plan.environment.get(name) for name in REQUIRED)
    if (plan.var / DATABASE_FILE).exists() and not path.exists() and not given:
        raise LauncherError(
            f"{path} is gone, and without it the wallets in {DATABASE_FILE} cannot be opened: "
            "restore it, or start over with ./run --reset."
        )
    for name, value in ensure_secrets(path).items():
        plan.environment[name] = plan.environment.get(name) or value
