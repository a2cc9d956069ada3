"""What workers do for payments: outcomes that requests left behind, grants that are due, gas, and what was lost."""

from __future__ import annotations

from datetime import timedelta

import structlog

from app.core.chains import USDC, ChainName, native
from app.core.leases import once_in
from app.core.money import TokenAmount
from app.core.unit_of_work import unit_of_work
from app.payments import readiness, settlement, topups, treasury
from app.payments.treasury import Role
from app.ports import provider
from app.ports.errors import PortError
from app.ports.till import Readiness
from app.wallets import custody, submissions

_log = structlog.get_logger(__name__)
_LOOK_EVERY = timedelta(seconds=60)
_SANDBOX_SUPPLY = 2
_SANDBOX_OPENING_UNITS = 1


def carry_on(chain: ChainName) -> None:
    """Resolve submissions and grant top-ups; never raises for a single one."""
    settlement.resolve_all(chain)
    topups.grant_due(chain)


def look_after() -> None:
    """Look at the settlement key's gas on each chain, and say loudly where it is low, or where a payment was lost.

    In the sandbox the faucet fills it; on Solana the treasury's token account is made once there is gas for it.
    """
    with once_in(_LOOK_EVERY, "payment-supply", duration=_LOOK_EVERY) as due:
        if not due:
            return
        for chain in provider.current().tills:
            try:
                _look(chain)
            except PortError as error:
                _log.warning("payment_supply_failed", chain=chain, reason=error.reason)
            settlement.look_for_lost(chain)


def _look(chain: ChainName) -> None:
    state = readiness.read(chain)
    if state is None:
        return
    readiness.note(chain, state)
    if not readiness.is_supplied(state):
        if not _fill_in_sandbox(chain, state):
            # The chain is not among those that are offered for signed payments while this lasts.
            _log.critical("settlement_key_low", chain=chain, address=treasury.settler(chain))
        return
    if not state.recipient_is_open:
        _open_recipient(chain)


def _fill_in_sandbox(chain: ChainName, state: Readiness) -> bool:
    faucet = provider.current().faucet
    if faucet is None:
        return False
    token = native(chain)
    amount = TokenAmount(_SANDBOX_SUPPLY * 10**token.decimals, token)
    reference = f"x402:{treasury.settler(chain)}:{chain.value}:{state.native_units}"
    faucet.pay(reference, chain=chain, address=treasury.settler(chain), amount=amount)
    return True


def _open_recipient(chain: ChainName) -> None:
    faucet, recipient = provider.current().faucet, treasury.recipient(chain)
    if faucet is not None:
        amount = TokenAmount(_SANDBOX_OPENING_UNITS, USDC)
        faucet.pay(f"x402:open:{recipient}", chain=chain, address=recipient, amount=amount)
        return
    wallet = treasury.wallet(Role.SETTLEMENT, chain)
    draft = provider.current().tills[chain].opening(wallet.address_on(chain), recipient)
    if draft is None:
        return
    served = provider.current().chains[chain]
    signer = custody.signer_of(wallet.id)
    with unit_of_work():
        recorded, signed = submissions.record(served, wallet, draft, signer, kind=settlement.OPENING)
    submissions.carry_out(
        served, recorded, signed, wait_seconds=provider.settings().confirmation_wait_seconds
    )
