"""The whole service on one machine, from nothing to its address: the order of things and what is said."""

from __future__ import annotations

import http.client
import shutil
import sys
from collections.abc import Callable, Mapping

from launcher import browser, network_ports, redis_server, schema
from launcher.errors import LauncherError
from launcher.instance import Instance
from launcher.procfile import read_procfile
from launcher.settings import DATABASE_FILE, SECRETS_FILE, Plan, complete
from launcher.supervisor import Program, Supervisor

SHOPPER = "shopper"
SANDBOX_READY_LINE = "sandbox ready"
_SERVERS, _CHAINS, _SERVICE = range(3)  # tiers: what needs what
_REDIS_START_SECONDS = 10.0
_WEB_START_SECONDS = 60.0
_OWN_FILES = (SECRETS_FILE, "launcher.json", "redis", "sandbox")


def run(plan: Plan) -> None:
    """Run the service until a signal asks for its end.

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
        instance.note(address=plan.address, settings=plan.chosen)
        with Supervisor(
            folder=plan.root, mark=instance.mark, output=sys.stdout, on_spawn=instance.note_child
        ) as supervisor:
            if reaped:
                supervisor.say(f"Ended {len(reaped)} processes that a killed ./run had left behind.")
            if _start(plan, supervisor):
                supervisor.say(welcome(plan))
                supervisor.serve()
            supervisor.say("Stopping (Ctrl-C again to stop at once) ...")
        print("Stopped.", flush=True)
    finally:
        instance.release()


def reset(plan: Plan) -> None:
    """Delete what the sandbox keeps: wallets, balances, keys and chains. Other files in the folder stay.

    Raises: LauncherError when the service runs.
    """
    if not plan.var.exists():
        return
    instance = Instance(plan.var)
    instance.acquire()
    try:
        for path in [*(plan.var / name for name in _OWN_FILES), *plan.var.glob(f"{DATABASE_FILE}*")]:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
    finally:
        instance.release()


def welcome(plan: Plan) -> str:
    """Return what a newcomer needs: the addresses, the sandbox's master key, and something to try."""
    url = plan.address
    lines = ["", f"Purser runs on {url}  ({plan.network}; Ctrl-C stops it)", f"  documentation  {url}/docs"]
    if plan.network == "sandbox":
        post, body = "curl -s -X POST", "-H 'Content-Type: application/json' -d"
        pick = '$(echo "$AGENT" | grep -o'
        key = f"KEY={pick} 'ak_[A-Za-z0-9_-]*')"
        wallet = f"""WALLET={pick} '"id": *"[^"]*' | cut -d '"' -f 4)"""
        fund = """'{"chain": "base", "currency": "USDC", "amount": "25"}'"""
        lines += [
            f"  master key     {plan.environment['BOOTSTRAP_MASTER_KEY']}  (X-Master-Key, this sandbox only)",
            "",
            "Try it: register an agent, have the sandbox fund its wallet, see the money arrive.",
            f"""AGENT=$({post} {url}/v1/agents/register {body} '{{"name": "demo"}}'); {key}; {wallet}""",
            f"""{post} {url}/v1/wallets/$WALLET/fund -H "X-API-Key: $KEY" {body} {fund}""",
            f"""sleep 5; curl -s {url}/v1/wallets/$WALLET/balances -H "X-API-Key: $KEY\"""",
        ]
    return "\n".join([*lines, ""])


def _start(plan: Plan, supervisor: Supervisor) -> bool:
    """Bring everything up in order; return False when asked to stop meanwhile. Raises: LauncherError."""
    commands = read_procfile(plan.root / "Procfile")
    if plan.redis_port is not None:
        _start_redis(plan, supervisor, plan.redis_port)
    if plan.sandbox_ports:
        known = (plan.var / "sandbox").exists()
        first = "" if known else " (a machine's first start fetches them: a minute or two)"
        supervisor.say(f"Starting the sandbox chains{first} ...")
        supervisor.start(Program("sandbox", _sandbox_command(plan), plan.environment, _CHAINS, 15))
    if not _has_newest_schema(plan, commands["release"]):
        supervisor.say("Preparing the database ...")
        release = Program("release", _resolve(plan, commands["release"]), plan.environment, _SERVICE)
        if supervisor.run(release) != 0 and not supervisor.stopping:
            raise LauncherError("The database could not be prepared: see the lines above.")
    # The web process needs no chain to start, so it does so beside them; what works on them waits.
    _start_processes(plan, supervisor, {"web": commands.pop("web")})
    _await(supervisor, lambda: _is_healthy(plan.port), "The web process", _WEB_START_SECONDS)
    if plan.sandbox_ports:
        _await(supervisor, lambda: SANDBOX_READY_LINE in supervisor.printed("sandbox"), "The sandbox", None)
    if SHOPPER in commands and not browser.is_there(plan.environment):
        del commands[SHOPPER]
        supervisor.say(browser.MEND)
    _start_processes(plan, supervisor, commands)
    return not supervisor.stopping


def _start_processes(plan: Plan, supervisor: Supervisor, commands: Mapping[str, tuple[str, ...]]) -> None:
    for name, command in commands.items():
        if name != "release" and not supervisor.stopping:
            supervisor.start(Program(name, _resolve(plan, command), plan.environment, _SERVICE, 28))


def _has_newest_schema(plan: Plan, release: tuple[str, ...]) -> bool:
    # Only where the release command does nothing else than what is looked at here.
    return (
        plan.embeds_database
        and release[-2:] == ("db", "upgrade")
        and schema.is_current(plan.var / DATABASE_FILE, plan.root / "migrations" / "versions")
    )


def _start_redis(plan: Plan, supervisor: Supervisor, port: int) -> None:
    program = redis_server.find_program()
    if program is None:
        raise LauncherError(redis_server.MEND)
    folder = plan.var / "redis"
    folder.mkdir(mode=0o700, exist_ok=True)
    command = redis_server.command(program, port=port, folder=folder)
    supervisor.start(Program("redis", command, plan.environment, _SERVERS))
    _await(supervisor, lambda: network_ports.answers(port), "The embedded Redis", _REDIS_START_SECONDS)


def _sandbox_command(plan: Plan) -> list[str]:
    options = []
    for name, port in plan.sandbox_ports.items():
        options += [f"--{name.split('_')[0].lower()}-port", str(port)]
    return [
        str(plan.root / ".venv/bin/python"),
        "-m",
        "sandbox",
        "--state",
        str(plan.var / "sandbox"),
        *options,
    ]


def _resolve(plan: Plan, command: tuple[str, ...]) -> list[str]:
    found = shutil.which(command[0], path=plan.environment["PATH"])
    if found is None:
        raise LauncherError(f"{command[0]} (named in Procfile) is not installed in .venv.")
    return [found, *command[1:]]


def _await(supervisor: Supervisor, condition: Callable[[], bool], what: str, timeout: float | None) -> None:
    if not supervisor.wait(condition, timeout) and not supervisor.stopping:
        # What is waited for may well be in order: another program that dies again and again ends the wait.
        name = supervisor.hopeless
        who = what if name is None else name.capitalize()
        raise LauncherError(f"{who} did not start: see the lines above.")


def _is_healthy(port: int) -> bool:
    connection = http.client.HTTPConnection(network_ports.LOOPBACK, port, timeout=5)
    try:
        connection.request("GET", "/v1/health")
        return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
