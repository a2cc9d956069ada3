"""The page of an owner's notices: e-mail addresses and browsers that are notified.

Before its recipient has opened a link, an address gets nothing but that link, which is signed and holds what it
confirms: nothing is stored for an address that is never confirmed.
"""

from contextlib import suppress
from typing import Any

from flask import Response, request, url_for
from itsdangerous import BadData
from marshmallow import ValidationError

from app.audit_log import trail
from app.audit_log.actors import owner_actor
from app.audit_log.trail import AuditAction
from app.core.identifiers import new_id
from app.core.pagination import PageRequest
from app.errors import InvalidInput, LimitReached, RateLimited
from app.events import channels, delivery_log, feed, targets
from app.events.outbox import OWNER_IS_TOLD, EventType
from app.events.queues import mailbox_of
from app.events.targets import Audience, Subscriber, TargetKind
from app.idempotency.service import Claim
from app.identity.limits import client_network
from app.identity.owner_keys import OwnerKeyView
from app.owner.session.auth import agent_of, printable, render_page, see_other, serializer, session_pages
from app.ports.errors import PortError, Unreachable
from app.state import app_state
from app.web.fields import Email


def send_link(agent_id: str, address: str, *, network: str, page_url: str) -> None:
    """Send the link that confirms an address for the owner of an agent. Raises: RateLimited, PortError."""
    state = app_state()
    if state.ports.mailer is None:
        raise Unreachable("no_mail_server")
    # Anyone's address can be typed, and agents are free.
    state.rate_limiter.count("10 per day", "notice-agent", agent_id)
    state.rate_limiter.count("30 per hour", "notice-network", network)
    state.rate_limiter.count("3 per day", "notice-address", mailbox_of(address))
    state.rate_limiter.count("300 per hour", "notice-service", "all")
    token = serializer("owner-notices").dumps([agent_id, address])
    # Nothing that an agent or its owner wrote: the message goes to an address that neither may own.
    text = (
        "This address was entered on a page of Purser to receive notices about an agent: payments that wait for a "
        "decision, and limits that are reached.\n\n"
        f"If that was you, confirm it within an hour; you may have to sign in:\n{page_url}/{token}\n\n"
        "If it was not, do nothing: no other message follows.\n"
    )
    state.ports.mailer.send(address, subject="Confirm your address for notices", text=text, message_id=new_id())


def send_farewell(agent_id: str, address: str) -> None:
    """Send the last message to an address that was removed; one that cannot be sent is left out."""
    mailer = app_state().ports.mailer
    if mailer is None:
        return
    text = (
        f"This address was removed on a page of Purser: it gets no more notices about the agent {agent_id}.\n\n"
        "If you did not do that, another person is signed in as the agent's owner. Replace the owner key, or ask the "
        f"operator of this service to freeze the agent:\n{app_state().settings.public_url}/owner\n"
    )
    with suppress(PortError):
        mailer.send(address, subject="No more notices to this address", text=text, message_id=new_id())


NOTICE_TYPES = (
    EventType.APPROVAL_REQUESTED, EventType.APPROVAL_FAILED, EventType.BUDGET_THRESHOLD_REACHED, EventType.CREDITS_LOW,
    EventType.WALLET_FROZEN, EventType.CONTROLS_CHANGED, *OWNER_IS_TOLD,
)  # fmt: skip
"""What an owner is notified of."""
_PAGE = "/agents/<string:agent_id>/notices"


@session_pages.post(f"{_PAGE}/email")
def send_confirmation(key: OwnerKeyView) -> Response:
    try:
        address = Email(required=True).deserialize(request.form.get("email", ""))
    except ValidationError:
        address = None
    if address is None:
        return _render(key, error="This is not an email address.", status=400)
    page = url_for("owner.confirm_address", agent_id=key.agent_id, token="")
    try:
        page_url, network = app_state().settings.public_url + page.rstrip("/"), client_network(request.remote_addr)
        # An IPv4 /24 or IPv6 /64: agents are free, and so are the addresses of a host.
        send_link(key.agent_id, address, network=network.rpartition(".")[0] or network, page_url=page_url)
    except RateLimited as refusal:
        return _render(key, error="Too many messages were requested. Try again tomorrow.", status=refusal.status)
    except PortError:
        return _render(key, error="The message could not be sent.", status=503)
    trail.record_alone(owner_actor(key.id), AuditAction.NOTICE_LINK_SENT, key.agent_id)
    return see_other(url_for("owner.show_notices", agent_id=key.agent_id, done="sent"))


