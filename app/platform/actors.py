"""Who acts: the holder of a master key, an agent's owner, somebody at a shell, or the service itself."""

from __future__ import annotations

import os
import pwd
import socket
from dataclasses import dataclass
from enum import StrEnum

from flask import g, request

from app.identity import guards


class ActorKind(StrEnum):
    """The kinds of actors."""

    MASTER_KEY = "master_key"
    OWNER = "owner"
    COMMAND = "command"
    WORKER = "worker"


@dataclass(frozen=True, slots=True)
class Actor:
    """Who acts, and by which request from where; a command has neither."""

    kind: ActorKind
    id: str | None
    name: str
    request_id: str | None = None
    client_address: str | None = None


def of_request() -> Actor:
    """Return who makes the present request. Raises: Unauthorized where no master key was shown."""
    caller = guards.master()
    return Actor(
        ActorKind.MASTER_KEY,
        caller.key_id,
        caller.name,
        g.get("request_id"),
        (request.remote_addr or "")[:60],
    )


def the_owner(owner_key_id: str) -> Actor:
    """Return the owner who makes the present request, by the key; of the e-mail address nothing is noted."""
    return Actor(
        ActorKind.OWNER, owner_key_id, "owner", g.get("request_id"), (request.remote_addr or "")[:60]
    )


def at_the_shell() -> Actor:
    """Return the account of the machine that runs a command."""
    try:
        name = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        # Containers run under numbers that no account has.
        name = str(os.getuid())
    return Actor(ActorKind.COMMAND, None, f"{name}@{socket.gethostname()}"[:200])


def the_service(job: str) -> Actor:
    """Return the service itself, at work on a job."""
    return Actor(ActorKind.WORKER, None, job)
