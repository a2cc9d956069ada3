"""The form of a wallet's limits and allowlists. Loosening requires the owner key; tightening does not."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, time, timedelta
from decimal import Decimal
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from flask import Response, request, url_for
from marshmallow import ValidationError

from app.approvals import service as approvals
from app.approvals.models import ApprovalStatus
from app.buying import records as service_purchases
from app.core import clock
from app.core.money import NANOS_PER_USD, usd_string
from app.core.movement_kinds import MovementKind
from app.core.pagination import PageRequest
from app.db.unit_of_work import read_only_unit
from app.identity.owner_keys import OwnerKeyView
from app.owner import address_book
from app.owner.passkeys import service as passkeys
from app.owner.session import sessions
from app.owner.session.auth import agent_of, owned_wallet, render_page, see_other, session_pages
from app.platform.agents import fleet
from app.platform.agents.fleet import LooseningNotAllowed
from app.shopping import service as shopping
from app.spending import accounts, approval_rules, controls, holds, policy
from app.spending.approval_rules import PastPayment, Verdict
from app.spending.controls import ControlsChange
from app.spending.policy import DEFAULT, Controls, SpendingRequest
from app.wallets.api.schemas import ControlsBody
from app.wallets.core import wallets
from app.wallets.core.wallets import WalletView
from app.wallets.views import history

_DOLLAR_FIELDS = (
    "per_tx_limit_usd", "daily_limit_usd", "weekly_limit_usd", "monthly_limit_usd", "approval_threshold_usd",
)  # fmt: skip
_ASK_FIELDS = ("approve_new_recipients", "approve_new_domains")
_ALLOWLIST_FIELDS = ("allowed_addresses", "allowed_domains")
PRESETS = {
    "careful": Controls(
        20 * NANOS_PER_USD, 50 * NANOS_PER_USD, 100 * NANOS_PER_USD, per_tx_limit_nanos=10 * NANOS_PER_USD,
        approval_threshold_nanos=5 * NANOS_PER_USD, approve_new_recipients=True, approve_new_domains=True,
    ),
    "normal": replace(DEFAULT, approve_new_recipients=True),
    "free": Controls(),
}  # fmt: skip
"""What the buttons above the form fill in; the lists stay as they are."""
_PATH = "/agents/<string:agent_id>/wallets/<string:wallet_id>/limits"
# A comma is accepted only before three digits: in half of the world "12,50" is twelve and a half.
_NUMBER = re.compile(r"\$?\s*((?:[0-9]{1,3}(?:[,'][0-9]{3}){1,6}|[0-9]{1,21})(?:\.[0-9]{1,9})?)", re.ASCII)
_SHOWN_ENTRIES = 3
_OWNER_KEY_NEEDED = "Enter your owner key, because this change raises a limit or allows more than before."


@session_pages.get(_PATH)
def show_limits(key: OwnerKeyView, wallet_id: str) -> Response:
    """Show the form with a wallet's limits, or with those of a preset, which are not saved yet."""
    wallet = owned_wallet(key, wallet_id)
    values = _form_values(wallet.spending_controls)
    preset = PRESETS.get(request.args.get("preset", ""))
    if preset is None:
        return _render_form(key, wallet, values)
    values |= _form_values(preset) | {name: values[name] for name in _ALLOWLIST_FIELDS}
    return _render_form(key, wallet, values, changes=_parse_form(values)[0])


@session_pages.post(_PATH)
def save_limits(key: OwnerKeyView, wallet_id: str) -> Response:
    """Save the limits of a wallet, or show first what they change; they apply to the next movement."""
    wallet = owned_wallet(key, wallet_id)
    typed = {name: request.form.get(name, "") for name in (*_DOLLAR_FIELDS, *_ALLOWLIST_FIELDS, *_ASK_FIELDS)}
    changes, problems = _parse_form(typed)
    if changes is None:
        return _render_form(key, wallet, typed, problems=problems, status=400)
    if request.form.get("step") == "review":
        return _render_form(key, wallet, typed, changes=changes)
    is_confirmed = bool(request.form.get("passkey") or request.form.get("owner_key", "").strip())
    if is_confirmed and (refusal := passkeys.find_refusal(key)) is not None:
        return _render_form(key, wallet, typed, changes=changes, key_error=refusal, status=403)
    try:
        changed = fleet.set_wallet_controls(sessions.acting_owner(key), wallet, changes, allow_loosening=is_confirmed)
    except LooseningNotAllowed:
        return _render_form(key, wallet, typed, changes=changes, key_error=_OWNER_KEY_NEEDED, status=403)
    done = "limits" if changed else "unchanged"
    return see_other(url_for("owner.show_wallet", agent_id=key.agent_id, wallet_id=wallet_id, done=done))


