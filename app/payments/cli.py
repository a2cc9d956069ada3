"""`flask treasury`: recipients and balances of payments, and withdrawals."""

from decimal import Decimal

import click
from flask.cli import AppGroup

from app.core.chains import ChainName
from app.core.money import usd_string
from app.db.unit_of_work import read_only_unit
from app.errors import ServiceError
from app.idempotency.service import Claim
from app.payments import settlement_capacity, settlement_risks, treasury
from app.payments.treasury import WalletRole
from app.ports.errors import PortError, Rejected
from app.state import app_state
from app.wallets import transfers
from app.wallets.core.lifecycle import TransactionType
from app.wallets.kinds.transfer import parse_movement

_CHAINS = [name.value for name in ChainName]
_ROLES = [*map(str, WalletRole), *treasury.FURTHER_ROLES]
_WAIT_SECONDS = Decimal(20)

group = AppGroup("treasury", help="The recipients of payments, and the settlement keys.")


@group.command("show")
def show() -> None:
    """Show the recipients, the settlement keys' addresses, balances, and the budget of failed payments."""
    budget_usd = usd_string(settlement_risks.budget_nanos())
    with read_only_unit() as session:
        used = settlement_risks.failed_by_chain(session, of_budget=True)
    for chain in app_state().ports.facilitators:
        recipient = treasury.recipient(chain)
        click.echo(f"{chain.value}: payments go to {recipient} ({_format_balances(chain, recipient)})")
        try:
            settlers = [each.address_on(chain) for each in treasury.submitters(chain)]
        except Rejected as refusal:
            click.echo(f"{chain.value}: signed payments are not offered: {refusal.reason}")
            continue
        for each in settlers:
            balances = _format_balances(chain, each)
            click.echo(f"{chain.value}: signed payments are submitted by {each} ({balances})")
        reason = settlement_capacity.obstacle(settlement_capacity.read_capacity(chain))
        click.echo(f"{chain.value}: signed payments are {f'not offered: {reason}' if reason else 'offered'}")
        click.echo(f"{chain.value}: failed payments used {usd_string(used[chain])} of {budget_usd} USD of gas in a day")


@group.command("withdraw")
@click.option("--chain", type=click.Choice(_CHAINS), required=True)
@click.option("--to", required=True, help="The recipient's address.")
@click.option("--amount", required=True)
@click.option("--currency", default="USDC", show_default=True)
@click.option(
    "--from", "role", type=click.Choice(_ROLES), default=str(WalletRole.TREASURY), show_default=True, metavar="WALLET",
    help="treasury, settlement, or a further settlement key, such as settlement-2.",
)  # fmt: skip
def withdraw(chain: str, to: str, amount: str, currency: str, role: str) -> None:
    """Transfer from one of the service's wallets, which also pays the network fee."""
    try:
        order = {"chain": chain, "to": to, "amount": amount, "currency": currency}
        view = transfers.send(
            treasury.wallet(role, ChainName(chain)),
            parse_movement(TransactionType.WITHDRAWAL, order),
            wait_seconds=_WAIT_SECONDS,
            claim=Claim.none(),
        )
    except ServiceError as failure:
        raise click.ClickException(failure.message) from None
    except Rejected as refusal:
        raise click.ClickException(f"This wallet cannot be used: {refusal.reason}") from None
    click.echo(f"{view.status}: {view.amount} {view.currency} to {view.to_address}, transaction {view.tx_hash}")


def _format_balances(chain: ChainName, address: str) -> str:
    try:
        amounts = app_state().ports.chains[chain].balances(address).amounts
    except PortError:
        return "cannot be read at the moment"
    return ", ".join(f"{amount} {amount.token.symbol}" for amount in amounts)
