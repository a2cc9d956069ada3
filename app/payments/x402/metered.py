"""Metered payments (`upto` of x402): a payer without an account signs a maximum, and pays what the call cost.

An accepted maximum is the balance of an account of its own, so that the call is held, bounded and settled on it like on
any other. What it has spent is then submitted. Until that has landed it is credit, which the settings bound for each
payer and in total; a payer who could not be collected from is refused.
"""

from datetime import timedelta
from decimal import Decimal
from functools import partial

import structlog
from sqlalchemy import select
from sqlalchemy.orm import Session

from app.core import clock
from app.core.chains import ChainName
from app.core.identifiers import new_id, require
from app.core.money import nanos_from_usd
from app.credits import accounts as credit_accounts
from app.credits import holds as credit_holds
from app.db import leases
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.payments import claimed_payments, settlement_capacity, settlement_risks, treasury
from app.payments.claimed_payments import NANOS_PER_UNIT, PAYMENTS, PaymentRail, PaymentRow, PaymentStatus
from app.payments.models import Payment
from app.payments.presented import PaymentPrice, SignedPayment, units_of
from app.payments.treasury import WalletRole
from app.payments.x402 import settlement
from app.ports.chain import TransactionDraft
from app.ports.errors import Rejected
from app.ports.facilitator import ExpectedPayment, MeteredScheme, PaymentAuthorization
from app.state import app_state
from app.wallets.core import custody, intents, network_fees
from app.wallets.transactions import pipeline, relayed
from server.pool import ANONYMOUS

_log = structlog.get_logger(__name__)
PAYER_LIMIT, PAUSED, UNPAID = "upto_payer_limit", "upto_paused", "upto_unpaid"
# The call of a payment that was accepted begins within this time.
_UNUSED_FOR = timedelta(minutes=5)
_BATCH = 50
_PERIOD = timedelta(minutes=1)
# Why a submission fails because of what the payer did.
_USED = "permit2_invalid_nonce"
_BY_PAYER = frozenset({"insufficient_funds", "permit2_allowance_required", "upto_payer_has_code", _USED})


class _Superseded(Exception):
    """Another process settled the payment first: the unit must roll back."""


def accept(presented: SignedPayment, price: PaymentPrice) -> str:
    """Verify a maximum, claim it and open an account with it; return the payment's id, which is the account's.

    Raises: Rejected before anything was claimed; Unreachable; IntegrityError when it was claimed concurrently.
    """
    name, now = presented.facilitator.name, clock.now()
    scheme = _scheme(name)
    recipient, settler = treasury.recipient(name), treasury.settler(name)
    expected = ExpectedPayment(price.units, recipient, settler)
    authorization = scheme.verify(presented.payload, expected, now=int(now.timestamp()))
    draft = scheme.draft_settlement(authorization, price.units, settler=settler)
    settlement_capacity.submission_nanos(name, price.nanos, draft.fee_units)
    payment = Payment(
        id=new_id(), rail=PaymentRail.UPTO.value, chain=name.value, payer=authorization.payer, units=price.units,
        required_units=price.units, provider=price.provider, signed=True, recipient=recipient,
        fingerprint=claimed_payments.fingerprint_macs(price.fingerprint)[0],
        terms={**authorization.terms, "claim": authorization.claim},
    )  # fmt: skip
    with unit_of_work() as session:
        claimed_payments.claim(session, [authorization.claim], payment.id)
        claimed_payments.lock_payer(session, payment.payer)
        # One at a time counts what the others may cost, on whichever chain.
        leases.lock(session, "metered_payments")
        _check(session, payment, draft)
        claimed_payments.add_payment(session, payment, status=PaymentStatus.AUTHORIZED)
        credit_accounts.open_account(session, payment.id)
        credit_accounts.grant(session, payment.id, price.units * NANOS_PER_UNIT, reference=f"payment:{payment.id}")
        return payment.id


def settle(payment_id: str, *, waits: bool, has_ended: bool = True) -> PaymentRow:
    """Submit what the call on a payment has cost, unless it holds credits; return the payment as it is then.

    With nothing spent, it is void, if the call `has_ended` or did not begin in time. When it expires, it is unpaid if
    the payer's funds or permission are gone, else closed.
    Raises: Unreachable.
    """
    with read_only_unit() as session:
        payment, balance = claimed_payments.get(session, payment_id), credit_accounts.balance(session, payment_id)
    may_begin = not has_ended and not balance.spent_nanos and clock.now() < payment.created_at + _UNUSED_FOR
    if payment.status != PaymentStatus.AUTHORIZED or balance.held_nanos or may_begin:
        return payment
    try:
        if units := units_of(balance.spent_nanos):
            _submit(payment, units, waits=waits)
        else:
            _release(payment_id)
    except Rejected as error:
        _log.warning("metered_payment_refused", payment_id=payment_id, payer=payment.payer, reason=error.reason)
        if error.reason == _USED or clock.now().timestamp() > int(payment.terms["deadline"]):
            with unit_of_work() as session:
                claimed_payments.mark_unpaid(session, payment_id, by_payer=error.reason in _BY_PAYER)
    except _Superseded:
        pass
    return settlement.resolve(payment_id)


