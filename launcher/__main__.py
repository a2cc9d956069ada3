"""The command line of `./run`."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from launcher import processes
from launcher.errors import LauncherError
from launcher.instance import read_record
from launcher.settings import Plan, complete, read_dotenv, read_settings
from launcher.signer_process import add_wallet_key

ROOT = Path(__file__).resolve().parent.parent


def main(arguments: list[str]) -> int:
    """Parse the command line and run it; return the exit status."""
    processes.harden()
    options = _parser().parse_args(arguments)
    try:
        plan = read_settings(ROOT, os.environ, read_dotenv(ROOT / ".env"))
        if options.command:
            return _run_command(plan, options.command)
        from launcher import service  # noqa: PLC0415 - not needed to run a command

        if options.reset:
            if not _confirms_reset(plan, confirmed=options.yes):
                return 1
            service.reset(plan)
        service.run(plan)
    except LauncherError as error:
        print(error, file=sys.stderr)
        return error.status
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="./run",
        description="Run the whole service on this machine: web, worker, scheduler, an embedded "
        "Redis-compatible server, SQLite, and the sandbox chains. Ctrl-C stops all of it.",
        epilog="Settings come from the environment and .env (docs/configuration.md): PORT (8000), "
        "NETWORK (sandbox), DATABASE_URL, REDIS_URL, ETHEREUM_RPC_URL, BASE_RPC_URL, SOLANA_RPC_URL, "
        "VAR_DIR (var), RUN_SIGNER (0; 1 adds a signer process) and more.",
    )
    parser.add_argument("--reset", action="store_true", help="delete the sandbox's wallets, keys and chains first")
    parser.add_argument("--yes", action="store_true", help="delete without asking")
    parser.add_argument(
        "command",
        nargs=argparse.REMAINDER,
        help="run one command with the service's settings instead, such as: flask --app wsgi shell",
    )
    return parser


def _confirms_reset(plan: Plan, *, confirmed: bool) -> bool:
    if plan.network != "sandbox":
        raise LauncherError(f"--reset is for the sandbox; NETWORK is {plan.network}.", status=2)
    if not confirmed:
        print(f"Delete the wallets, balances, keys and chains in {plan.var}? [y/N] ", end="", flush=True)
        if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
            print("Nothing deleted.")
            return False
    return True


def _run_command(plan: Plan, command: list[str]) -> int:
    """Run one command with the settings of the running service, or those that it would start with."""
    for name, value in read_record(plan.var / "launcher.json").get("settings", {}).items():
        plan.environment.setdefault(name, value)
    complete(plan)
    add_wallet_key(plan)
    try:
        return subprocess.run(command, env=plan.environment, check=False).returncode
    except FileNotFoundError:
        raise LauncherError(f"{command[0]}: no such command.", status=127) from None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
