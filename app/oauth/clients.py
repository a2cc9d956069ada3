"""Applications: registered ones (RFC 7591), and those whose id is the address of a document that describes them.

All are public clients. What they say of themselves is not verified, except that a document comes from its address.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any
from urllib.parse import SplitResult, urlsplit

from sqlalchemy import JSON, String, select, update
from sqlalchemy.orm import Mapped, Session, mapped_column

from app import base_urls
from app.capacity.single_flight_cache import SingleFlightCache
from app.core import clock, identifiers
from app.core.strict_json import parse_response
from app.db.tables import UtcDateTime, count
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.errors import InvalidInput, Overloaded, RateLimited
from app.extensions import Model
from app.identity.principal import Scope
from app.ports.errors import PortError
from app.ports.upstream import read_json_text
from app.state import app_state


class OAuthClient(Model):
    """An application that has registered itself; nothing that it says of itself is verified."""

    __tablename__ = "oauth_clients"

    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    name: Mapped[str] = mapped_column(String(100))
    redirect_uris: Mapped[list[str]] = mapped_column(JSON)
    expires_at: Mapped[datetime] = mapped_column(UtcDateTime, index=True)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)


GRANT_TYPES = ("authorization_code", "refresh_token", "urn:ietf:params:oauth:grant-type:device_code")
_USED_LIFETIME = timedelta(days=90)
_MAX_CLIENTS = 20_000
_MAX_REDIRECTS = 10
_VISIBLE = re.compile(r"[\x21-\x7e]{1,500}", re.ASCII)
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]{1,40}", re.ASCII)
# Of those that a browser or the system handles itself; applications have others of their own.
_FOREIGN_SCHEMES = frozenset(
    "http javascript data vbscript file filesystem blob about view-source ws wss ftp mailto tel sms intent content "  # noqa: SIM905
    "chrome chrome-extension moz-extension resource jar ms-settings search-ms shell".split()
)


class ClientDocuments(SingleFlightCache):
    """The documents of client ids that this process has read in the last minutes."""


@dataclass(frozen=True, slots=True)
class Client:
    """An application; the methods are those of authlib's `ClientMixin`."""

    id: str
    name: str
    redirect_uris: tuple[str, ...]

    def host(self, redirect_uri: str | None) -> str:
        """Return what an owner is shown in the place of the name, which anybody can choose."""
        if _is_address(self.id):
            return urlsplit(self.id).hostname or ""
        if redirect_uri is None:
            return "a program that shows a code"
        parts = urlsplit(redirect_uri)
        if is_loopback(parts):
            return "a program on this computer"
        return parts.hostname or "" if parts.scheme == "https" else f"the app for {parts.scheme}: links"

    def get_client_id(self) -> str:
        return self.id

    def get_default_redirect_uri(self) -> str | None:
        return self.redirect_uris[0] if len(self.redirect_uris) == 1 else None

    def get_allowed_scope(self, scope: str | None) -> str:
        """Return the scopes of a request that exist; others are ignored, as clients ask for what they know."""
        return " ".join(each for each in Scope if each in (scope or "").split())

    def check_redirect_uri(self, redirect_uri: str) -> bool:
        return any(_matches(each, redirect_uri) for each in self.redirect_uris)

    def check_endpoint_auth_method(self, method: str, _endpoint: str) -> bool:
        return method == "none"

    def check_response_type(self, response_type: str) -> bool:
        return response_type == "code"

    def check_grant_type(self, grant_type: str) -> bool:
        return grant_type in GRANT_TYPES


def find(client_id: str, *, network: str) -> Client | None:
    """Return a registered application, or read the document at the id. Raises: InvalidInput, RateLimited."""
    if not _is_address(client_id):
        return _find_registered(client_id)
    documents = app_state().part(ClientDocuments)
    load = partial(_read_document, client_id, network=network)
    try:
        found: Client = documents.get(client_id, load, ttl_seconds=300, failure_ttl_seconds=10)
    except RateLimited:
        # One network's limit is not another's.
        documents.drop(client_id.__eq__)
        raise
    return found


def named(client_id: str) -> Client | None:
    """Return an application for the token endpoint: a document is not read again, the code names its id."""
    return Client(client_id, "", ()) if _is_address(client_id) else _find_registered(client_id)


