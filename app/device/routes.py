"""The JSON doors of claiming, open to anybody who has a code. No answer may stay in a cache."""

from __future__ import annotations

from typing import Any

from flask import Response

from app.device import service
from app.device.schemas import ClaimRequest, ClaimResponse, CodeInfoResponse, CodeQuery
from app.errors import AlreadyClaimed, EmailMismatch, InvalidInput, NotFound
from app.identity.limits import client_network
from app.web.blueprint import OPEN, Blueprint

device = Blueprint(
    "device",
    __name__,
    guard=OPEN,
    url_prefix="/v1/device",
    description="A person claims an agent with the code that the agent was given.",
)


@device.after_request
def _keep_out_of_caches(response: Response) -> Response:
    response.headers["Cache-Control"] = "no-store"
    return response


@device.get("/info")
@device.arguments(CodeQuery, location="query")
@device.response(200, CodeInfoResponse)
@device.raises(NotFound)
def describe_claim_code(query: dict[str, Any]) -> service.CodeInfo:
    """Tell which agent a claim code stands for; wrong codes are counted and soon refused."""
    return service.describe(_present(query["code"]), network=client_network())


@device.post("/claim")
@device.arguments(ClaimRequest)
@device.response(200, ClaimResponse)
@device.raises(NotFound, EmailMismatch, AlreadyClaimed)
def claim_agent(body: dict[str, Any]) -> service.ClaimedAgent:
    """Claim an agent; the same code and e-mail within 24 hours get the same answer again."""
    return service.claim(_present(body["code"]), email=body["email"], network=client_network())


def _present(code: str) -> str:
    if not code.strip():
        raise InvalidInput.field("code", "is required")
    return code
