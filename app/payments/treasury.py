"""The service's own two wallets: the treasury, where payments go, and the one that submits payments and pays gas.

They are wallets like all others, of an agent that nobody has a key of. Alone writes `payment_wallets`.
"""

from __future__ import annotations

from enum import StrEnum

import structlog
from flask import current_app
from sqlalchemy import select
from sqlalchemy.exc import IntegrityError

from app.core.chains import ChainName, Family
from app.core.unit_of_work import reading, unit_of_work
from app.payments.models import PaymentWallet
from app.ports import provider
from app.ports.errors import Rejected
from app.wallets import custody, service
from app.wallets.custody import NewWalletKey
from app.wallets.service import WalletView

OWNER = "00000000-0000-4000-8000-000000000402"
"""Stands for the service where a wallet has an agent; registered agents have random ids."""

_EXTENSION = "payment_wallets"
_log = structlog.get_logger(__name__)


class Role(StrEnum):
    """What a wallet of the service's own is for."""

    TREASURY = "treasury"
    SETTLEMENT = "settlement"


def wallet(role: Role, chain: ChainName) -> WalletView:
    """Return the wallet that plays a role on a chain, made when it is first asked for.

    Where the operator brings a key for the chain's family, it is the wallet of that key, whichever played the role
    before: keys change one by one and back again, and processes with the former one go on beside this one.

    Raises: Rejected("settlement_key_in_use").
    """
    known: dict[tuple[Role, Family], WalletView] = current_app.extensions.setdefault(_EXTENSION, {})
    place = (role, chain.family)
    if place not in known:
        known[place] = _existing(role, chain.family) or _made(role, chain.family)
    return known[place]


def recipient(chain: ChainName) -> str:
    """Return where payments on a chain go: where the operator said, else the treasury."""
    configured = provider.settings().payment_recipient(chain.family)
    return configured or wallet(Role.TREASURY, chain).address_on(chain)


def settler(chain: ChainName) -> str:
    """Return the address that submits payments on a chain. Raises: Rejected("settlement_key_in_use")."""
    return wallet(Role.SETTLEMENT, chain).address_on(chain)


def is_made(*roles: Role) -> bool:
    """Tell whether the service has its wallets, or some of them, already: who only looks should not make them."""
    return all(_existing(role, family) is not None for role in roles or Role for family in Family)


def _existing(role: Role, family: Family) -> WalletView | None:
    brought = _brought(role, family)
    if brought is not None:
        with reading():
            return service.with_address(_address(brought, family), agent_id=OWNER)
    with reading() as session:
        wallet_id = session.scalar(select(PaymentWallet.wallet_id).where(PaymentWallet.role == role.value))
    return None if wallet_id is None else service.detail(wallet_id)


def _made(role: Role, family: Family) -> WalletView:
    brought = _brought(role, family)
    key = brought or custody.new_key()
    try:
        with unit_of_work() as session:
            made = service.create(OWNER, key, name=role.value)
            if brought is None:
                session.add(PaymentWallet(role=role.value, wallet_id=made.id))
                session.flush()
    except IntegrityError:
        # Another process was first.
        found = _existing(role, family)
        if found is not None:
            return found
        if brought is None:
            raise
        _log.critical("settlement_key_in_use", family=family.value, address=_address(brought, family))
        raise Rejected("settlement_key_in_use") from None
    return made


def _brought(role: Role, family: Family) -> NewWalletKey | None:
    """Return the operator's key for a family alone: that of the other one may be in another wallet already."""
    evm, solana = provider.settings().settlement_keys()
    if role is not Role.SETTLEMENT or (evm if family is Family.EVM else solana) is None:
        return None
    if family is Family.EVM:
        return custody.adopted_key(evm=evm, solana=None)
    return custody.adopted_key(evm=None, solana=solana)


def _address(key: NewWalletKey, family: Family) -> str:
    return key.evm_address if family is Family.EVM else key.solana_address