def register(metadata: Mapping[str, Any], *, network: str) -> dict[str, Any]:
    """Register an application; return its metadata. Raises: InvalidInput, RateLimited, Overloaded."""
    app_state().rate_limiter.count("20 per hour", "client", network)
    name, redirects = _described(metadata)
    asked = metadata.get("grant_types")
    grant_types = [each for each in GRANT_TYPES if isinstance(asked, list) and each in asked]
    now, client_id = clock.now(), identifiers.new_key("oc")
    with unit_of_work() as session:
        if count(session, OAuthClient) >= _MAX_CLIENTS:
            raise Overloaded("Too many applications have registered; try again later.", retry_after_seconds=3600)
        until = now + timedelta(days=1)
        row = OAuthClient(id=client_id, name=name, redirect_uris=list(redirects), created_at=now, expires_at=until)
        session.add(row)
    return {
        "client_id": client_id, "client_id_issued_at": int(now.timestamp()), "client_name": name,
        "redirect_uris": list(redirects), "response_types": ["code"], "token_endpoint_auth_method": "none",
        # Clients refuse those that they do not know.
        "grant_types": grant_types or list(GRANT_TYPES[:2]), "scope": " ".join(Scope),
    }  # fmt: skip


def keep(session: Session, client_id: str, until: datetime) -> None:
    """Keep the registration of an application that an owner has connected."""
    is_shorter = OAuthClient.id == client_id, OAuthClient.expires_at < until + _USED_LIFETIME
    session.execute(update(OAuthClient).where(*is_shorter).values(expires_at=until + _USED_LIFETIME))


def is_loopback(parts: SplitResult) -> bool:
    """Return whether a redirect goes to a program on the owner's computer (RFC 8252 §7.3)."""
    return parts.scheme == "http" and parts.hostname in ("127.0.0.1", "::1", "localhost")


def _is_address(client_id: str) -> bool:
    return client_id.startswith(("https://", "http://"))


def _find_registered(client_id: str) -> Client | None:
    if not _VISIBLE.fullmatch(client_id):
        return None
    is_meant = OAuthClient.id == client_id, OAuthClient.expires_at > clock.now()
    with read_only_unit() as session:
        row = session.scalars(select(OAuthClient).where(*is_meant)).one_or_none()
        return None if row is None else Client(row.id, row.name, tuple(row.redirect_uris))


def _read_document(client_id: str, *, network: str) -> Client:
    app_state().rate_limiter.count("30 per minute", "client document", network)
    problem = "must be registered, or the https address of a client metadata document"
    try:
        base, target = base_urls.parse_public(client_id, app_state().settings)
    except ValueError as error:
        raise InvalidInput.field("client_id", str(error)) from None
    if target == "/" or not _VISIBLE.fullmatch(client_id):
        raise InvalidInput.field("client_id", problem)
    upstream = app_state().ports.public_upstream
    try:
        document = parse_response(read_json_text(upstream, base.origin, target, max_bytes=5 * 1024, seconds=5))
    except (PortError, ValueError):
        raise InvalidInput.field("client_id", problem) from None
    if not isinstance(document, dict) or document.get("client_id") != client_id:
        raise InvalidInput.field("client_id", "must be the client_id in the document at this address")
    return Client(client_id, *_described(document))


def _described(metadata: Mapping[str, Any]) -> tuple[str, tuple[str, ...]]:
    """Return the name and the redirect addresses in an application's metadata. Raises: InvalidInput."""
    name = metadata.get("client_name")
    shown = "".join(each if each.isprintable() else " " for each in name) if isinstance(name, str) else ""
    redirects = [] if metadata.get("redirect_uris") is None else metadata["redirect_uris"]
    if not isinstance(redirects, list) or len(redirects) > _MAX_REDIRECTS:
        raise InvalidInput.field("redirect_uris", f"must be a list of at most {_MAX_REDIRECTS} addresses")
    if not all(isinstance(each, str) and _is_redirect(each) for each in redirects):
        problem = "must be https, http on a loopback address, or the scheme of an application, without a fragment"
        raise InvalidInput.field("redirect_uris", problem)
    return " ".join(shown.split())[:100] or "Unnamed application", tuple(redirects)


def _is_redirect(text: str) -> bool:
    parts = _parts(text)
    if parts is None or "#" in text or "@" in parts.netloc or "\\" in text:
        return False
    if parts.scheme == "https" or is_loopback(parts):
        return bool(parts.hostname and re.fullmatch(r"[A-Za-z0-9.:\[\]-]+", parts.netloc, re.ASCII))
    return bool(_SCHEME.fullmatch(parts.scheme)) and parts.scheme not in _FOREIGN_SCHEMES


def _parts(text: str) -> SplitResult | None:
    try:
        parts = urlsplit(text)
        _ = parts.port
    except ValueError:
        return None
    return parts if _VISIBLE.fullmatch(text) else None


def _matches(registered: str, asked: str) -> bool:
    """Return whether an address is exactly a registered one; of a loopback address, the port may be another."""
    if registered == asked:
        return True
    one, other = urlsplit(registered), _parts(asked)
    if other is None or not (is_loopback(one) and is_loopback(other)) or "@" in other.netloc:
        return False
    return (one.hostname, one.path, one.query) == (other.hostname, other.path, other.query) and "#" not in asked
