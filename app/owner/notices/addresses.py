"""Confirmation of e-mail addresses: before its recipient has opened a link, an address gets nothing but that link.

The link is signed and holds what it confirms, so nothing is stored for an address that is never confirmed.
"""

from __future__ import annotations

from itsdangerous import BadData, URLSafeTimedSerializer

from app.core.identifiers import new_id
from app.ports.errors import Unreachable
from app.state import app_state

_VALID_FOR_SECONDS = 3600
# Anyone's address can be typed.
_PER_ADDRESS, _PER_AGENT = "3 per day", "10 per day"


def send_link(agent_id: str, address: str, *, page_url: str) -> None:
    """Send the link that confirms an address for the owner of an agent. Raises: RateLimited, PortError."""
    state = app_state()
    if state.ports.mailer is None:
        raise Unreachable("no_mail_server")
    state.rate_limiter.count(_PER_AGENT, "notice-agent", agent_id)
    state.rate_limiter.count(_PER_ADDRESS, "notice-address", address)
    token = _serializer().dumps([agent_id, address])
    # Nothing that an agent or its owner wrote: the message goes to an address that neither may own.
    text = (
        "This address was entered on a page of Purser to receive notices about an agent: payments that wait for a "
        "decision, and limits that are reached.\n\n"
        f"If that was you, confirm it within an hour; you may have to sign in:\n{page_url}/{token}\n\n"
        "If it was not, do nothing: no other message follows.\n"
    )
    state.ports.mailer.send(
        address, subject="Confirm your address for notices", text=text, message_id=new_id()
    )


def address_of(agent_id: str, token: str) -> str | None:
    """Return the address that a link confirms for the owner of an agent, None if it is forged or expired."""
    try:
        issued_for, address = _serializer().loads(token, max_age=_VALID_FOR_SECONDS)
    except (BadData, ValueError, TypeError):
        return None
    return str(address) if issued_for == agent_id else None


def _serializer() -> URLSafeTimedSerializer:
    # The library signs with the last key and accepts all.
    return URLSafeTimedSerializer([*reversed(app_state().settings.secret_key_list())], salt="owner-notices")
