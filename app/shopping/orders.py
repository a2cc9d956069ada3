"""Purchase orders: validation without a browser, sealing and digests."""

import json
import re
from dataclasses import asdict, dataclass
from urllib.parse import SplitResult, urlsplit

from app import base_urls
from app.authenticated import SealedColumn
from app.base_urls import BaseUrl
from app.core.identifiers import keyed_digests
from app.db.unit_of_work import read_only_unit
from app.errors import DomainNotAllowed, InvalidInput, NotFound
from app.identity.principal import Principal
from app.ports.shopper import PurchaseRequest, ShippingAddress
from app.shopping.models import Purchase
from app.spending import controls as spending_controls
from app.spending import holds as spending_holds
from app.spending.policy import ApprovedPayment, SpendingRequest
from app.state import app_state
from app.wallets.core import wallets

_SEALED = SealedColumn("purchases", "sealed")
_SECRET = ("address", "username", "password", "options", "coupon_code", "delivery_method")
_MAX_URL = 2048
_NOT_IN_URLS = re.compile(r"[\s\\]")


@dataclass(frozen=True, slots=True, kw_only=True)
class PurchaseOrder(PurchaseRequest):
    """A requested purchase, with what the wallet's limits need. Neither its repr nor a log shows personal data."""

    host: str
    max_total_nanos: int | None
    session_id: str | None = None
    approved: ApprovedPayment | None = None

    def order_digests(self) -> list[str]:
        """Return keyed digests by which identical orders are recognized; they cannot be reversed.

        The coupon code and the delivery method are not included: an order that may have been placed is not repeated
        because one of them changed.
        The first is stored; the others use the previous secrets that are still accepted.
        """
        options = sorted(self.options.items())
        return _digests("order", self.url, self.username or "", self.quantity, options, self.dry_run)

    def shop_account_digest(self, purchase_id: str) -> str:
        """Return a digest that purchases with the same shop account share; guest purchases share none."""
        return _digests("shop-account", self.host, self.username or purchase_id)[0]

    def seal(self, purchase_id: str, *, key_id: str) -> str:
        """Return the parts of the order that its row does not store, and two ids, sealed for that row."""
        fields = asdict(self)
        secret = {**{name: fields[name] for name in _SECRET}, "session_id": self.session_id, "key_id": key_id}
        return _SEALED.seal(json.dumps(secret), purchase_id)


def unseal(purchase: Purchase) -> tuple[PurchaseRequest, str | None, str | None]:
    """Open a sealed order: return its request, session id and key id. Raises: Rejected.

    Orders of earlier versions lack some of it.
    """
    with read_only_unit() as session:
        wallet_ids = [purchase.wallet_id] if purchase.wallet_id else []
        controls = spending_controls.controls_of(session, wallet_ids).get(purchase.wallet_id or "")
    secret = json.loads(_SEALED.open(purchase.sealed or "", purchase.id))
    sealed = {name: secret[name] for name in _SECRET if name in secret}
    request = PurchaseRequest(
        **{**sealed, "address": ShippingAddress(**secret["address"])}, url=purchase.url, quantity=purchase.quantity,
        dry_run=purchase.dry_run, allowed_domains=controls.allowed_domains if controls else (),
    )  # fmt: skip
    return request, secret.get("session_id"), secret.get("key_id")


def parse_url(text: str) -> tuple[str, str]:
    """Return the URL of a product page and its host in ASCII. Raises: InvalidInput, DomainNotAllowed."""
    try:
        parts, base = _split(text.strip())
    except ValueError:
        problem = (
            f"must be an http(s) URL of at most {_MAX_URL} characters, with a host such as shop.example.com and without"
            " spaces, backslashes or a username, which belongs in credentials"
        )
        raise InvalidInput.field("url", problem) from None
    try:
        # Before anything is paid; the browser's proxy checks the resolved addresses.
        base_urls.assert_public(base, app_state().settings)
    except ValueError as error:
        raise DomainNotAllowed(f"The shop's URL {error}.", details={"domain": base.host}) from None
    # The checked host is the one opened: browsers normalize international names differently.
    return parts._replace(netloc=base.origin.partition("://")[2]).geturl(), base.host


def assert_allowed(caller: Principal, order: PurchaseOrder) -> str | None:
    """Return the wallet with the limits that apply, None for a key without one.

    Raises: InvalidInput if a maximum total is required; the 403 classes; NotFound for an agent that has deleted
    all its wallets, and with them its limits.
    """
    if caller.agent_id is None:
        if order.session_id is not None:
            raise InvalidInput.field("session_id", "is a session of a wallet, and this key has none")
        assert_max_total(order)
        return None
    with read_only_unit() as session:
        wallet = wallets.first_wallet(session, caller.agent_id)
        if caller.agent_of_wallet(wallet.id) is None:
            raise NotFound("Purchases are paid from the agent's first wallet, which this connection does not include.")
        controls = wallet.spending_controls
        # The cost is not known yet; a freeze and the allowlist are.
        request = SpendingRequest(0, domain=order.host, session_id=order.session_id)
        spending_holds.check(session, wallet.id, request)
    if controls is None or not controls.per_tx_limit_nanos:
        assert_max_total(order)
    if not order.dry_run:
        most_nanos = order.max_total_nanos or (controls.per_tx_limit_nanos if controls else None)
        request = SpendingRequest(most_nanos, domain=order.host, session_id=order.session_id, approved=order.approved)
        with read_only_unit() as session:
            spending_holds.assert_approved(session, wallet.id, request)
    return wallet.id


def assert_max_total(order: PurchaseOrder) -> None:
    """Check that an order has a maximum total. Raises: InvalidInput."""
    if order.max_total_nanos is None:
        raise InvalidInput.field("max_total_usd", "is required because no limit per transaction is set")


def _split(text: str) -> tuple[SplitResult, BaseUrl]:
    parts = urlsplit(text)
    if len(text) > _MAX_URL or "@" in parts.netloc or _NOT_IN_URLS.search(text):
        raise ValueError(text)
    host = (parts.hostname or "").encode("idna").decode()
    netloc = (f"[{host}]" if ":" in host else host) + ("" if parts.port is None else f":{parts.port}")
    return parts, base_urls.parse(f"{parts.scheme}://{netloc}")


def _digests(*parts: object) -> list[str]:
    """Return the digest under the current secret, then those under secrets that are still accepted."""
    secrets = app_state().settings.secret_key_list()
    return [digest.hex() for digest in keyed_digests("shopping", json.dumps(parts).encode(), secrets)]