def _parse_form(typed: Mapping[str, str]) -> tuple[ControlsChange | None, dict[str, str]]:
    """Validate the form as the JSON API validates a body: one set of rules for both."""
    body: dict[str, Any] = {name: bool(typed[name]) for name in _ASK_FIELDS}
    problems: dict[str, str] = {}
    for name in _DOLLAR_FIELDS:
        number = _number(typed[name])
        if number is None:
            problems[name] = "Enter an amount in dollars, such as 50 or 12.50, or leave it empty for no limit."
        else:
            body[name] = number
    body |= {name: typed[name].replace(",", " ").split() for name in _ALLOWLIST_FIELDS}
    try:
        values = ControlsBody().load(body)
    except ValidationError as error:
        problems |= {name: _problem_text(of, body[name]) for name, of in error.messages_dict.items()}
        return None, problems
    return (None, problems) if problems else (ControlsChange(**values), {})


def dollars_of(text: str) -> int:
    """Return the nano-dollars that an owner typed as an amount, 0 if it is no valid amount."""
    try:
        number = _number(text)
        limit: int = ControlsBody().load({"weekly_limit_usd": number})["weekly_limit_nanos"] if number else 0
    except ValidationError:
        return 0
    return limit


def _number(text: str) -> Decimal | None:
    """Parse dollars as people write them; empty means no limit."""
    stripped = text.strip()
    if not stripped:
        return Decimal(0)
    found = _NUMBER.fullmatch(stripped)
    return None if found is None else Decimal(found[1].replace(",", "").replace("'", ""))


def _problem_text(problems: Any, typed: Any) -> str:
    """Return the error message of a number, or of the invalid entries of a list."""
    if not isinstance(problems, Mapping):
        return f"It {'; '.join(map(str, problems))}."
    places = {place: "; ".join(map(str, of)) for place, of in problems.items() if isinstance(place, int)}
    texts = [f"“{typed[place][:60]}” {of}." for place, of in places.items()]
    more = [f"{len(texts) - _SHOWN_ENTRIES} more entries are invalid."] if len(texts) > _SHOWN_ENTRIES else []
    return " ".join([*texts[:_SHOWN_ENTRIES], *more])


def _form_values(controls: Controls | None) -> dict[str, str]:
    if controls is None:
        return dict.fromkeys((*_DOLLAR_FIELDS, *_ALLOWLIST_FIELDS, *_ASK_FIELDS), "")
    amounts = {name: getattr(controls, name.replace("_usd", "_nanos")) for name in _DOLLAR_FIELDS}
    return {
        **{name: "on" if getattr(controls, name) else "" for name in _ASK_FIELDS},
        **{name: usd_string(nanos) if nanos else "" for name, nanos in amounts.items()},
        **{name: "\n".join(getattr(controls, name)) for name in _ALLOWLIST_FIELDS},
    }


def _render_form(
    key: OwnerKeyView, wallet: WalletView, values: Mapping[str, str], *, changes: ControlsChange | None = None,
    problems: Mapping[str, str] | None = None, key_error: str = "", status: int = 200,
) -> Response:  # fmt: skip
    """Render the form, and above it what a change means, if there is one."""
    preview = preview_of(wallet, changes) if changes else None
    with read_only_unit() as session:
        owned = wallets.all_of(session, key.agent_id)
    return render_page(
        "limits.html", status=status, agent=agent_of(key), wallet=wallet, wallets=owned, values=values,
        before=_form_values(wallet.spending_controls), dollars_of=dollars_of, presets=PRESETS,
        chosen=request.args.get("preset"), reviewed=changes is not None, preview=preview,
        most_payments=MOST_PAYMENTS, problems=problems or {}, key_error=key_error,
        alike=address_book.look_alikes(key.agent_id, preview.added) if preview else {},
        prompt=passkeys.prompt_for(key) if key_error or (preview and preview.loosens) else None,
    )  # fmt: skip


