"""The operator's commands: `flask --app wsgi …`."""

import click
from flask import Flask
from flask.cli import AppGroup

from app.audit_log import actors, trail
from app.audit_log.trail import AuditAction
from app.core import identifiers
from app.gateway.providers import cli as gateway
from app.payments import cli as payments
from app.platform import cli as platform
from app.platform import row_seals
from app.shopping import service as shopping
from app.state import app_state
from app.status.cli import doctor
from app.status.migrations import MigrationCommands
from app.wallets.kinds.bridge import commands as bridges
from app.web.openapi import OpenApiDocument

keys = platform.OperatorGroup("keys", "Encryption keys.")
documents = AppGroup("documents", help="The OpenAPI document.")
purchases = AppGroup("purchases", help="Purchases in web shops.")


def register(app: Flask) -> None:
    """Add the commands, which the root's `commands.py` lists, to an application."""
    groups = keys, documents, purchases, gateway.group, payments.group, *platform.groups, bridges
    for command in (*groups, doctor, platform.platform, platform.restored, MigrationCommands(app)):
        app.cli.add_command(command)


@keys.command("rotate")
@click.option("--batch", default=500, show_default=True, help="Rows at a time.")
def rotate(batch: int) -> None:
    """Reseal everything sealed with an older encryption key; may run while the service does."""
    vault = app_state().ports.vault
    if app_state().ports.signer is not None:
        raise click.ClickException("Run this with the settings of the signer process, except SIGNER_SOCKET.")
    # It takes many units, so that an entry precedes them: the operator is recorded even if the process dies.
    actor = actors.shell_actor()
    key_id = " and ".join(dict.fromkeys([vault.current_key_id, vault.sealing_key_id("wallet_keys")]))
    trail.record_alone(actor, AuditAction.ENCRYPTION_ROTATION_STARTED, encryption_key=key_id)
    resealed = row_seals.reseal_all(vault, batch=batch)
    trail.record_alone(actor, AuditAction.ENCRYPTION_ROTATED, secrets=resealed, encryption_key=key_id)
    click.echo(f"{resealed} secrets and rows were resealed with key {key_id}.")


@keys.command("accept-rows")
def accept_rows() -> None:
    """Accept authenticated rows as they are in the database now, after you have checked those that doctor names."""
    done = row_seals.accept_changed(actors.shell_actor())
    click.echo(f"{done} rows were accepted.")


@documents.command("check")
def check() -> None:
    """Validate the OpenAPI document; fails with the first error."""
    from openapi_spec_validator import validate  # noqa: PLC0415 - a development requirement

    validate(app_state().part(OpenApiDocument).published)
    click.echo("The OpenAPI document is valid.")


@documents.command("show")
def show() -> None:
    """Print the OpenAPI document as it is served."""
    click.echo(app_state().part(OpenApiDocument).text)


@purchases.command("page")
@click.argument("purchase_id")
def page(purchase_id: str) -> None:
    """Write the page on which a purchase failed, as HTML; `python -m shopper.replay` shows what is read in it."""
    canonical = identifiers.parse_id(purchase_id)
    document = shopping.failed_page(canonical) if canonical else None
    if document is None:
        raise click.ClickException("No page is stored for this purchase; pages are kept for 30 days.")
    click.echo(document)
