"""The service's own two wallets: the treasury, where payments go, and the one that submits payments and pays gas.

They are wallets like all others, of an agent that nobody has a key of. Alone writes `payment_wallets`.
"""

from __future__ import annotations

from enum import StrEnum

from flask import current_app
from sqlalchemy import select
from sqlalchemy.exc import IntegrityError

from app.core.chains import ChainName
from app.core.unit_of_work import reading, unit_of_work
from app.payments.models import PaymentWallet
from app.ports import provider
from app.wallets import custody, service
from app.wallets.custody import NewWalletKey
from app.wallets.service import WalletView

OWNER = "00000000-0000-4000-8000-000000000402"
"""Stands for the service where a wallet has an agent; registered agents have random ids."""

_EXTENSION = "payment_wallets"


class Role(StrEnum):
    """What a wallet of the service's own is for."""

    TREASURY = "treasury"
    SETTLEMENT = "settlement"


def wallet(role: Role) -> WalletView:
    """Return the wallet that plays a role, made when it is first asked for."""
    known: dict[Role, WalletView] = current_app.extensions.setdefault(_EXTENSION, {})
    if role not in known:
        known[role] = _found(role) or _made(role)
    return known[role]


def recipient(chain: ChainName) -> str:
    """Return where payments on a chain go: where the operator said, else the treasury."""
    configured = provider.settings().payment_recipient(chain.family)
    return configured or wallet(Role.TREASURY).address_on(chain)


def settler(chain: ChainName) -> str:
    """Return the address that submits payments on a chain."""
    return wallet(Role.SETTLEMENT).address_on(chain)


def is_made() -> bool:
    """Tell whether the service has its wallets already: who only looks should not make them."""
    return all(_found(role) is not None for role in Role)


def _found(role: Role) -> WalletView | None:
    with reading() as session:
        wallet_id = session.scalar(select(PaymentWallet.wallet_id).where(PaymentWallet.role == role.value))
    if wallet_id is None:
        return None
    found = service.detail(wallet_id)
    adopted = _adopted(role)
    if adopted is None:
        return found
    evm, solana = provider.settings().settlement_keys()
    same_evm = evm is None or adopted.evm_address == found.address_on(ChainName.BASE)
    same_solana = solana is None or adopted.solana_address == found.address_on(ChainName.SOLANA)
    return found if same_evm and same_solana else None


def _made(role: Role) -> WalletView:
    key = _adopted(role) or custody.new_key()
    try:
        with unit_of_work() as session:
            made = service.create(OWNER, key, name=role.value)
            row = session.get(PaymentWallet, role.value)
            if row is None:
                session.add(PaymentWallet(role=role.value, wallet_id=made.id))
                session.flush()
            else:
                # The operator has brought other keys; what the former ones have under way is finished by them.
                row.wallet_id = made.id
    except IntegrityError:
        # Another process was first.
        found = _found(role)
        if found is None:
            raise
        return found
    return made


def _adopted(role: Role) -> NewWalletKey | None:
    evm, solana = provider.settings().settlement_keys()
    if role is not Role.SETTLEMENT or not (evm or solana):
        return None
    return custody.adopted_key(evm=evm, solana=solana)
