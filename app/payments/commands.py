"""`flask treasury`: where payments go, what is there, and how it is taken out."""

from __future__ import annotations

from decimal import Decimal

import click
from flask import Flask
from flask.cli import AppGroup

from app.core.chains import ChainName
from app.errors import ServiceError
from app.payments import readiness, treasury
from app.payments.treasury import Role
from app.ports import provider
from app.ports.errors import PortError, Rejected
from app.wallets import orders, transfers
from app.wallets.lifecycle import TransactionType

_CHAINS = [name.value for name in ChainName]
_WAIT_SECONDS = Decimal(20)

group = AppGroup("treasury", help="Where payments go, and the key that submits them.")


def register(app: Flask) -> None:
    """Add the commands to an application."""
    app.cli.add_command(group)


@group.command("show")
def show() -> None:
    """Show recipients, the settlement key's addresses and what they hold."""
    for chain in provider.current().tills:
        recipient = treasury.recipient(chain)
        click.echo(f"{chain.value}: payments go to {recipient} ({_holdings(chain, recipient)})")
        try:
            settler = treasury.settler(chain)
        except Rejected as refusal:
            click.echo(f"{chain.value}: signed payments are not offered: {refusal.reason}")
            continue
        click.echo(f"{chain.value}: signed ones are submitted by {settler} ({_holdings(chain, settler)})")
        click.echo(f"{chain.value}: {_standing(chain)}")


@group.command("withdraw")
@click.option("--chain", type=click.Choice(_CHAINS), required=True)
@click.option("--to", required=True, help="The recipient's address.")
@click.option("--amount", required=True)
@click.option("--currency", default="USDC", show_default=True)
@click.option("--from", "role", type=click.Choice([role.value for role in Role]), default=Role.TREASURY.value)
def withdraw(chain: str, to: str, amount: str, currency: str, role: str) -> None:
    """Send what a wallet of the service's own holds; it pays the network fee itself."""
    try:
        order = orders.parse_movement(
            TransactionType.WITHDRAWAL, chain=chain, to=to, amount=amount, currency=currency
        )
        view = transfers.send(
            treasury.wallet(Role(role), ChainName(chain)), order, wait_seconds=_WAIT_SECONDS
        )
    except ServiceError as failure:
        raise click.ClickException(failure.message) from None
    except Rejected as refusal:
        raise click.ClickException(f"This wallet cannot be used: {refusal.reason}") from None
    click.echo(
        f"{view.status}: {view.amount} {view.currency} to {view.to_address}, transaction {view.tx_hash}"
    )


def _holdings(chain: ChainName, address: str) -> str:
    try:
        amounts = provider.current().chains[chain].balances(address).amounts
    except PortError:
        return "cannot be read at the moment"
    return ", ".join(f"{amount} {amount.token.symbol}" for amount in amounts)


def _standing(chain: ChainName) -> str:
    state = readiness.read(chain)
    if state is None:
        return "signed payments are not offered: the chain cannot be read"
    if not readiness.is_supplied(state):
        return "signed payments are not offered: the settlement key lacks gas"
    if not state.recipient_is_open:
        return "signed payments are not offered: the recipient has no USDC account yet"
    return "signed payments are offered"
