"""The command line `purser`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any, cast

import click
from click.shell_completion import get_completion_class

from purser import PermissionDenied, Purser, __version__
from purser.cli import login as device
from purser.cli import output
from purser.cli.commands import command
from purser.cli.session import EXIT_CODE_TEXT, Session, common

_EXAMPLES = """\
  purser register --name walker
  purser fund --chain base --currency USDC --amount 25
  purser balance
  purser transfer --chain base --currency USDC --amount 12.5 --to 0x… --yes --json
  purser pay https://api.example.com/report --max-amount-usd 0.10
  purser events --follow"""


_HELP = f"Wallets for agents with spending limits, and an API gateway.\n\n\b\n{_EXAMPLES}"


@click.group(help=_HELP, epilog=EXIT_CODE_TEXT)
@click.version_option(__version__, prog_name="purser")
def main() -> None:
    """Run a command."""


Run = Callable[..., None]


def _add(name: str, text: str, *parameters: click.Parameter, group: click.Group = main) -> Callable[[Run], Run]:
    def add(run: Run) -> Run:
        found = click.Command(name, callback=common(run), params=[*parameters, *common.parameters()], help=text)
        group.add_command(found)
        return run

    return add


@_add(
    "register",
    "Register an agent, and store its key for this service.\n\n\b\n  purser register --name walker",
    click.Option(["--name"], help="1 to 100 characters."),
    click.Option(["--email"], help="The owner's address: only that person can then claim the agent."),
    click.Option(["--yes", "-y"], is_flag=True, help="Replace a stored key."),
)
def register(*, name: str | None, email: str | None, yes: bool, as_json: bool, base_url: str | None) -> None:
    session = Session(base_url)
    _assert_replaceable(session, yes=yes)
    with Purser(base_url=session.base_url) as client:
        given = {key: value for key, value in (("name", name), ("email", email)) if value}
        made = client.register(**given)
    session.stored.save(
        session.base_url, {"api_key": made["apiKey"]}, agent_id=made["agentId"], wallet_id=made["wallet"]["id"]
    )
    shown = {key: value for key, value in made.items() if key != "apiKey"}
    output.print_result(shown, as_json=as_json)
    if not as_json:
        click.echo("The key is stored. The owner claims the agent at the verificationUri.")


@_add(
    "login",
    "Connect to an agent of an owner, who enters a code in a browser.\n\n\b\n  purser login --base-url "
    "https://purser.example.com\n  purser login --with-api-key < key.txt",
    click.Option(["--scope"], multiple=True, type=click.Choice(device.SCOPES), help="A permission; all by default."),
    click.Option(["--with-api-key"], is_flag=True, help="Read a key from a prompt or standard input instead."),
    click.Option(["--yes", "-y"], is_flag=True, help="Replace a stored key."),
)
def login(*, scope: tuple[str, ...], with_api_key: bool, yes: bool, as_json: bool, base_url: str | None) -> None:
    session = Session(base_url)
    _assert_replaceable(session, yes=yes)
    if with_api_key:
        key = click.prompt("API key", hide_input=True) if sys.stdin.isatty() else sys.stdin.readline()
        secret: dict[str, Any] = {"api_key": key.strip()}
    else:
        secret = device.sign_in(session.base_url, scope or device.SCOPES)
    with Purser(base_url=session.base_url, api_key=secret.get("api_key") or secret["access_token"]) as client:
        wallets = [] if secret.get("api_key", "").startswith("gw_") else client.list_wallets()["wallets"]
    wallet_id = min(wallets, key=lambda each: each["created_at"])["id"] if wallets else None
    session.stored.save(session.base_url, secret, wallet_id=wallet_id)
    output.print_result({"base_url": session.base_url, "wallet_id": wallet_id}, as_json=as_json)


@_add("logout", "Delete the stored key of this service, and end a connection made by login.")
def logout(*, as_json: bool, base_url: str | None) -> None:
    session = Session(base_url)
    stored = session.stored.load(session.base_url)
    if "refresh_token" in stored:
        device.revoke(session.base_url, stored)
    session.stored.delete(session.base_url)
    output.print_result({"base_url": session.base_url, "signed_in": False}, as_json=as_json)


@_add(
    "balance",
    "Show the wallet's balances, and the credits.\n\n\b\n  purser balance",
    click.Option(["--wallet-id"], help="The first wallet by default."),
)
def balance(*, wallet_id: str | None, as_json: bool, base_url: str | None) -> None:
    with Session(base_url).client() as client:
        balances = client.get_balances(wallet_id=wallet_id)
        try:
            credits_usd: float | None = client.get_balance()["credits_usd"]
        except PermissionDenied:
            credits_usd = None
    if as_json:
        output.print_result({**balances, "credits_usd": credits_usd}, as_json=True)
        return
    output.print_result(balances["balances"], as_json=False, columns=("chain", "token", "balance", "usd_value"))
    click.echo(f"Credits: {'-' if credits_usd is None else credits_usd} USD")


@_add(
    "events",
    "Show what happened, oldest first.\n\n\b\n  purser events --types transaction.*,payment.confirmed --follow",
    click.Option(["--after"], type=int, default=0, help="The cursor of the last event that was seen."),
    click.Option(["--types"], help="Types, separated by commas."),
    click.Option(["--follow", "-f"], is_flag=True, help="Wait for more, without an end; with --json, one line each."),
)
def events(*, after: int, types: str | None, follow: bool, as_json: bool, base_url: str | None) -> None:
    session, filters = Session(base_url), {} if types is None else {"types": types}
    while True:
        with session.client() as client:
            page = client.list_events(after=after, **cast("Any", filters), **_waiting(follow=follow))
        for event in page["events"]:
            if as_json:
                click.echo(json.dumps(event))
            else:
                data = " ".join(f"{name}={value}" for name, value in event["data"].items() if value is not None)
                click.echo(f"{event['timestamp']}  {event['type']:<24}  {data}")
        after = page["next_after"]
        if not (follow or page["has_more"]):
            return


def _waiting(*, follow: bool) -> dict[str, Any]:
    return {"prefer": "wait=25"} if follow else {}


@main.group("sandbox", help="Test money of a local sandbox.")
def sandbox() -> None:
    """Run a command for the sandbox."""


@_add(
    "faucet",
    "Have the faucet pay an address, the wallet's by default.\n\n\b\n"
    "  purser sandbox faucet --chain base --currency USDC --amount 25",
    click.Option(["--chain"], required=True, type=click.Choice(["ethereum", "base", "solana"])),
    click.Option(["--currency"], required=True, type=click.Choice(["ETH", "SOL", "USDC"])),
    click.Option(["--amount"], required=True),
    click.Option(["--address"]),
    click.Option(["--faucet-url"], envvar="PURSER_FAUCET_URL", help="http://127.0.0.1:18547 by default."),
    group=sandbox,
)
def faucet(*, as_json: bool, base_url: str | None, **order: Any) -> None:
    with Session(base_url).client() as client:
        output.print_result({"tx_hash": client.faucet(**order)}, as_json=as_json)


@main.command("completion", help='Print the script of a shell\'s completion.\n\n\b\n  eval "$(purser completion bash)"')
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    found = get_completion_class(shell)
    if found is not None:
        click.echo(found(main, {}, "purser", "_PURSER_COMPLETE").source())


def _assert_replaceable(session: Session, *, yes: bool) -> None:
    """Ask before a key is replaced that is stored nowhere else."""
    if session.stored.load(session.base_url) and not yes:
        message = f"A key for {session.base_url} is stored, and would be lost"
        if not sys.stdin.isatty():
            raise click.UsageError(f"{message}: replace it with --yes.")
        click.confirm(f"{message}. Replace it?", abort=True)


_MOVEMENTS = {
    "transfer": "  purser transfer --chain base --currency USDC --amount 12.5 --to 0x…",
    "withdraw": "  purser withdraw --chain base --currency USDC --amount 12.5 --to 0x…",
    "swap": "  purser swap --chain base --input-token USDC --output-token ETH --amount 10",
    "bridge": "  purser bridge --source-chain base --destination-chain ethereum --token USDC --amount 2",
}
_TABLES = {
    "transactions": ("list_transactions", "transactions", "created_at type amount currency chain status id"),
    "approvals": ("list_approvals", "approvals", "id kind value_usd recipient status expires_at"),
    "usage": ("get_usage", "logs", "created_at provider model tokens_in tokens_out cost_usd"),
    "services": ("list_catalog", "services", "id name category price_per_call_usd total_calls"),
}
_FILTERS = {"transactions": "--status pending", "approvals": "--status awaiting", "services": "--q weather"}
for _name, _examples in _MOVEMENTS.items():
    main.add_command(command(_name, is_movement=True, can_wait=True, examples=_examples))
for _name, (_operation, _rows, _columns) in _TABLES.items():
    _examples = f"  purser {_name} {_FILTERS.get(_name, '--limit 10')}"
    main.add_command(command(_operation, name=_name, rows=_rows, columns=_columns.split(), examples=_examples))
main.add_command(command("fund", can_wait=True, examples="  purser fund --chain base --currency USDC --amount 25"))
_examples = "  purser pay https://api.example.com/report --max-amount-usd 0.10 --headers Accept=application/json"
main.add_command(command("pay", arguments=("url",), is_movement=True, examples=_examples))
