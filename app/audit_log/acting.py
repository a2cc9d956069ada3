"""The actor of the current request."""

from __future__ import annotations

from app.audit_log import actors
from app.audit_log.actors import Actor
from app.identity import guards, limits
from app.web.client_request import current_request


def current_actor() -> Actor:
    """Return the holder of the request's master key or API key. Raises: Unauthorized without one."""
    address = limits.client_address(current_request().remote_addr)
    if guards.has_master_key():
        return actors.master_key_actor(guards.current_master_key(), client_address=address)
    return actors.agent_actor(guards.current_principal(), client_address=address)
