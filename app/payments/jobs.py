"""Periodic work for payments: open settlements, top-up grants, gas reserves, reversed payments and the audit."""

from datetime import timedelta

import structlog
from sqlalchemy import ColumnElement, exists, or_, select
from sqlalchemy.orm import Session

from app.core.chains import USDC, ChainName, native
from app.core.money import TokenAmount
from app.credits import accounts as credit_accounts
from app.db.leases import once_per_period
from app.errors import KeyServiceUnavailable
from app.payments import claimed_payments, settlement_capacity, topups, treasury
from app.payments.claimed_payments import PaymentStatus
from app.payments.models import TopUp
from app.payments.treasury import WalletRole
from app.payments.x402 import metered, settlement
from app.ports.errors import PortError
from app.state import AppState, app_state
from app.wallets.core import custody, intents
from app.wallets.transactions import pipeline, relayed

_log = structlog.get_logger(__name__)
_CHECK_INTERVAL = timedelta(seconds=60)
_SANDBOX_FUNDING = 2
_SANDBOX_OPENING_UNITS = 1


def has_open(chain: ChainName) -> ColumnElement[bool]:
    is_open = claimed_payments.is_open_on(chain, PaymentStatus.SETTLING, PaymentStatus.AUTHORIZED)
    return or_(exists().where(is_open), topups.has_open(chain))


def resume_settlements(chain: ChainName) -> None:
    """Resolve open settlements and grant top-ups on a chain; one that fails does not stop the others."""
    settlement.resolve_pending(chain)
    metered.settle_due(chain)
    topups.grant_due(chain)


def check_gas_reserves() -> None:
    """Check the settlement keys' gas on each chain; report if it is low, and payments that were reversed.

    In the sandbox the faucet funds the keys; on Solana the treasury's token account is opened once there is gas for it.
    """
    with once_per_period(_CHECK_INTERVAL, "payment-supply", duration=_CHECK_INTERVAL) as due:
        if not due:
            return
        state = app_state()
        for chain in state.ports.facilitators:
            try:
                _check_chain(chain, state)
            except (PortError, KeyServiceUnavailable) as error:
                _log.warning("gas_reserve_check_failed", chain=chain, reason=error.reason)
            settlement.detect_reversed_payments(chain)


def _check_chain(chain: ChainName, state: AppState) -> None:
    settlers = [each.address_on(chain) for each in treasury.submitters(chain)]
    read = {each: found for each in settlers if (found := settlement_capacity.read_capacity(chain, each)) is not None}
    if len(read) < len(settlers):
        return
    treasury_units = None
    try:
        address = treasury.wallet(WalletRole.TREASURY, chain).address_on(chain)
        treasury_units = state.ports.chains[chain].balances(address).of(USDC).units
    except (PortError, KeyServiceUnavailable):
        # Without payouts it is only shown, and must not stop the check.
        if state.settings.payouts_enabled:
            raise
    least = min(read.values(), key=settlement_capacity.submissions_of)
    settlement_capacity.store_gas_reserve(chain, least, treasury_units)
    faucet, token = state.ports.faucet, native(chain)
    for settler, capacity in read.items():
        if settlement_capacity.covers_gas(capacity):
            if not capacity.recipient_can_receive:
                _open_recipient_account(chain, state)
        elif faucet is not None:
            amount = TokenAmount(_SANDBOX_FUNDING * 10**token.decimals, token)
            reference = f"x402:{settler}:{chain.value}:{capacity.native_units}"
            faucet.pay(reference, chain=chain, address=settler, amount=amount)
        else:
            # The key can pay for few more; while it is the first one, signed payments are not offered.
            _log.critical("settlement_gas_low", chain=chain, address=settler)


def _open_recipient_account(chain: ChainName, state: AppState) -> None:
    faucet, recipient = state.ports.faucet, treasury.recipient(chain)
    if faucet is not None:
        amount = TokenAmount(_SANDBOX_OPENING_UNITS, USDC)
        faucet.pay(f"x402:open:{recipient}", chain=chain, address=recipient, amount=amount)
        return
    wallet = treasury.wallet(WalletRole.SETTLEMENT, chain)
    draft = state.ports.facilitators[chain].draft_recipient_account(wallet.address_on(chain), recipient)
    if draft is None:
        return
    served = state.ports.chains[chain]
    signer = custody.signer_of(wallet.id, wallet.addresses)
    intent = relayed.intent_of(chain, wallet, draft, settlement.ACCOUNT_OPENING_KIND)
    with intents.recording(intent) as session:
        recorded, signed = relayed.record_submission(session, served, wallet, draft, signer, intent=intent)
    pipeline.broadcast_and_wait(served, recorded, signed, wait_seconds=None, account_id=wallet.agent_id)


def check(session: Session) -> list[str]:
    """Return one sentence per violated invariant, none when all is well."""
    topup_rows = session.scalars(select(TopUp)).all()
    recorded = {
        topups.grant_reference(row.transaction_id): (row.account_id, (row.granted_nanos or 0) + row.owed_nanos)
        for row in topup_rows
        if row.granted_nanos or row.owed_nanos
    }
    problems = credit_accounts.find_wrong_grants(session, topups.REFERENCE_PREFIX, recorded)
    problems += [
        f"top-up {row.transaction_id} granted more than was transferred"
        for row in topup_rows
        if (row.granted_nanos or 0) > row.units * claimed_payments.NANOS_PER_UNIT
    ]
    unmatched = topups.find_confirmed_without_grant(session)
    problems += [f"top-up {each} is final and confirmed, and granted nothing" for each in unmatched]
    problems += metered.check(session)
    return problems + [f"payment {each} has no claim" for each in claimed_payments.find_without_claim(session)]
