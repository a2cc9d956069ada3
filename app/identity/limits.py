"""Rate limits by key and by client address.

A request with a wrong key is not counted: 256 random bits need no protection from guessing.
"""

import ipaddress
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus

from app.errors import PaymentPending, RateLimited, ServiceError
from app.identity.principal import Principal
from app.state import app_state
from app.web.client_request import ClientRequest

# Each stores an audit entry that is never deleted.
_LOOSENED = ("10 per minute;100 per day", "loosened controls")


def client_network(remote_address: str | None) -> str:
    """Return a client's IPv4 address, or the /64 of its IPv6 address: one household has 2^64 of them."""
    try:
        address = ipaddress.ip_address((remote_address or "").split("%")[0])
    except ValueError:
        return "unknown"
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((address, 64), strict=False))
    return str(address)


def count_authenticated_request(key_id: str, requests_per_minute: int | None = None) -> None:
    """Count one request of a key. Raises: RateLimited when RATE_LIMIT_PER_KEY, or its agent's own, is exceeded."""
    state = app_state()
    own = None if requests_per_minute is None else f"{requests_per_minute} per minute"
    state.rate_limiter.count(own or state.settings.rate_limit_per_key, "key", key_id)


def count_key_request(key: Principal) -> None:
    """Count one request of a key with limits. Raises: RateLimited when its `requests_per_minute` are exceeded."""
    if key.limits is not None and key.limits.requests_per_minute is not None:
        app_state().rate_limiter.count(f"{key.limits.requests_per_minute} per minute", "limited key", key.key_id)


def count_tokens(key: Principal, tokens: int) -> None:
    """Count the tokens that a call is expected to use. Raises: RateLimited when `tokens_per_minute` are exceeded."""
    most = None if key.limits is None else key.limits.tokens_per_minute
    if most is not None and tokens:
        # A thousandth of the limit is counted at once, because each part takes a place in memory.
        unit = -(-most // 1000)
        app_state().rate_limiter.spend(f"{most // unit} per minute", "tokens", key.key_id, cost=-(-tokens // unit))


def count_registration(network: str) -> None:
    """Count one registration. Raises: RateLimited when REGISTRATION_RATE_LIMIT is exceeded."""
    state = app_state()
    state.rate_limiter.count(state.settings.registration_rate_limit, "registration", network)


def count_keyless_request(request: ClientRequest, scope: str = "keyless") -> None:
    """Count a request without a key once its response is known, if that is a 4xx.

    Each scope is counted separately: what neighbours behind one address do to the API does not close the owner's pages.

    Raises: RateLimited when KEYLESS_RATE_LIMIT is exceeded.
    """
    limiter, network = app_state().rate_limiter, client_network(request.remote_addr)
    limit = app_state().settings.keyless_rate_limit
    limiter.check(limit, scope, network)
    if request.is_counted:
        return
    request.is_counted = True

    def count(status: int) -> None:
        status = request.inner_status or status
        if HTTPStatus.BAD_REQUEST <= status < HTTPStatus.INTERNAL_SERVER_ERROR:
            with suppress(RateLimited):
                limiter.count(limit, scope, network)

    request.on_response.append(count)


def count_requested_delivery(owner_id: str) -> None:
    """Count a request to send something to a third party. Raises: RateLimited for more than 20 a minute, 500 a day."""
    app_state().rate_limiter.count("20 per minute;500 per day", "delivery", owner_id)


def find_loosening_refusal(wallet_id: str) -> RateLimited | None:
    """Return why the controls of this wallet may not be loosened now: 10 times a minute and 100 a day are permitted."""
    try:
        app_state().rate_limiter.check(*_LOOSENED, wallet_id)
    except RateLimited as refusal:
        message = (
            "The controls of this wallet were loosened too often (at most 10 times a minute and 100 times a day), so"
            " this change was not made. They can be tightened at any time."
        )
        return RateLimited(message, retry_after_seconds=refusal.retry_after_seconds)
    return None


def count_loosening(wallet_id: str) -> None:
    with suppress(RateLimited):
        app_state().rate_limiter.count(*_LOOSENED, wallet_id)


@contextmanager
def count_failed_payment(network: str) -> Iterator[None]:
    """Count a presented payment if the block refuses it with status 402, or it is not settled yet.

    Raises: RateLimited when X402_MISS_LIMIT, or 60 repetitions a minute of pending payments, are exceeded.
    """
    limiter, limit = app_state().rate_limiter, app_state().settings.x402_miss_limit
    # Each repetition of a payment that is not settled asks the chain; a client that waits as told stays below this.
    pending = ("60 per minute" if limit else None, "pending payment", network)
    failed = limit, "payment", network
    limiter.check(*failed)
    limiter.check(*pending)
    try:
        yield
    except ServiceError as refusal:
        is_pending = isinstance(refusal, PaymentPending)
        if is_pending or refusal.status == HTTPStatus.PAYMENT_REQUIRED:
            with suppress(RateLimited):
                limiter.count(*(pending if is_pending else failed))
        raise
