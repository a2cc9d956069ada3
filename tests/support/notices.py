"""Mail servers and browsers that receive notices, and the key that signs push messages."""

from __future__ import annotations

import base64
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import http_ece  # type: ignore[import-untyped]
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import Envelope
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from flask import Flask
from py_vapid import Vapid02

from app.adapters.smtp import SmtpMailer
from app.adapters.upstream_http.exchange import HttpUpstream
from tests.support.servers import free_port

SENDER = "purser@service.example"


def encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


@dataclass
class Mailbox:
    """A mail server that keeps what it accepts; without slots, which aiosmtpd cannot inspect on Python 3.11.2."""

    port: int
    refuses: bool = False
    received: list[tuple[list[str], str]] = field(default_factory=list)
    arrived_at: list[float] = field(default_factory=list)

    async def handle_RCPT(  # noqa: N802 - as aiosmtpd calls it
        self, _server: object, _session: object, envelope: Envelope, address: str, _options: object
    ) -> str:
        if self.refuses:
            return "550 no such user"
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, _server: object, _session: object, envelope: Envelope) -> str:  # noqa: N802 - see above
        content = envelope.content
        assert isinstance(content, bytes)
        self.arrived_at.append(time.time())
        self.received.append((envelope.rcpt_tos, content.decode()))
        return "250 OK"


@contextmanager
def running_mailbox() -> Iterator[Mailbox]:
    """Run a mail server until the block ends."""
    box = Mailbox(free_port())
    controller = Controller(box, hostname="127.0.0.1", port=box.port)
    controller.start()
    try:
        yield box
    finally:
        controller.stop()


@dataclass(frozen=True, slots=True)
class Browser:
    """A subscribed browser, which can decrypt what its push service gets."""

    private: ec.EllipticCurvePrivateKey = field(default_factory=lambda: ec.generate_private_key(ec.SECP256R1()))
    secret: bytes = field(default_factory=lambda: os.urandom(16))

    def subscription(self, endpoint: str) -> dict[str, str]:
        point = self.private.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
        return {"endpoint": endpoint, "p256dh": encoded(point), "auth": encoded(self.secret)}

    def decrypt(self, body: bytes) -> dict[str, Any]:
        plain = http_ece.decrypt(body, private_key=self.private, auth_secret=self.secret, version="aes128gcm")
        found: dict[str, Any] = json.loads(plain)
        return found


def new_push_key() -> str:
    """Return a new WEB_PUSH_KEY."""
    key = Vapid02()
    key.generate_keys()
    return encoded(key.private_key.private_numbers().private_value.to_bytes(32, "big"))


def notices_app(
    build_app: Callable[..., Flask], database_url: str, mailbox: Mailbox, push_key: str | None = None
) -> Flask:
    """Build an application that sends notices to a mail server and to push services on loopback."""
    return build_app(
        database_url,
        settings={"web_push_key": push_key or new_push_key()},
        public_upstream=HttpUpstream(connect_seconds=1, read_seconds=5),
        mailer=SmtpMailer(f"smtp://127.0.0.1:{mailbox.port}", sender=SENDER),
    )
