"""Payments of USDC that the service submits: what they cost it, how many of an agent a day, and what covers them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sqlalchemy import BigInteger, bindparam, select, update
from sqlalchemy.orm import Session

from app.core import clock
from app.core.chains import USDC, ChainName
from app.core.money import TokenAmount, nanos_from_usd
from app.db.prepared import PreparedInsert, PreparedRead, PreparedStatement
from app.db.statements import table_of
from app.ports.chain import SignedTransaction, TransactionDraft
from app.ports.errors import Rejected, Unreachable
from app.ports.sponsor import AuthorizedTransfer, GasSponsor, SponsoredDraft, SponsoredTransfer
from app.ports.vault import Signer
from app.state import app_state
from app.wallets.core import network_fees, parsing, wallets
from app.wallets.core.models import SponsoredDay
from app.wallets.core.wallets import WalletView
from app.wallets.transactions import relayed, settlement
from app.wallets.transactions.pipeline import Movement, NotAffordable
from app.wallets.views.history import TransactionView

UNAVAILABLE = "gas_unavailable"
SUBMISSION_KIND = "sponsored"
# Its row counts what free transfers cost, in millionths of a dollar.
_ALL_AGENTS, _NANOS_PER_COUNT = "00000000-0000-0000-0000-000000000000", 1_000
# USDC counts as one dollar everywhere.
NANOS_PER_UNIT = 10**9 // 10**USDC.decimals
_MARGIN_PERCENT = 10
"""What the fee is above the expected cost."""
_OF_TODAY = (SponsoredDay.agent_id == bindparam("of_agent")) & (SponsoredDay.day == bindparam("today"))
_USED_TODAY = PreparedRead(select(SponsoredDay.transfers).where(_OF_TODAY))
_INSERT_DAY = PreparedInsert(SponsoredDay, unique=[SponsoredDay.agent_id, SponsoredDay.day])
_COUNTED = SponsoredDay.transfers + bindparam("amount", type_=BigInteger)
_COUNT_TODAY = PreparedStatement(
    update(table_of(SponsoredDay))
    .where(_OF_TODAY, bindparam("maximum", type_=BigInteger) >= _COUNTED)
    .values({SponsoredDay.transfers: _COUNTED})
    .returning(SponsoredDay.transfers)
)


@dataclass(frozen=True, slots=True)
class SponsorTransaction:
    """A transaction of the service's wallet: it submits a payment, or delivers a native token."""

    chain: ChainName
    draft: TransactionDraft
    sponsor: GasSponsor
    wallet: WalletView


@dataclass(frozen=True, slots=True)
class SubmissionPlan:
    """A payment that the chain would execute; `cost_nanos` is what its submission is likely to cost the service."""

    chain: ChainName
    draft: SponsoredDraft
    sponsor_wallet: WalletView
    cost_nanos: int

    def submission(self, authorized: AuthorizedTransfer) -> SponsorTransaction:
        """Return the submission of the payment once it is signed."""
        sponsor = self.draft.transfer.sponsor
        return SponsorTransaction(self.chain, authorized.submission, sponsor, self.sponsor_wallet)


def is_available(chain: ChainName) -> bool:
    """Return whether the service submits payments of USDC on a chain at all."""
    state = app_state()
    return chain in state.ports.sponsors and state.settings.sponsored_per_day > 0


def plan(chain: ChainName, sender: str, recipient: str | None, units: int) -> SubmissionPlan:
    """Read the chain and the price; without a recipient, it is the service. Raises: Rejected, InvalidInput."""
    state = app_state()
    sponsor = state.gas_sponsor(chain, 0)
    transfer = SponsoredTransfer(sender, recipient or sponsor.fee_recipient, units, sponsor)
    try:
        draft = state.ports.sponsors[chain].draft(transfer)
    except Unreachable as error:
        raise Rejected("chain_unreachable", details=error.details) from None
    except Rejected as error:
        raise parsing.invalid_input_from(error.reason, error.details) or error from None
    network_fees.assert_acceptable(chain, draft.submission.fee_units)
    return SubmissionPlan(chain, draft, wallets.get_with_controls(sponsor.wallet_id), value_nanos(draft.cost))


