"""Actors: the holder of a master or API key, an owner, a user at a shell, an anonymous client, or the service."""

import os
import pwd
import socket
from dataclasses import dataclass
from enum import StrEnum

from app.identity import guards
from app.identity.principal import SHELL, Principal
from app.observability import telemetry
from app.web.client_request import current_request


class ActorKind(StrEnum):
    MASTER_KEY = "master_key"
    AGENT = "agent"
    OWNER = "owner"
    COMMAND = "command"
    WORKER = "worker"
    ANONYMOUS = "anonymous"


@dataclass(frozen=True, slots=True)
class Actor:
    """An actor, with the id and network of the request; a command has neither."""

    kind: ActorKind
    id: str | None
    name: str
    request_id: str | None = None
    client_address: str | None = None


def agent_actor(key: Principal) -> Actor:
    """Return the holder of a key, or an application, as the client of the current request."""
    name = "agent" if key.grant is None else f"application {key.grant.client_host}"[:200]
    return _of_request(ActorKind.AGENT, key.key_id, name)


def owner_actor(owner_key_id: str) -> Actor:
    """Return an agent's owner, by the owner key, as the client of the current request, without the email address."""
    return _of_request(ActorKind.OWNER, owner_key_id, "owner")


def shell_actor() -> Actor:
    """Return the machine's account that runs a command."""
    try:
        name = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        # Containers run as user ids without an account.
        name = str(os.getuid())
    return Actor(ActorKind.COMMAND, None, f"{name}@{socket.gethostname()}"[:200])


def anonymous_actor(network: str) -> Actor:
    return Actor(ActorKind.ANONYMOUS, None, "anonymous", telemetry.originating_request_id(), network[:60])


def system_actor(job: str) -> Actor:
    return Actor(ActorKind.WORKER, None, job)


def current_actor() -> Actor:
    """Return the user at a shell, or the holder of the request's master or API key. Raises: Unauthorized without."""
    if guards.has_master_key():
        key = guards.current_master_key()
        return shell_actor() if key is SHELL else _of_request(ActorKind.MASTER_KEY, key.key_id, key.name)
    return agent_actor(guards.current_principal())


def _of_request(kind: ActorKind, actor_id: str | None, name: str) -> Actor:
    address = (current_request().remote_addr or "")[:60]
    return Actor(kind, actor_id, name, telemetry.originating_request_id(), address)
