"""Commands of an operator at a shell: master keys, keys of deleted wallets, the audit trail.

They write the same trail as the API. What opens something is printed once, and never logged.
"""

from __future__ import annotations

from typing import Any

import click
from flask import Flask
from flask.cli import AppGroup, with_appcontext
from marshmallow import ValidationError, fields

from app.core import clock, logs
from app.core.pagination import PageRequest
from app.core.unit_of_work import reading, snapshot
from app.errors import ServiceError
from app.identity import api_keys
from app.identity import master_keys as identity_keys
from app.platform import actors, keys, lost_bridges, restoration, verification
from app.platform.trail import Head
from app.ports.errors import PortError
from app.web.fields import Email, Name

_PATHS = (("EVM (Ethereum, Base)", "m/44'/60'/0'/0/0"), ("Solana", "m/44'/501'/0'/0'"))
_MOST = 1000

master_keys = AppGroup(
    "master-keys", callback=logs.aside, help="Master keys: who may administer the platform."
)
owner_keys = AppGroup("owner-keys", callback=logs.aside, help="Keys of the people who claimed agents.")
retired_keys = AppGroup(
    "retired-keys", callback=logs.aside, help="Keys of deleted wallets, kept for a while for rescues."
)
bridges = AppGroup("bridges", callback=logs.aside, help="Bridges that were never paid out.")
audit = AppGroup("audit", callback=logs.aside, help="The trail of administrative acts.")


def register(app: Flask) -> None:
    """Add the commands to an application."""
    for group in (master_keys, owner_keys, retired_keys, bridges, audit):
        app.cli.add_command(group)
    app.cli.add_command(restored)


@master_keys.command("create")
@click.option("--name", default=None, help="What it is called, such as ops.")
@click.option("--owner-email", default=None, help="Whose it is.")
def create_master_key(name: str | None, owner_email: str | None) -> None:
    """Make a master key and print it: the only output that shows it."""
    made = keys.create_master_key(
        actors.at_the_shell(),
        name=_valid(Name(), name, "--name"),
        owner_email=_valid(Email(), owner_email, "--owner-email"),
    )
    click.echo(f"{made.id}  {made.name}", err=True)
    click.echo(made.key)


@master_keys.command("list")
def list_master_keys() -> None:
    """List master keys, all of them truncated."""
    with reading():
        found = identity_keys.every()
    for key in found:
        state = "active" if key.active else f"revoked {clock.isoformat(key.revoked_at or key.created_at)}"
        shown = api_keys.truncated(key.key) if key.active else key.key
        click.echo(f"{key.id}  {shown}  {clock.isoformat(key.created_at)}  {state}  {key.name}")


@master_keys.command("revoke")
@click.argument("key_id")
def revoke_master_key(key_id: str) -> None:
    """Revoke a master key by its id, at once; not the last active one."""
    try:
        keys.revoke_master_key(actors.at_the_shell(), key_id)
    except identity_keys.LastMasterKeyError:
        raise click.ClickException("This is the last active master key: create another one first.") from None
    except ServiceError as error:
        raise click.ClickException(error.message) from None
    click.echo(f"{key_id} is revoked.")


@owner_keys.command("replace")
@click.argument("agent_id")
def replace_owner_key(agent_id: str) -> None:
    """Make a claimed agent's owner another key and print it. First make sure that it is its owner who asks."""
    try:
        key = keys.replace_owner_key(actors.at_the_shell(), agent_id)
    except ServiceError as error:
        raise click.ClickException(error.message) from None
    click.echo("The key before opens nothing any more.", err=True)
    click.echo(key)


@retired_keys.command("list")
@click.option("--limit", default=100, show_default=True, type=click.IntRange(1, _MOST))
@click.option("--offset", default=0, show_default=True, type=click.IntRange(min=0))
def list_retired_keys(limit: int, offset: int) -> None:
    """List deleted wallets whose keys are kept, and until when at least."""
    page = keys.retired_keys(PageRequest(limit, offset))
    for each in page.items:
        dates = f"{clock.isoformat(each.retired_at)}  {clock.isoformat(each.purge_after)}"
        click.echo(f"{each.wallet_id}  {each.agent_id}  {dates}  {each.evm_address}  {each.solana_address}")
    click.echo(f"{len(page.items)} of {page.total}", err=True)


