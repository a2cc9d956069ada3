"""What a caller asks for, checked as far as it can be without a browser: the address, the limits, what is secret."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from urllib.parse import SplitResult, urlsplit

from app.core.unit_of_work import reading
from app.errors import DomainNotAllowed, InvalidInput
from app.identity.caller import Caller
from app.ports import provider
from app.ports.shopper import Errand, ShippingAddress
from app.ports.vault import Place
from app.spending import service as spending
from app.wallets import service as wallets

_MAX_URL = 2048
_SCHEMES = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Order:
    """A purchase as it was asked for. Neither its repr nor a log shows who buys."""

    url: str
    host: str
    address: ShippingAddress = field(repr=False)
    username: str | None = field(repr=False)
    password: str | None = field(repr=False)
    quantity: int
    options: Mapping[str, str]
    max_total_nanos: int | None
    dry_run: bool

    def order_digests(self) -> list[str]:
        """Return what tells whether two requests order the same: not kept in a form that could be read back.

        The first is kept; the others are what it was under secrets that are still believed.
        """
        parts = (self.url, self.username or "", self.quantity, sorted(self.options.items()), self.dry_run)
        return [_digest(secret, "order", *parts) for secret in provider.settings().secret_key_list()]

    def shop_account_digest(self, purchase_id: str) -> str:
        """Return what two purchases share that work with one account of a shop; guests share nothing."""
        return _digest(
            provider.settings().secret_key_list()[0], "shop-account", self.host, self.username or purchase_id
        )

    def seal(self, purchase_id: str) -> str:
        """Return credentials, address and options, sealed for the purchase's row."""
        secret = {
            "address": asdict(self.address),
            "username": self.username,
            "password": self.password,
            "options": dict(self.options),
        }
        return provider.current().vault.seal(json.dumps(secret).encode(), _place(purchase_id))


def unseal(
    sealed: str, *, purchase_id: str, url: str, quantity: int, dry_run: bool, allowed_domains: tuple[str, ...]
) -> Errand:
    """Open what `Order.seal` has sealed. Raises: Rejected."""
    secret = json.loads(provider.current().vault.open(sealed, _place(purchase_id)))
    return Errand(
        url=url,
        address=ShippingAddress(**secret["address"]),
        username=secret["username"],
        password=secret["password"],
        quantity=quantity,
        options=secret["options"],
        dry_run=dry_run,
        allowed_domains=allowed_domains,
    )


def parse_url(text: str) -> tuple[str, str]:
    """Return the address of a product's page and its host in ASCII. Raises: InvalidInput, DomainNotAllowed."""
    problem = None
    try:
        parts = urlsplit(text.strip())
        port = parts.port
        host = (parts.hostname or "").encode("idna").decode().rstrip(".").lower() if parts.hostname else ""
    except (ValueError, UnicodeError):
        raise InvalidInput.field("url", "must be an http(s) address") from None
    if parts.scheme not in _SCHEMES or not host:
        problem = "must be an http(s) address"
    elif len(text) > _MAX_URL:
        problem = f"must have at most {_MAX_URL} characters"
    elif parts.username is not None or parts.password is not None:
        problem = "must not name a user; send credentials instead"
    elif any(letter.isspace() or letter == "\\" for letter in text.strip()):
        problem = "must not hold spaces or backslashes"
    if problem is not None:
        raise InvalidInput.field("url", problem)
    _assert_public(parts, host, port)
    # What was checked is what is opened: browsers read names of other alphabets in another way than we do.
    netloc = f"[{host}]" if ":" in host else host
    return parts._replace(netloc=netloc if port is None else f"{netloc}:{port}").geturl(), host


def assert_allowed(caller: Caller, order: Order) -> str | None:
    """Return the wallet whose limits apply, None for a key without one.

    Raises: InvalidInput where the caller has to say what it may cost; the 403 classes; NotFound for an agent that has
    deleted all its wallets, and with them its limits.
    """
    if caller.agent_id is None:
        assert_capped(order)
        return None
    with reading():
        wallet = wallets.first_of(caller.agent_id)
        controls = wallet.spending_controls
        # What it costs is not known yet; who is frozen and where nothing may be bought is.
        spending.check(wallet.id, value_nanos=0, recipient=None, family=None, domain=order.host)
    if controls is None or not controls.per_tx_limit_nanos:
        assert_capped(order)
    return wallet.id


def assert_capped(order: Order) -> None:
    """See that an order says what it may cost at most. Raises: InvalidInput."""
    if order.max_total_nanos is None:
        raise InvalidInput.field("max_total_usd", "is required where no limit per transaction is in force")


def allowed_domains_of(wallet_id: str | None) -> tuple[str, ...]:
    """Return the hosts that a wallet's controls name, in the current unit."""
    if wallet_id is None:
        return ()
    controls = spending.controls_of([wallet_id]).get(wallet_id)
    return controls.allowed_domains if controls is not None else ()


def _assert_public(parts: SplitResult, host: str, port: int | None) -> None:
    """Refuse what the browser could not reach, before anything is paid; its way out checks what a name leads to."""
    if provider.settings().allow_private_upstreams:
        return
    try:
        private = not ipaddress.ip_address(host.strip("[]")).is_global
    except ValueError:
        private = "." not in host or host.endswith((".localhost", ".local", ".internal", ".home.arpa"))
    if parts.scheme != "https" or port not in {None, 443} or private:
        raise DomainNotAllowed(
            "Shops are reached with https on port 443 at public addresses only.", details={"domain": host}
        )


def _digest(secret: str, *parts: object) -> str:
    key = hashlib.sha256(b"shopping" + secret.encode()).digest()
    return hmac.new(key, json.dumps(parts).encode(), hashlib.sha256).hexdigest()


def _place(purchase_id: str) -> Place:
    return Place("purchases", "sealed", purchase_id)
