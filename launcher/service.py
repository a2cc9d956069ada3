"""Startup of the whole service on one machine: the order of its processes and the messages."""

from __future__ import annotations

import http.client
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from launcher import browser, forks, network_ports, redis_server, schema, signer_process
from launcher.errors import LauncherError
from launcher.instance import Instance
from launcher.procfile import read_procfile
from launcher.settings import DATABASE_FILE, SECRETS_FILE, Plan, complete
from launcher.starting import StartingListener
from launcher.supervisor import Program, Supervisor

SHOPPER = "shopper"
SANDBOX_READY_LINE = "sandbox ready"
_SERVERS, _CHAINS, _SERVICE = range(3)  # tiers, by dependency
_REDIS_START_SECONDS = 10.0
_WEB_START_SECONDS = 60.0
_SIGNER_START_SECONDS = 60.0
_SANDBOX_FILES = (SECRETS_FILE, "launcher.json", "redis", "sandbox", signer_process.FOLDER)


def run(plan: Plan, *, preloaded: Sequence[str] = forks.SERVICE_MODULES) -> None:
    """Run the service until a signal stops it, in forks that share these modules.

    Raises: LauncherError when it cannot start.
    """
    plan.var.mkdir(mode=0o700, parents=True, exist_ok=True)
    instance = Instance(plan.var)
    reaped = instance.acquire()
    try:
        if not network_ports.is_free(plan.port):
            raise LauncherError(
                f"Port {plan.port} is taken by another program: stop it, or choose another: PORT=8001 ./run."
            )
        complete(plan)
        signer = signer_process.add_signer(plan, tier=_CHAINS)
        instance.record_address(address=plan.address, settings=plan.embedded_addresses)
        with Supervisor(
            folder=plan.root, marker=instance.marker, output=sys.stdout, on_spawn=instance.record_child
        ) as supervisor:
            if reaped:
                supervisor.print_line(f"Terminated {len(reaped)} processes of a ./run that was killed.")
            if _start(plan, supervisor, preloaded, signer):
                supervisor.print_line(welcome_text(plan))
                supervisor.serve()
            supervisor.print_line("Stopping (Ctrl-C again to stop immediately) ...")
        print("Stopped.", flush=True)
    finally:
        instance.release()


def reset(plan: Plan) -> None:
    """Delete the wallets, balances, keys and chains of the sandbox. Other files in the folder stay.

    Raises: LauncherError while the service runs.
    """
    if not plan.var.exists():
        return
    instance = Instance(plan.var)
    instance.acquire()
    try:
        for path in [*(plan.var / name for name in _SANDBOX_FILES), *plan.var.glob(f"{DATABASE_FILE}*")]:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
    finally:
        instance.release()


def welcome_text(plan: Plan) -> str:
    """Return the first message: the addresses, the sandbox's master key and commands to try."""
    url = plan.address
    lines = ["", f"Purser runs on {url}  ({plan.network}; Ctrl-C stops it)", f"  documentation  {url}/docs"]
    if plan.network == "sandbox":
        post, body = "curl -s -X POST", "-H 'Content-Type: application/json' -d"
        extract_command = '$(echo "$AGENT" | grep -o'
        key = f"KEY={extract_command} 'ak_[A-Za-z0-9_-]*')"
        wallet = f"""WALLET={extract_command} '"id": *"[^"]*' | cut -d '"' -f 4)"""
        fund = """'{"chain": "base", "currency": "USDC", "amount": "25"}'"""
        if faucet := plan.environment.get("FAUCET_URL"):
            lines.append(f"  faucet         {faucet}")
        lines += [
            f"  master key     {plan.environment['BOOTSTRAP_MASTER_KEY']}  (X-Master-Key, this sandbox only)",
            "",
            "Try it: register an agent, have the sandbox fund its wallet, see the money arrive.",
            f"""AGENT=$({post} {url}/v1/agents/register {body} '{{"name": "demo"}}'); {key}; {wallet}""",
            f"""{post} {url}/v1/wallets/$WALLET/fund -H "X-API-Key: $KEY" {body} {fund}""",
            f"""sleep 5; curl -s {url}/v1/wallets/$WALLET/balances -H "X-API-Key: $KEY\"""",
        ]
    return "\n".join([*lines, ""])


