"""Operator commands: master keys, keys of deleted wallets, the audit log.

They write the same trail as the API. Keys and recovery phrases are printed once, and never logged.
"""

from contextlib import suppress
from http import HTTPStatus
from typing import Any

import click
from flask import current_app
from flask.cli import AppGroup, with_appcontext
from marshmallow import ValidationError, fields

from app.audit_log import actors, verification, witness
from app.audit_log.witness import AuditHeadView
from app.core import clock
from app.core.pagination import PageRequest
from app.core.strict_json import parse_json
from app.db.unit_of_work import read_only_unit
from app.errors import InvalidInput, ServiceError
from app.idempotency.service import Claim
from app.identity.principal import SHELL, MasterKeyRole
from app.observability import telemetry
from app.platform import keys
from app.platform import reconciliation as restoration
from app.ports.errors import PortError
from app.state import app_state
from app.wallets.core import custody
from app.web.client_request import current_request
from app.web.fields import Email, Name
from app.web.view_calls import call_view, refusal_of

_DERIVATION_PATHS = (("EVM (Ethereum, Base)", "m/44'/60'/0'/0/0"), ("Solana", "m/44'/501'/0'/0'"))
_ROLES = [each.value for each in MasterKeyRole]


class OperatorGroup(AppGroup):
    """Commands that log to stderr, and show a refusal as its message."""

    def __init__(self, name: str, help_: str) -> None:
        super().__init__(name, callback=telemetry.redirect_to_stderr, help=help_)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ServiceError as error:
            raise click.ClickException(error.message) from None


master_keys = OperatorGroup("master-keys", "Master keys for the administration of the platform.")
owner_keys = OperatorGroup("owner-keys", "Keys of the owners of agents.")
retired_keys = OperatorGroup(
    "retired-keys", "Keys of deleted wallets, kept for a time so that their funds can be recovered."
)
audit = OperatorGroup("audit", "The audit log of administrative acts.")
groups = (master_keys, owner_keys, retired_keys, audit)


@master_keys.command("create")
@click.option("--name", default=None, help="Its name, such as ops.")
@click.option("--owner-email", default=None, help="The email address of its holder.")
@click.option("--role", type=click.Choice(_ROLES), default="admin", help="What it may do.", show_default=True)
def create_master_key(name: str | None, owner_email: str | None, role: str) -> None:
    """Create a master key and print it: the only output that shows it."""
    made = keys.create_master_key(
        actors.shell_actor(), name=_validated(Name(), name, "--name"), role=MasterKeyRole(role),
        owner_email=_validated(Email(), owner_email, "--owner-email"), claim=Claim.none(),
    )  # fmt: skip
    click.echo(f"{made.id}  {made.name}", err=True)
    click.echo(made.key)


@owner_keys.command("replace")
@click.argument("agent_id")
def replace_owner_key(agent_id: str) -> None:
    """Replace a stolen owner key at once and print the new one. For a lost one, `recover_owner` tells the owner."""
    key = keys.replace_owner_key(actors.shell_actor(), agent_id)
    click.echo("The previous key is no longer valid.", err=True)
    click.echo(key)


@retired_keys.command("list")
@click.option("--limit", default=100, show_default=True, type=click.IntRange(1, 1000))
@click.option("--offset", default=0, show_default=True, type=click.IntRange(min=0))
def list_retired_keys(limit: int, offset: int) -> None:
    """List deleted wallets with kept keys, and the earliest time of their deletion."""
    with read_only_unit() as session:
        page = custody.list_retired(session, PageRequest(limit, offset))
    for each in page.items:
        dates = f"{clock.isoformat(each.retired_at)}  {clock.isoformat(each.purge_after)}"
        click.echo(f"{each.wallet_id}  {each.agent_id}  {dates}  {each.evm_address}  {each.solana_address}")
    click.echo(f"{len(page.items)} of {page.total}", err=True)


@retired_keys.command("export")
@click.argument("wallet_id")
def export_retired_key(wallet_id: str) -> None:
    """Print the recovery phrase of a deleted wallet, which controls all its funds; recorded in the audit log."""
    try:
        wallet, phrase = keys.export_retired_key(actors.shell_actor(), wallet_id)
    except PortError:
        raise click.ClickException("The key cannot be opened: (WALLET_)ENCRYPTION_KEYS lacks its key.") from None
    click.echo(f"Recovery phrase (BIP-39): {phrase}")
    for (chains, path), address in zip(_DERIVATION_PATHS, (wallet.evm_address, wallet.solana_address), strict=True):
        click.echo(f"{chains}: {address} at {path}")
    click.echo("Enter the phrase in a wallet such as MetaMask or Phantom, and clear this screen.", err=True)


