"""Why a web service can or cannot be paid: the steps of a purchase, without a signature, up to the first that fails.

What the service wrote appears in no step except the terms that cannot be paid: shortened, and escaped as JSON.
"""

import json
from collections.abc import Iterator
from http import HTTPStatus

from app.buying import offers, sellers, service
from app.buying.service import FetchOrder
from app.core import money
from app.core.checks import CheckedStep
from app.errors import InvalidInput, TermsNotSupported, UpstreamError, UpstreamTimeout
from app.state import app_state
from app.wallets.core.wallets import WalletView

_MAX_OFFERS_TEXT = 2_000
_NO_LIMIT = 10**30


def steps(
    wallet: WalletView, *, resource: str, method: str, session_id: str | None, key_id: str | None
) -> Iterator[CheckedStep]:
    """Yield the steps of buying a resource. Raises: what `service.quote` raises before the request is sent."""
    try:
        request = sellers.parse_request(url=resource, method=method, headers={}, body=None)
    except InvalidInput as error:
        yield CheckedStep("address", f"The address {error.details['fields']['url'][0]}.", ok=False)
        return
    yield CheckedStep("address", "The address is a public one.")
    try:
        answer = service.ask(wallet, FetchOrder(request, 0, (), session_id, key_id))
    except (InvalidInput, UpstreamError, UpstreamTimeout) as error:
        yield CheckedStep("response", error.message, ok=False)
        return
    yield CheckedStep("response", "The service answers.")
    is_asking = answer.status == HTTPStatus.PAYMENT_REQUIRED
    is_redirect = HTTPStatus.MULTIPLE_CHOICES <= answer.status < HTTPStatus.BAD_REQUEST
    followed = " Redirects are not followed: name the address that it leads to." if is_redirect else ""
    detail = f"The status is {answer.status}; a resource that is sold has 402.{followed}"
    yield CheckedStep("payment_required", detail, ok=is_asking)
    if not is_asking:
        return
    try:
        terms = offers.read_terms(answer)
        stated = ", ".join(offers.PROTOCOLS[each.version] for each in terms)
        yield CheckedStep("terms", f"The terms are those of {stated}.")
        payable = offers.payable_offers(
            terms, app_state().ports.payment_signers, host=request.host, max_nanos=_NO_LIMIT, networks=(),
            own_addresses=frozenset(wallet.addresses.values()),
        )  # fmt: skip
    except TermsNotSupported as error:
        refused = error.details["offers"]
        shown = f" Terms of the service: {json.dumps(refused)[:_MAX_OFFERS_TEXT]}" if refused else ""
        yield CheckedStep("offer" if refused else "terms", error.message + shown, ok=False)
        return
    best = payable[0]
    price = money.usd_from_nanos(best.price_nanos)
    detail = f"{price:f} USD in USDC on {best.chain.value} to {best.recipient}."
    yield CheckedStep("offer", detail)
    detail = "Facilitators list resources that have extensions.bazaar in their terms."
    yield CheckedStep("discovery", detail, ok=any("bazaar" in each.answerable for each in terms), required=False)
