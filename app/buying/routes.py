"""`/v1/wallets/{id}/x402`: pay web services that answer 402, what was bought, and whom the wallet pays."""

from dataclasses import replace
from typing import Any

from flask import Response, jsonify, request

from app import errors
from app.approvals import service as approvals
from app.approvals.schemas import AwaitingApproval
from app.audit_log.actors import current_actor
from app.buying import offers, records, schemas, sellers, service
from app.buying.service import FetchOrder, FetchResult
from app.core.chains import ChainName
from app.core.movement_kinds import MovementKind
from app.core.pagination import Page
from app.db.unit_of_work import read_only_unit
from app.forwarding import filters
from app.idempotency.decorator import idempotent
from app.idempotency.service import Claim, derived_key
from app.identity import guards
from app.identity.principal import session_of
from app.wallets.api.routes import LIMIT_ERRORS, resolve_wallet
from app.wallets.core import wallets
from app.wallets.core.wallets import WalletView
from app.wallets.kinds.definition import MovementDefinition, is_not_dry_run
from app.web.blueprint import Blueprint
from app.web.client_request import current_request, wait_seconds
from app.web.request_bodies import parsed_body
from app.web.schemas import PageQuery, PurchaseCheck, checked


def _parse(body: dict[str, Any]) -> FetchOrder:
    parts = {name: body[name] for name in ("url", "method", "headers", "body")}
    networks = frozenset(map(ChainName, body["networks"]))
    return FetchOrder(sellers.parse_request(**parts), body["max_amount_usd"], networks, body["session_id"])


X402 = MovementDefinition(
    name=MovementKind.X402, title="Payment to a web service", body=schemas.FetchBody(), parse=_parse,
    send=service.fetch,
)  # fmt: skip
blp = Blueprint("x402", guard=guards.ANY_KEY, url_prefix="/v1/wallets")
blp.before_request(resolve_wallet)
checks = Blueprint("x402_checks", guard=guards.AGENT_KEY, url_prefix="/v1/x402")
_IDEMPOTENCY_NOTE = (
    "Repeating a request with the same key never pays again: it returns the stored answer, or sends the same signed "
    "payment again. Without a key, one is derived from the wallet, method, URL and body for ten minutes, and "
    "returned in this header."
)
_DERIVED_CONFLICT = (
    "Within the last ten minutes, this wallet sent a request with the same method, URL and body, but with other "
    "headers, max_amount_usd, networks or session_id, and it may have been paid for. To get its answer without paying "
    "again, repeat it unchanged. To request and pay once more, send an Idempotency-Key header of your own "
    "(request_id in MCP)."
)
_FETCH_RESPONSES = {
    "200": {
        "description": "The answer of the web service and what was paid, or the result of a dry run.",
        "content": {"application/json": {"schema": {"oneOf": [schemas.FetchedResourceShape, schemas.FetchQuoteShape]}}},
    }
}


def _order(body: dict[str, Any]) -> FetchOrder:
    principal = guards.current_principal()
    body["session_id"] = session_of(principal, body["session_id"])
    order = replace(X402.parse(body), key_id=principal.key_id)
    asked, key = order.request, guards.presented_keys(current_request())[0]
    filters.reject_key(key, target=asked.target, headers=asked.headers, body=asked.body)
    return order


def _derived_key() -> str:
    """Return a key by what is bought; the idempotency key's scope has the wallet."""
    # Before validation: whatever is not valid is refused under any key.
    body = parsed_body(current_request())
    method, url, text = (str(body.get(name) or "") for name in ("method", "url", "body"))
    parts = (method or "GET", schemas.one_spelling(url), text)
    return derived_key("\n".join(parts).encode("utf-8", "surrogatepass"))


def _resume(subject_id: str) -> Any:
    """Return the response to a repeated request: of the first body, or of the payment once an approval was executed."""
    approval = approvals.find(subject_id)
    transaction_id = subject_id if approval is None else approval.transaction_id
    if approval is not None and transaction_id is None:
        return approvals.awaiting_response(approval)
    order = _order(X402.body.load(parsed_body(current_request())))
    wallet = (request.view_args or {})["wallet"]
    return schemas.fetched(service.resume(wallet, order, str(transaction_id), wait_seconds=wait_seconds()))


