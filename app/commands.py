"""Commands of an operator: `flask --app wsgi …`."""

from __future__ import annotations

from typing import Any

import click
from flask import Flask
from flask.cli import AppGroup

from app.core.unit_of_work import unit_of_work
from app.identity import rotation
from app.payments import commands as payments
from app.platform import actors, trail
from app.platform import commands as platform
from app.platform import keys as platform_keys
from app.platform.trail import Act, Action, SubjectKind
from app.ports import provider
from app.status.doctor import doctor
from app.web import documentation

keys = AppGroup("keys", help="Encryption keys.")
documents = AppGroup("documents", help="The OpenAPI document.")


def register(app: Flask) -> None:
    """Add the commands to an application."""
    app.cli.add_command(keys)
    app.cli.add_command(documents)
    app.cli.add_command(bootstrap)
    app.cli.add_command(doctor)
    payments.register(app)
    platform.register(app)


@keys.command("rotate")
@click.option("--batch", default=500, show_default=True, help="Rows per unit of work.")
def rotate(batch: int) -> None:
    """Seal everything again that an older encryption key sealed; may run while the service works."""
    vault = provider.current().vault
    # Many units do it, so one entry stands before them all: who began is known should the process die.
    _note(Action.ENCRYPTION_ROTATION_BEGUN, {"encryption_key": vault.current_key_id})
    done = rotation.rotate(vault, batch=batch)
    _note(Action.ENCRYPTION_ROTATED, {"secrets": done, "encryption_key": vault.current_key_id})
    click.echo(f"{done} secrets were sealed again under key {vault.current_key_id}.")


def _note(action: Action, after: dict[str, Any]) -> None:
    with unit_of_work():
        trail.record(actors.at_the_shell(), Act(action, SubjectKind.SERVICE, None, after=after))


@documents.command("check")
def check() -> None:
    """Validate the OpenAPI document; fails with the first problem."""
    from openapi_spec_validator import validate  # noqa: PLC0415 - a development requirement

    validate(documentation.read())
    click.echo("The OpenAPI document is valid.")


@click.command("bootstrap")
def bootstrap() -> None:
    """Create the master key BOOTSTRAP_MASTER_KEY when there is none yet; the scheduler does it when it starts."""
    create_bootstrap_master_key()


def create_bootstrap_master_key() -> None:
    """Create the master key BOOTSTRAP_MASTER_KEY when there is none yet."""
    key = provider.settings().bootstrap_master_key.get_secret_value()
    if key:
        platform_keys.bootstrap_master_key(actors.the_service("bootstrap"), key)