@retired_keys.command("export")
@click.argument("wallet_id")
def export_retired_key(wallet_id: str) -> None:
    """Print the recovery phrase of a deleted wallet. It opens everything that the wallet holds; the trail notes it."""
    try:
        rescue = keys.export_retired_key(actors.at_the_shell(), wallet_id)
    except ServiceError as error:
        raise click.ClickException(error.message) from None
    except PortError:
        raise click.ClickException(
            "The key cannot be opened: ENCRYPTION_KEYS lack the key that sealed it."
        ) from None
    click.echo(f"Recovery phrase (BIP-39): {rescue.phrase}")
    for (chains, path), address in zip(
        _PATHS, (rescue.wallet.evm_address, rescue.wallet.solana_address), strict=True
    ):
        click.echo(f"{chains}: {address} at {path}")
    click.echo("Enter the phrase in a wallet such as MetaMask or Phantom, and clear this screen.", err=True)


@retired_keys.command("purge")
@click.option("--limit", default=_MOST, show_default=True, type=click.IntRange(1, _MOST))
def purge_retired_keys(limit: int) -> None:
    """Do now what the sweep does: forget keys that are due and whose addresses are certainly empty."""
    purged = keys.purge_retired_keys(actors.at_the_shell(), limit=limit)
    click.echo(f"{len(purged)} keys were purged.")


@bridges.command("write-off")
@click.argument("transaction_id")
@click.option("--short", is_flag=True, help="Also where a part came back (refund_short): the rest is gone.")
def write_off_bridge(transaction_id: str, *, short: bool) -> None:
    """Close a bridge whose service names a payment that is final and not the wallet's. Its amount is gone."""
    try:
        lost_bridges.write_off(actors.at_the_shell(), transaction_id, takes_part=short)
    except ServiceError as error:
        raise click.ClickException(error.message) from None
    click.echo(f"{transaction_id} has failed: written off.")


@audit.command("verify")
@click.option("--expect", default=None, metavar="NUMBER:HASH", help="A head that was noted earlier.")
def verify(expect: str | None) -> None:
    """Prove that no entry of the trail was changed or taken away; fails with what is wrong."""
    expected = _head(expect)
    with snapshot():
        wrong = verification.check(expected=expected)
        head = verification.head()
    for sentence in wrong:
        click.echo(sentence, err=True)
    if wrong:
        raise click.ClickException("The audit trail is not whole.")
    click.echo(f"The audit trail is whole. Note its head: {head.number}:{head.hash}")


@click.command("restored")
@click.option("--look", is_flag=True, help="Change nothing, only say what the chains know.")
@click.option(
    "--mend", is_flag=True,
    help="Compare and mend only: for later, while the service runs. Payments and purchases are left alone.",
)  # fmt: skip
@click.option(
    "--list", "listed", default=200, show_default=True, type=click.IntRange(min=0),
    help="Look up at most so many unknown transactions.",
)  # fmt: skip
@with_appcontext
def restored(*, look: bool, mend: bool, listed: int) -> None:
    """Make a database safe that was set back to an earlier state; run it before any process of the service.

    What was waiting in the memory of a node then may land later: --mend looks again, beside the running service.
    Says what happened after the backup, as far as the chains know. Ends with 1 while something has to be looked into.
    """
    logs.aside()
    if look and mend:
        raise click.UsageError("--look changes nothing and --mend does: choose one.")
    if not look and not mend:
        closed = restoration.close(actors.at_the_shell())
        click.echo(
            f"payments: what was paid until {clock.isoformat(closed.at)} pays for nothing more;"
            f" {closed.payments} open ones are used up"
        )
        for purchase_id in closed.purchases:
            click.echo(f"purchases: {purchase_id} may have been bought since; it is unknown")
    unclear = False
    for line in restoration.compare(mends=not look, most=listed):
        click.echo(line.said)
        unclear |= line.open
    if unclear:
        raise SystemExit(1)


def _head(text: str | None) -> Head | None:
    if text is None:
        return None
    number, _, hash_ = text.partition(":")
    if not number.isdecimal() or not hash_:
        raise click.BadParameter("must look like 120:3f5a…", param_hint="--expect")
    return Head(int(number), hash_)


def _valid(field: fields.Field[Any], value: str | None, name: str) -> str | None:
    if value is None:
        return None
    try:
        found: str | None = field.deserialize(value)
    except ValidationError as error:
        raise click.BadParameter(str(error.messages[0]), param_hint=name) from None
    return found