def value_nanos(cost: TokenAmount) -> int:
    """Return the dollar value of a cost in a native token. Raises: Rejected("gas_price_unknown")."""
    found = network_fees.usd_value_nanos(cost)
    if found is None:
        raise Rejected("gas_price_unknown")
    return found


def price_units(cost_nanos: int) -> int:
    """Return what the service takes for a cost, in USDC: with a margin, rounded up."""
    units: int = -(-cost_nanos * (100 + _MARGIN_PERCENT) // (100 * NANOS_PER_UNIT))
    return units


def assert_fee_below(fee_units: int, amount: TokenAmount) -> None:
    """Check that a fee in USDC does not exceed what it is paid for. Raises: Rejected("gas_fee_too_high")."""
    if fee_units > amount.units:
        details = {"fee": str(TokenAmount(fee_units, USDC)), "amount": str(amount), "currency": USDC.symbol}
        raise Rejected("gas_fee_too_high", details=details)


def assert_affordable(session: Session, movement: Movement, draft: SponsoredDraft, *, units: int) -> None:
    """Check that the balance covers units of USDC after all unmined movements. Raises: NotAffordable."""
    unmined_units, _fees = settlement.outflows(
        session, movement.sender, movement.chain, since_sequence=draft.sequence, since_block=draft.since_block
    )
    needed = units + unmined_units.get(USDC, 0)
    if needed > draft.token_units:
        raise NotAffordable("insufficient_funds", USDC, available=draft.token_units, required=needed)


def next_number_today(session: Session, agent_id: str) -> int:
    """Return the number that an agent's next submission today has. Raises: Rejected("sponsored_limit")."""
    number = _used_today(session, agent_id) + 1
    if number > app_state().settings.sponsored_per_day:
        raise Rejected("sponsored_limit")
    return number


def count_today(session: Session, agent_id: str) -> int:
    """Count one more submission of an agent today; return its number. Raises: Rejected("sponsored_limit")."""
    number = _count_today(session, agent_id, app_state().settings.sponsored_per_day)
    if number is None:
        raise Rejected("sponsored_limit")
    return number


def is_free(session: Session, plan: SubmissionPlan, number: int, *, counts: bool) -> bool:
    """Return whether an agent's transfer with this number today is free, and with `counts` count it for all agents.

    Agents cost nothing: what is free for each of them is bounded for all together.
    """
    settings = app_state().settings
    if number > settings.sponsored_free_per_day or plan.draft.creates_account:
        return False
    most = nanos_from_usd(settings.sponsored_free_usd_per_day) // _NANOS_PER_COUNT
    cost = -(-plan.cost_nanos // _NANOS_PER_COUNT)
    if counts:
        return _count_today(session, _ALL_AGENTS, most, amount=cost) is not None
    return _used_today(session, _ALL_AGENTS) + cost <= most


def _used_today(session: Session, agent_id: str) -> int:
    row = _USED_TODAY.one_or_none(session, {"of_agent": agent_id, "today": clock.now().date()})
    return 0 if row is None else int(row.transfers)


def _count_today(session: Session, agent_id: str, maximum: int, *, amount: int = 1) -> int | None:
    """Add to the count of today; return it, None if that would exceed the maximum."""
    today = clock.now().date()
    values = {"of_agent": agent_id, "today": today, "maximum": maximum, "amount": amount}
    number = _COUNT_TODAY.scalar(session, values)
    if number is None:
        _INSERT_DAY.execute(session, {"agent_id": agent_id, "day": today, "transfers": 0})
        number = _COUNT_TODAY.scalar(session, values)
    return None if number is None else int(number)


def record(
    session: Session, transaction: SponsorTransaction, signer: Signer, *, kind: str = SUBMISSION_KIND
) -> tuple[TransactionView, SignedTransaction]:
    """Sign a transaction that leaves the service's wallet the gas that payments need, and record it as pending.

    Raises: Rejected("gas_unavailable"), also for what concurrent requests have spent since the balance was read.
    """
    chain, draft = app_state().ports.chains[transaction.chain], transaction.draft
    spendable = replace(draft, native_units=draft.native_units - transaction.sponsor.reserve_units)
    try:
        return relayed.record_submission(session, chain, transaction.wallet, spendable, signer, kind=kind)
    except Rejected as error:
        if error.reason != "insufficient_gas":
            raise
        raise Rejected(UNAVAILABLE) from None