def _release(payment_id: str) -> None:
    """Void a payment on which nothing was spent or is held, so that it can be presented again."""
    with unit_of_work() as session:
        if _close(session, payment_id).granted_nanos:
            raise _Superseded
        claimed_payments.void(session, payment_id)


def settle_due(chain: ChainName) -> None:
    """Settle the payments of one chain whose calls have ended, as after a crash; once a minute. For a worker."""
    with read_only_unit() as session:
        if not claimed_payments.find_settling(session, chain, 1, PaymentStatus.AUTHORIZED):
            return
    with leases.once_per_period(_PERIOD, f"metered:{chain.value}", duration=_PERIOD) as is_due:
        if not is_due:
            return
    settle_one = partial(settle, waits=False, has_ended=False)
    settlement.resolve_pending(chain, settle_one, _BATCH, PaymentStatus.AUTHORIZED)


def check(session: Session) -> list[str]:
    """Return one sentence per payment whose submission is not what its account has spent."""
    submitted = Payment.rail == PaymentRail.UPTO.value, Payment.transaction_id.is_not(None)
    balances = credit_accounts.balances(session, select(Payment.id).where(*submitted))
    return [
        f"payment {each} takes {units} units, and its account has spent {balances[each].spent_nanos} nanos"
        for each, units in session.execute(select(Payment.id, Payment.units).where(*submitted))
        if units_of(balances[each].spent_nanos) != units
    ]


def _submit(payment: PaymentRow, units: int, *, waits: bool) -> None:
    """Record and broadcast the submission. Raises: Rejected, Unreachable, _Superseded before anything was recorded."""
    name = ChainName(payment.chain)
    chain, wallet = app_state().ports.chains[name], treasury.wallet(WalletRole.SETTLEMENT, name)
    claim = str(payment.terms["claim"])
    authorization = PaymentAuthorization(claim, payment.payer or "", payment.recipient, payment.units, payment.terms)
    draft = _scheme(name).draft_settlement(authorization, units, settler=wallet.address_on(name))
    network_fees.assert_acceptable(name, draft.fee_units)
    signer = custody.signer_of(wallet.id, wallet.addresses)
    intent = relayed.intent_of(name, wallet, draft, settlement.KIND)
    with intents.recording(intent) as session:
        recorded, signed = relayed.record_submission(session, chain, wallet, draft, signer, intent=intent)
        taken = {"units": units, "required_units": units, "transaction_id": recorded.id, "tx_hash": signed.tx_hash}
        # The account is locked before the payment, as in `_release`.
        closed, authorized, settling = _close(session, payment.id), PaymentStatus.AUTHORIZED, PaymentStatus.SETTLING
        moved = PAYMENTS.move(session, payment.id, authorized, settling, **taken)
        if not moved or units_of(closed.spent_nanos) != units:
            raise _Superseded
    wait_seconds = None if waits else Decimal(0)
    pipeline.broadcast_and_wait(chain, recorded, signed, wait_seconds=wait_seconds, account_id=ANONYMOUS)


def _close(session: Session, account_id: str) -> credit_accounts.Balance:
    """Take back what is left in the account of a payment, and keep what it has spent; return its balance."""
    credit_holds.finish_lapsed(session, account_id)
    credit_accounts.revoke(session, account_id, credit_accounts.MAX_GRANTED_NANOS, reference=f"payment:{account_id}")
    return credit_accounts.balance(session, account_id)


def _check(session: Session, payment: Payment, draft: TransactionDraft) -> None:
    """Check what a new payment adds to what is open, and that its payer's funds cover all of it. Raises: Rejected."""
    payer, settings = payment.payer or "", app_state().settings
    settlement_risks.assert_accepted(session, payer, payment.terms["claim"])
    if claimed_payments.has_unpaid(session, payer):
        raise Rejected(UNPAID)
    # A submission that its payer makes fail costs its fee, too.
    if settlement_risks.failed_by_chain(session)[payment.chain] >= settlement_risks.budget_nanos():
        raise Rejected(PAUSED)
    for reason, of_payer, limit_usd in (
        (PAYER_LIMIT, payer, settings.x402_upto_usd_per_payer), (PAUSED, None, settings.x402_upto_usd),
    ):  # fmt: skip
        units = claimed_payments.metered_units(session, of_payer) + payment.units
        if units * NANOS_PER_UNIT > nanos_from_usd(limit_usd):
            raise Rejected(reason, details={"limit_usd": str(limit_usd)})
    if (draft.payer_units or 0) < claimed_payments.open_units(session, payer, payment.chain) + payment.units:
        raise Rejected(settlement_risks.FUNDS_IN_USE)


def _scheme(chain: ChainName) -> MeteredScheme:
    """Return the scheme of a chain. Raises: Rejected."""
    return require(app_state().ports.facilitators[chain].metered, Rejected("unsupported_scheme"))