def _start(plan: Plan, supervisor: Supervisor, preloaded: Sequence[str], signer: Program | None) -> bool:
    """Start everything in order; return False if a signal interrupts it. Raises: LauncherError."""
    commands = read_procfile(plan.root / "Procfile")
    listener = _listen(plan, _resolve(plan, commands["web"]))
    if listener is not None:
        supervisor.watch(listener)
    if plan.redis_port is not None:
        _start_redis(plan, supervisor, plan.redis_port)
    if plan.sandbox_ports:
        known = (plan.var / "sandbox").exists()
        first = "" if known else " (the first start downloads them: a minute or two)"
        supervisor.print_line(f"Starting the sandbox chains{first} ...")
        supervisor.start(Program("sandbox", _sandbox_command(plan), plan.non_secret_environment, _CHAINS, 15))
    _preload(plan, supervisor, preloaded)
    if not _has_newest_schema(plan, commands["release"]):
        supervisor.print_line("Preparing the database ...")
        command = _resolve(plan, commands["release"])
        release = Program("release", command, plan.environment, _SERVICE, is_service=True, is_quiet=True)
        if supervisor.run(release) != 0 and not supervisor.stopping:
            raise LauncherError("The database could not be prepared: see the lines above.")
    if signer is not None:
        supervisor.start(signer)
        socket = Path(plan.environment["SIGNER_SOCKET"])
        _wait_until(supervisor, socket.exists, "The signer process", _SIGNER_START_SECONDS)
    if plan.sandbox_ports:
        _wait_until(supervisor, lambda: SANDBOX_READY_LINE in supervisor.recent_output("sandbox"), "The sandbox", None)
    _start_processes(plan, supervisor, {"web": commands.pop("web")}, listener)
    _wait_until(supervisor, lambda: _is_healthy(plan.port), "The web process", _WEB_START_SECONDS)
    if SHOPPER in commands and (obstacle := browser.obstacle(plan.environment)):
        del commands[SHOPPER]
        supervisor.print_line(obstacle)
    _start_processes(plan, supervisor, commands)
    return not supervisor.stopping


def _listen(plan: Plan, web: list[str]) -> StartingListener | None:
    """Listen on the port until the chains work; None without chains, or if the web process chooses its address."""
    chooses_address = any(plan.environment.get(name) for name in ("GUNICORN_CMD_ARGS", "SANDBOX_PUBLIC"))
    if not plan.sandbox_ports or chooses_address or forks.entry_point(web) is None:
        return None
    return StartingListener(network_ports.LOOPBACK, plan.port)


def _start_processes(
    plan: Plan,
    supervisor: Supervisor,
    commands: Mapping[str, tuple[str, ...]],
    listener: StartingListener | None = None,
) -> None:
    for name, command in commands.items():
        if name != "release" and not supervisor.stopping:
            program = _resolve(plan, command)
            supervisor.start(Program(name, program, plan.environment, _SERVICE, 28, is_service=True, listener=listener))


def _preload(plan: Plan, supervisor: Supervisor, modules: Sequence[str]) -> None:
    """Load what the forks share. Raises: LauncherError."""
    try:
        for _name in forks.preload(modules if forks.CAN_FORK else (), plan.environment):
            if supervisor.stopping:
                return
    except SystemExit as end:
        # Invalid settings, one per line.
        raise LauncherError(str(end)) from None
    except Exception as error:
        raise LauncherError(f"The service could not be loaded: {type(error).__name__}: {error}.") from error


def _has_newest_schema(plan: Plan, release: tuple[str, ...]) -> bool:
    # Only if the release command just migrates.
    return (
        plan.embeds_database
        and release[-2:] == ("db", "upgrade")
        and schema.is_current(plan.var / DATABASE_FILE, plan.root / "migrations" / "versions")
    )


def _start_redis(plan: Plan, supervisor: Supervisor, port: int) -> None:
    program = redis_server.find_program()
    if program is None:
        raise LauncherError(redis_server.INSTALL_HINT)
    folder = plan.var / "redis"
    folder.mkdir(mode=0o700, exist_ok=True)
    command = redis_server.command(program, port=port, folder=folder, password=plan.redis_password)
    supervisor.start(Program("redis", command, plan.non_secret_environment, _SERVERS, is_quiet=True))
    _wait_until(supervisor, lambda: network_ports.accepts_connections(port), "The embedded Redis", _REDIS_START_SECONDS)


def _sandbox_command(plan: Plan) -> list[str]:
    options = []
    for name, port in plan.sandbox_ports.items():
        options += [f"--{name.split('_')[0].lower()}-port", str(port)]
    return [str(plan.root / ".venv/bin/python"), "-m", "sandbox", "--state", str(plan.var / "sandbox"), *options]


def _resolve(plan: Plan, command: tuple[str, ...]) -> list[str]:
    found = shutil.which(command[0], path=plan.environment["PATH"])
    if found is None:
        raise LauncherError(f"{command[0]} (named in Procfile) is not installed in .venv.")
    return [found, *command[1:]]


def _wait_until(supervisor: Supervisor, condition: Callable[[], bool], waiting_for: str, timeout: float | None) -> None:
    if not supervisor.wait(condition, timeout) and not supervisor.stopping:
        # Another program in a crash loop also ends the wait.
        name = supervisor.crash_looping
        supervisor.show_quiet()
        program_name = waiting_for if name is None else name.capitalize()
        raise LauncherError(f"{program_name} did not start: see the lines above.")


def _is_healthy(port: int) -> bool:
    connection = http.client.HTTPConnection(network_ports.LOOPBACK, port, timeout=5)
    try:
        connection.request("GET", "/v1/health")
        return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
