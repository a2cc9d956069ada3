"""`flask purchases`: the operator's view of purchases that failed."""

import click
from flask import Flask
from flask.cli import AppGroup

from app.core import identifiers
from app.shopping import service

group = AppGroup("purchases", help="Purchases in web shops.")


def register(app: Flask) -> None:
    app.cli.add_command(group)


@group.command("page")
@click.argument("purchase_id")
def page(purchase_id: str) -> None:
    """Write the page on which a purchase failed, as HTML; `python -m shopper.replay` shows what is read in it."""
    canonical = identifiers.parse_id(purchase_id)
    document = service.failed_page(canonical) if canonical else None
    if document is None:
        raise click.ClickException("No page is stored for this purchase; pages are kept for 30 days.")
    click.echo(document)