@session_pages.route(f"{_PAGE}/email/<string:token>", methods=["GET", "POST"])
def confirm_address(key: OwnerKeyView, token: str) -> Response:
    """Add the address that a link confirms, once; opening the link only asks, as programs open links, too."""
    try:
        issued_for, address = serializer("owner-notices").loads(token, max_age=3600)
    except (BadData, ValueError, TypeError):
        issued_for, address = "", ""
    if issued_for != key.agent_id:
        return _render(key, error="This link has expired or belongs to another agent.", status=400)
    if request.method != "POST":
        return _render(key, confirming=address, token=token)
    try:
        targets.add_email(_subscriber(key), address, types=NOTICE_TYPES)
    except LimitReached as failure:
        return _render(key, error=failure.message, status=failure.status)
    return see_other(url_for("owner.show_notices", agent_id=key.agent_id, done="added"))


@session_pages.post(f"{_PAGE}/browser")
def add_browser(key: OwnerKeyView) -> Response:
    subscription = {name: request.form.get(name, "")[:2000] for name in ("endpoint", "p256dh", "auth")}
    name = printable(request.form.get("name", ""))[:60] or "Browser"
    try:
        targets.add_browser(_subscriber(key), **subscription, types=NOTICE_TYPES, description=name)
    except (InvalidInput, LimitReached) as failure:
        return _render(key, error=failure.message, status=failure.status)
    return see_other(url_for("owner.show_notices", agent_id=key.agent_id, done="added"))


@session_pages.post(f"{_PAGE}/webhook")
def add_webhook(key: OwnerKeyView) -> Response:
    """Add a webhook, and show its secret once."""
    try:
        made = targets.create_webhook(
            _subscriber(key), url=request.form.get("url", "").strip(), types=NOTICE_TYPES, description="",
            claim=Claim.none(),
        )  # fmt: skip
    except (InvalidInput, LimitReached) as failure:
        return _render(key, error=failure.message, status=failure.status)
    return _render(key, secret=made.secret)


@session_pages.post(f"{_PAGE}/test")
def send_test_notice(key: OwnerKeyView) -> Response:
    app_state().rate_limiter.count("20 per day", "notice-test", key.agent_id)
    delivery_log.send_test(_subscriber(key), request.form.get("target_id", "")[:36])
    return see_other(url_for("owner.show_notices", agent_id=key.agent_id, done="tested"))


@session_pages.post(f"{_PAGE}/remove")
def remove_target(key: OwnerKeyView) -> Response:
    removed = targets.remove(_subscriber(key), request.form.get("target_id", "")[:36])
    if removed.kind == TargetKind.EMAIL:
        send_farewell(key.agent_id, removed.url.removeprefix("mailto:"))
    return see_other(url_for("owner.show_notices", agent_id=key.agent_id, done="removed"))


@session_pages.get(_PAGE, endpoint="show_notices")
def _render(key: OwnerKeyView, *, status: int = 200, **values: Any) -> Response:
    """List an owner's targets, with the forms that add one."""
    listed = targets.list_of(_subscriber(key), PageRequest(targets.MAX_TARGETS, 0)).items
    recent = feed.latest(key.agent_id, PageRequest(50, 0), NOTICE_TYPES).items
    return render_page(
        "notices.html", status=status, agent=agent_of(key),
        listed=[(each, delivery_log.last_of(each.id)) for each in listed], limit=targets.MAX_TARGETS,
        can_mail=app_state().ports.mailer is not None, push_key=channels.web_push_key(),
        recent=recent, done=request.args.get("done"), **values,
    )  # fmt: skip


def _subscriber(key: OwnerKeyView) -> Subscriber:
    return Subscriber(Audience.OWNER, key.agent_id, owner_actor(key.id))
