"""`flask bridges`: the operator closes bridges that were never paid out."""

import click
from flask.cli import AppGroup

from app.audit_log import actors
from app.errors import ServiceError
from app.observability import logs
from app.wallets.bridges import write_off as write_offs

group = AppGroup("bridges", callback=logs.redirect_to_stderr, help="Bridges that were never paid out.")


@group.command("write-off")
@click.argument("transaction_id")
@click.option(
    "--accept-partial-refund", is_flag=True, help="Write it off even if only a part was refunded (refund_short)."
)
def write_off(transaction_id: str, *, accept_partial_refund: bool) -> None:
    """Close a bridge that was never paid out to the wallet. Its amount is lost."""
    try:
        write_offs.write_off(actors.shell_actor(), transaction_id, accept_partial_refund=accept_partial_refund)
    except ServiceError as error:
        raise click.ClickException(error.message) from None
    click.echo(f"{transaction_id} has failed: written off.")