@blp.post("/<string:wallet_id>/x402/fetch")
@idempotent(
    owner=guards.idempotency_owner, rebuild=_resume, note=_IDEMPOTENCY_NOTE, applies=is_not_dry_run,
    derive_key=_derived_key, derived_conflict=_DERIVED_CONFLICT, stores_response=False,
)  # fmt: skip
@blp.arguments(X402.body)
@blp.response(200, schemas.FetchedResourceShape)
@blp.alt_response(approvals.ACCEPTED, schema=AwaitingApproval, description=approvals.DESCRIPTION)
@blp.doc(responses=_FETCH_RESPONSES)
@blp.raises(
    *LIMIT_ERRORS, errors.AddressNotAllowed, errors.DomainNotAllowed, errors.PayeeChanged, errors.TermsNotSupported,
    errors.PaymentFailed, errors.UpstreamError, errors.UpstreamTimeout, errors.Overloaded, errors.InsufficientCredits,
)  # fmt: skip
@blp.header(
    "Prefer", "`respond-async` returns without waiting for the chain; `wait=N` waits up to N (at most 25) seconds."
)
def fetch_paid_resource(body: dict[str, Any], wallet: WalletView, claim: Claim) -> Any:
    """Request a resource of a web service, and pay for it with USDC if it answers 402 (x402 or MPP).

    The payment counts against the wallet's limits and needs an allowed domain, like a transfer's recipient. It is
    signed once; what the chain shows decides whether it is paid. `status` is the service's own, also if it is an error.
    A request that ends without a payment costs 0.001 USD of credits, dry runs too; without enough
    credits, ten a day are free.
    """
    order = _order(body)
    if body["dry_run"]:
        status, offer = service.quote(wallet, order)
        protocol = None if offer is None else offers.PROTOCOLS[offer.terms.version]
        quoted = {"dry_run": True, "status": status, "payment_required": bool(offer), "offer": offer}
        return jsonify(schemas.FetchQuoteShape().dump({**quoted, "protocol": protocol}))
    result = X402.request(wallet, order, body=body, claim=claim)
    return result if isinstance(result, Response) else schemas.fetched(result)


@checks.post("/validate")
@checks.arguments(schemas.ValidatedResource)
@checks.response(200, PurchaseCheck)
@checks.raises(
    errors.NotFound, errors.WalletFrozen, errors.DomainNotAllowed, errors.InsufficientCredits, errors.Overloaded
)
def validate_paid_resource(body: dict[str, Any]) -> dict[str, Any]:
    """Check step by step whether a resource of a web service can be bought; nothing is signed or paid.

    One request without a body is sent, under the rules of the agent's first wallet: its domains, and at most 50 new
    hosts a day. It costs 0.001 USD of credits, as `x402/fetch` without a payment does.
    """
    principal = guards.current_principal()
    if (wallet_id := principal.only_wallet_id) is not None:
        wallet = wallets.get_owned(wallet_id, agent_id=principal.agent_of_wallet(wallet_id))
    else:
        with read_only_unit() as session:
            wallet = wallets.first_wallet(session, guards.require_agent())
    return checked(service.check_steps(wallet, **body, session_id=session_of(principal, None), key_id=principal.key_id))


@blp.get("/<string:wallet_id>/x402/purchases")
@blp.arguments(PageQuery, location="query")
@blp.response(200, schemas.ServicePurchasePage)
def list_service_purchases(query: dict[str, Any], wallet: WalletView) -> Page[records.ServicePurchase]:
    """List what the wallet bought from web services, newest first."""
    return records.list_of(wallet.id, query["page"])


@blp.get("/<string:wallet_id>/x402/purchases/<string:transaction_id>")
@blp.response(200, schemas.BoughtAnswerShape)
def get_service_purchase(transaction_id: str, wallet: WalletView) -> dict[str, Any]:
    """Get a payment to a web service, by the chain, and the answer that it bought while it is stored."""
    purchase, answer = records.get(wallet.id, transaction_id)
    return schemas.fetched(FetchResult(records.bought_answer(purchase, answer), purchase))


@blp.get("/<string:wallet_id>/x402/payees")
@blp.response(200, schemas.PayeeList)
def list_payees(wallet: WalletView) -> dict[str, Any]:
    """List whom the wallet pays at each domain: the address of its first payment there."""
    return {"payees": records.payees_of(wallet.id)}


@blp.delete("/<string:wallet_id>/x402/payees/<string:domain>")
@blp.response(200, schemas.RemovedPayee)
@blp.raises(errors.ControlsLocked)
def remove_payee(domain: str, wallet: WalletView) -> dict[str, Any]:
    """Allow another payee at a domain: the next payment there stores it."""
    host = domain.lower()
    records.remove_payees(wallet, host, actor=current_actor())
    return {"domain": host, "deleted": True}