MOST_PAYMENTS = 500
"""With more, a page would take longer than 150 ms of processor time."""
_TO_PAYEES = {MovementKind.TRANSFER, MovementKind.WITHDRAWAL, MovementKind.X402}


Decided: TypeAlias = tuple[PastPayment, Verdict, Verdict]


@dataclass(frozen=True, slots=True)
class LimitsPreview:
    """The payments of 30 days with what the controls before and after a change decide, the latest first."""

    loosens: bool
    added: Sequence[str]
    payments: Sequence[Decided]

    def total(self, verdict: str = "", *, which: int = 0) -> tuple[int, int]:
        """Return the number and the value of payments, of all or of those that are decided so; `which` is 1 or 2."""
        values = [each[0].request.value_nanos or 0 for each in self.payments if not which or each[which] == verdict]
        return len(values), sum(values)

    @property
    def changed(self) -> Sequence[Decided]:
        """Return the latest payments that are decided otherwise."""
        return [each for each in self.payments if each[1] != each[2]][:5]


def preview_of(wallet: WalletView, changes: controls.ControlsChange) -> LimitsPreview | None:
    """Return what a change means; None if it changes nothing."""
    old = wallet.spending_controls
    new = controls.apply_changes(old, changes)
    if new == old:
        return None
    first = clock.now() - timedelta(days=30)
    payments = _payments(wallet, first)
    payees = {payee for each in payments for payee in approval_rules.payees_of(each.request)}
    with read_only_unit() as session:
        known = accounts.known_payees(session, wallet.id, payees, clock.now().date())
    before, after = (list(approval_rules.replay(each, payments, known)) for each in (old, new))
    decided = list(zip(payments, before, after, strict=True))
    return LimitsPreview(
        loosens=old is not None and policy.is_looser(old, new),
        added=[each for each in new.allowed_addresses if old is None or each not in old.allowed_addresses],
        payments=[each for each in reversed(decided) if each[0].at >= first],
    )


def _payments(wallet: WalletView, first: datetime) -> list[PastPayment]:
    """Return what counted since the windows of an instant began, with its payees."""
    windows = policy.windows(first.date())
    since = min(windows.week.start, windows.month.start)
    with read_only_unit() as session:
        counted = holds.counted_since(session, wallet.id, since, most=MOST_PAYMENTS)
        targets = history.targets_of(session, [row.reference for row in counted])
    requests = service_purchases.requests_of([each for each, (kind, _) in targets.items() if kind == MovementKind.X402])
    page = PageRequest(MOST_PAYMENTS, 0, None, datetime.combine(since, time(), UTC))
    waiting = approvals.list_of(PageRequest(MOST_PAYMENTS, 0), wallet_id=wallet.id, status=ApprovalStatus.AWAITING)
    orders = shopping.list_of(page, account_id=wallet.agent_id, wallet_id=wallet.id)
    domains = {each: urlsplit(text.partition(" ")[2]).hostname for each, text in requests.items()}
    domains |= {each.id: each.host for each in orders.items} | {each.id: each.domain for each in waiting.items}
    recipients: dict[str, str | None] = {
        each: address for each, (kind, address) in targets.items() if kind in _TO_PAYEES
    }
    recipients |= {each.id: each.recipient for each in waiting.items}
    return [
        PastPayment(row.created_at, row.made_on, SpendingRequest(
            row.amount_nanos, recipients.get(row.reference), domain=domains.get(row.reference),
            is_network_fee=targets.get(row.reference, ("",))[0] == MovementKind.GAS,
        ))
        for row in counted
    ]  # fmt: skip
