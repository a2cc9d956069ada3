"""Confirmation of e-mail addresses: before its recipient has opened a link, an address gets nothing but that link.

The link is signed and holds what it confirms, so nothing is stored for an address that is never confirmed.
"""

from __future__ import annotations

from contextlib import suppress

from itsdangerous import BadData

from app.core.identifiers import new_id
from app.core.mailboxes import mailbox_of
from app.owner.session.signed_texts import serializer
from app.ports.errors import PortError, Unreachable
from app.state import app_state

_VALID_FOR_SECONDS = 3600
# Anyone's address can be typed, and agents are free.
_PER_MAILBOX, _PER_AGENT = "3 per day", "10 per day"
_PER_NETWORK, _PER_SERVICE = "30 per hour", "300 per hour"


def send_link(agent_id: str, address: str, *, network: str, page_url: str) -> None:
    """Send the link that confirms an address for the owner of an agent. Raises: RateLimited, PortError."""
    state = app_state()
    if state.ports.mailer is None:
        raise Unreachable("no_mail_server")
    state.rate_limiter.count(_PER_AGENT, "notice-agent", agent_id)
    state.rate_limiter.count(_PER_NETWORK, "notice-network", network)
    state.rate_limiter.count(_PER_MAILBOX, "notice-address", mailbox_of(address))
    state.rate_limiter.count(_PER_SERVICE, "notice-service", "all")
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


def address_of(agent_id: str, token: str) -> str | None:
    """Return the address that a link confirms for the owner of an agent, None if it is forged or expired."""
    try:
        issued_for, address = serializer("owner-notices").loads(token, max_age=_VALID_FOR_SECONDS)
    except (BadData, ValueError, TypeError):
        return None
    return str(address) if issued_for == agent_id else None
