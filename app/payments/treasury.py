"""The service's own wallets: the treasury, which receives payments, and the settlement wallets, which submit them.

They are ordinary wallets of an agent without a key. The only writer of `payment_wallets`.
"""

from enum import StrEnum

import structlog
from sqlalchemy.exc import IntegrityError

from app.authenticated import seal_of
from app.core.chains import ChainName, Family
from app.core.setting_types import MAX_SETTLEMENT_KEYS
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.payments.models import ServiceWallet
from app.ports.errors import Rejected
from app.ports.vault import NewWallet
from app.state import app_state
from app.wallets.core import custody, wallets
from app.wallets.core.wallets import WalletView

OWNER_AGENT_ID = "00000000-0000-4000-8000-000000000402"
"""The internal agent that owns the service's wallets. Its id is fixed."""

_log = structlog.get_logger(__name__)


class WalletRole(StrEnum):
    TREASURY = "treasury"
    SETTLEMENT = "settlement"


FURTHER_ROLES = [f"{WalletRole.SETTLEMENT}-{number}" for number in range(2, MAX_SETTLEMENT_KEYS + 1)]
"""The roles of further settlement wallets: `settlement-2` and so on."""


class ServiceWallets(dict[tuple[str, Family], WalletView]):
    """A cache: these wallets do not change while a process lives."""


def wallet(role: str, chain: ChainName) -> WalletView:
    """Return the wallet with a role on a chain; create it on first use.

    If the operator configured a key for the chain's family, it is that key's wallet, whichever had the role before:
    keys are changed and changed back, and processes with the former key may still run next to this one.

    Raises: Rejected("settlement_key_in_use").
    """
    cache = app_state().part(ServiceWallets)
    cache_key = (str(role), chain.family)
    if cache_key not in cache:
        cache[cache_key] = _find_wallet(role, chain.family) or _create_wallet(role, chain.family)
    return cache[cache_key]


def submitters(chain: ChainName) -> list[WalletView]:
    """Return the wallets that submit payments on a chain, first the one that the terms name and that sponsors.

    Nodes accept few transactions of one address between two blocks, so several are used where addresses have nonces.
    """
    further = FURTHER_ROLES[: app_state().settings.x402_settlement_keys - 1] if chain.family is Family.EVM else []
    return [wallet(role, chain) for role in (WalletRole.SETTLEMENT, *further)]


def recipient(chain: ChainName) -> str:
    """Return the recipient of payments on a chain: the configured address, or the treasury if none is set."""
    configured = app_state().settings.payment_recipient(chain.family)
    return configured or wallet(WalletRole.TREASURY, chain).address_on(chain)


def settler(chain: ChainName) -> str:
    """Return the address that submits payments on a chain. Raises: Rejected("settlement_key_in_use")."""
    return wallet(WalletRole.SETTLEMENT, chain).address_on(chain)


def has_wallets(*roles: WalletRole) -> bool:
    """Return whether the service's wallets, or those with some roles, exist. Creates none."""
    return all(_find_wallet(role, family) is not None for role in roles or WalletRole for family in Family)


def _find_wallet(role: str, family: Family) -> WalletView | None:
    operator_key = _operator_key(role, family)
    with read_only_unit() as session:
        if operator_key is not None:
            return wallets.find_by_address(session, _address(operator_key, family), agent_id=OWNER_AGENT_ID)
        row = session.get(ServiceWallet, str(role))
        if row is None:
            return None
        seal_of(ServiceWallet).verify(session, row)
    found = wallets.get_with_controls(row.wallet_id)
    # A wallet of an agent's must not play the role, even if its row is authentic.
    return found if found.agent_id == OWNER_AGENT_ID else None


def _create_wallet(role: str, family: Family) -> WalletView:
    operator_key = _operator_key(role, family)
    key = operator_key or custody.new_key()
    try:
        with unit_of_work() as session:
            created = wallets.create(session, OWNER_AGENT_ID, key, name=str(role), scanned=False)
            if operator_key is None:
                session.add(ServiceWallet(role=str(role), wallet_id=created.id))
                session.flush()
    except IntegrityError:
        # A concurrent process was first.
        found = _find_wallet(role, family)
        if found is not None:
            return found
        if operator_key is None:
            raise
        _log.critical("settlement_key_in_use", family=family.value, address=_address(operator_key, family))
        raise Rejected("settlement_key_in_use") from None
    return created


def _operator_key(role: str, family: Family) -> NewWallet | None:
    """Return the operator's key for one family only: the other family's may be in another wallet already."""
    evm, solana = app_state().settings.settlement_keys()
    key = evm if family is Family.EVM else solana
    if role != WalletRole.SETTLEMENT or key is None:
        return None
    return custody.import_key(family, key)


def _address(key: NewWallet, family: Family) -> str:
    return key.evm_address if family is Family.EVM else key.solana_address