@audit.command("verify")
@click.option("--expect", default=None, metavar="NUMBER:HASH", help="A head that was recorded earlier.")
def verify(expect: str | None) -> None:
    """Verify that no entry of the trail was changed or removed; fails with a list of problems."""
    found = verification.verify(newest=None, expected=_parse_head(expect))
    for problem in found["problems"]:
        click.echo(problem, err=True)
    if not found["intact"]:
        raise click.ClickException("The audit log is damaged.")
    recorded = witness.read()
    compared = f"and agrees with {len(recorded.heads)} recorded heads" if recorded else "as far as it goes: no witness"
    click.echo(f"The audit log is intact, {compared}. Record its head: {found['head'].number}:{found['head'].hash}")


@click.command("platform")
@click.option("--idempotency-key", metavar="TEXT", help="Repeated with it, an operation returns its first response.")
@click.argument("operation", default="")
@click.argument("arguments", nargs=-1, metavar="[NAME=VALUE]...")
@with_appcontext
def platform(operation: str, arguments: tuple[str, ...], idempotency_key: str | None) -> None:
    """Call an OPERATION of /v1/platform as an admin and print its response; without one, list their names.

    NAME is that of a parameter or of a member of the body, as in /docs. VALUE is JSON, or else a text.
    """
    telemetry.redirect_to_stderr()
    rules = [each for each in current_app.url_map.iter_rules() if each.rule.startswith("/v1/platform/")]
    endpoints = {each.endpoint.partition(".")[2]: each.endpoint for each in rules}
    if operation not in endpoints:
        raise click.UsageError(f"OPERATION must be one of these: {', '.join(sorted(endpoints))}.")
    given, headers = _parse_arguments(arguments), {"Idempotency-Key": idempotency_key} if idempotency_key else {}
    with current_app.test_request_context(base_url=app_state().settings.public_url):
        current_request().master_caller = SHELL
        response = call_view(current_request(), endpoints[operation], given, headers=headers)
    if response.status_code >= HTTPStatus.BAD_REQUEST:
        raise click.ClickException(refusal_of(response.get_json()))
    click.echo(response.get_data(as_text=True).rstrip("\n"))


@click.command("restored")
@click.option("--dry-run", is_flag=True, help="Report the state of the chains, change nothing.")
@click.option(
    "--repair", is_flag=True,
    help="Compare and repair only, for later runs while the service runs. Payments and purchases stay unchanged.",
)  # fmt: skip
@click.option(
    "--max-lookups", default=200, show_default=True, type=click.IntRange(min=0),
    help="The maximum number of unknown transactions to look up.",
)  # fmt: skip
@with_appcontext
def restored(*, dry_run: bool, repair: bool, max_lookups: int) -> None:
    """Reconcile a restored database with the chains; run it before any process of the service starts.

    A transaction that was still in a node's memory may land later: --repair checks again while the service runs.
    Reports what the chains show to have happened after the backup. Exits with 1 while anything needs attention.
    """
    telemetry.redirect_to_stderr()
    if dry_run and repair:
        raise click.UsageError("--dry-run and --repair exclude each other.")
    if not dry_run and not repair:
        closed_at, payments, purchase_ids = restoration.close_open_items(actors.shell_actor())
        click.echo(
            f"payments: those made until {clock.isoformat(closed_at)} are no longer accepted;"
            f" {payments} open ones are marked as used"
        )
        for purchase_id in purchase_ids:
            click.echo(f"purchases: {purchase_id} may have been ordered since the backup; it is unknown")
    unresolved = False
    for line in restoration.reconcile(repair=not dry_run, max_lookups=max_lookups):
        click.echo(line.text)
        unresolved |= line.needs_action
    if unresolved:
        raise SystemExit(1)


def _parse_arguments(arguments: tuple[str, ...]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, equals, text in (each.partition("=") for each in arguments):
        if not equals or name in found:
            raise click.BadParameter(f"{name} must be given once, as {name}=VALUE", param_hint="NAME=VALUE")
        found[name] = text
        with suppress(InvalidInput):
            found[name] = parse_json(text.encode(errors="replace"))
    return found


def _parse_head(text: str | None) -> AuditHeadView | None:
    if text is None:
        return None
    number, _, hash_ = text.partition(":")
    if not number.isdecimal() or not hash_:
        raise click.BadParameter("must look like 120:3f5a…", param_hint="--expect")
    return AuditHeadView(int(number), hash_)


def _validated(field: fields.Field[Any], value: str | None, name: str) -> str | None:
    if value is None:
        return None
    try:
        found: str | None = field.deserialize(value)
    except ValidationError as error:
        raise click.BadParameter(str(error.messages[0]), param_hint=name) from None
    return found
