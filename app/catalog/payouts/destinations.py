"""Destinations of payouts: a wallet of the seller, not deleted while one is pending, or an address that it may pay."""

from dataclasses import dataclass

from sqlalchemy import exists, select
from sqlalchemy.orm import Session

from app.audit_log.actors import Actor
from app.catalog.models import Payout, PayoutStatus, Service
from app.core.chains import ChainName, parse_any_address
from app.db import leases
from app.db.unit_of_work import read_only_unit
from app.errors import InvalidInput, NotFound, TransactionInProgress
from app.spending import accounts as spending_accounts
from app.spending import holds as spending_holds
from app.spending.policy import SpendingRequest
from app.state import app_state
from app.wallets.core import parsing, wallets
from app.wallets.core.wallets import WalletView


@dataclass(frozen=True, slots=True)
class PayoutOrder:
    """A requested payout: to an address or a wallet, by default the seller's first."""

    service_id: str
    actor: Actor
    chain: str | None = None
    address: str | None = None
    wallet_id: str | None = None


def chain_of(chain: str | None, address: str | None) -> ChainName:
    """Return the chain of a payout: the one that is named, or the first that has the address. Raises: InvalidInput."""
    family = None if address is None else parse_any_address(address)[0]
    served = [each for each in app_state().ports.chains if family in (None, each.family)]
    problems: dict[str, list[str]] = {}
    default = ChainName.BASE if ChainName.BASE in served else next(iter(served), "")
    name = parsing.parse_chain(chain or default, problems, served=served)
    if name is None:
        raise parsing.invalid_fields(problems)
    return name


def find(first: WalletView, order: PayoutOrder, *, nanos: int) -> tuple[ChainName, str, WalletView | None]:
    """Return chain and address of a payout, with the seller's wallet there, or None.

    An address that is not the seller's has to be one that it may pay so much. It is checked like a transfer of the
    first wallet, and not counted against its limits.
    """
    agent_id, address, wallet_id = first.agent_id, order.address, order.wallet_id
    if address is not None and wallet_id is not None:
        raise InvalidInput.field("address", "must not be sent together with wallet_id")
    with read_only_unit() as session:
        own = None if address is None else wallets.find_by_address(session, address, agent_id=agent_id)
    name = chain_of(order.chain, address)
    outside = address if own is None else None
    asked = SpendingRequest(nanos if outside else 0, outside, name.family, approved=first.approved)
    with read_only_unit() as session:
        spending_holds.check(session, first.id, asked)
    if outside is not None:
        return name, outside, None
    wallet = own or (first if wallet_id is None else wallets.get_owned(wallet_id, agent_id=agent_id))
    return name, wallet.address_on(name), wallet


def lock_wallet(session: Session, wallet_id: str, agent_id: str) -> None:
    """Keep a seller's wallet from being deleted until the unit ends. Raises: NotFound if it was."""
    leases.lock(session, f"paid-wallets:{agent_id}")
    if not spending_accounts.existing(session, [wallet_id]):
        raise NotFound("This wallet was deleted.")


def open_payout_error(session: Session, wallet_id: str) -> TransactionInProgress | None:
    """Return the error that prevents deleting a wallet to which a payout or refund is pending, or None."""
    agent_id, *addresses = wallets.agent_and_addresses(session, wallet_id)
    if session.scalar(select(exists().where(Service.agent_id == agent_id))):
        leases.lock(session, f"paid-wallets:{agent_id}")
    is_open = Payout.recipient.in_(addresses), Payout.closed_at.is_(None), Payout.status == PayoutStatus.PENDING.value
    found = session.scalar(select(Payout.id).where(*is_open).limit(1))
    problem = "A payout or refund to this wallet is still pending; delete the wallet once it has ended."
    return None if found is None else TransactionInProgress(problem, details={"transaction_id": found})
