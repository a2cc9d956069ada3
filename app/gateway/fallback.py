"""Calls that one of several models serves: one hold for the most expensive, the charge of the one that answers."""

import json
import re
import time
from collections import deque
from collections.abc import Collection
from contextlib import ExitStack
from dataclasses import replace
from decimal import Decimal
from http import HTTPStatus
from math import inf
from typing import cast

import structlog
from werkzeug.wrappers import Response

from app.core import clock, money
from app.credits import holds as credit_holds
from app.errors import InsufficientCredits, UpstreamError, UpstreamTimeout
from app.forwarding import call as forwarding
from app.gateway import call as gateway
from app.gateway.call import ModelCall
from app.gateway.call_charges import HeldCharge, models_of
from app.gateway.dialects.request import injection
from app.gateway.dialects.request.cost_params import Surface
from app.gateway.dialects.response.response_reader import ResponseReader
from app.gateway.operator_errors import ReadResponse, screen
from app.identity.principal import Principal
from app.ports.errors import OutcomeUnknown, PortError
from app.ports.upstream import UpstreamRequest, UpstreamResponse, named_headers
from app.state import app_state
from app.usage import service as usage
from app.web import request_bodies
from app.web.client_request import ClientRequest

_MAX_WAIT_SECONDS = 10
_OUTAGE_SECONDS, _MAX_OUTAGES = 30, 1_000
_NUMBER = re.compile(r"[0-9]{1,6}(?:\.[0-9]{1,6})?", re.ASCII)
_LINE_ENDS = (b"\n", b"\r")
_log = structlog.get_logger(__name__)


class Outages(dict[str, float]):
    """The models that have just failed in this process, and until when they are asked after all others."""


def serve(request: ClientRequest, surface: Surface, caller: Principal) -> Response:
    """Forward a request to the first of the models that it names which answers. Raises: ServiceError."""
    calls, outages, now = gateway.candidates(request, surface), app_state().part(Outages), time.monotonic()
    # If it may call none of them, the first is refused.
    calls = [
        call
        for call in calls
        if all(caller.may_call(call.provider.slug, each) for each in (call.model, *models_of(call.validated.params)))
    ] or calls[:1]
    paid = ModelCharge(caller, sorted(calls, key=lambda call: outages.get(call.name, 0) > now))
    first, client_id = paid.calls[0], caller.account_id
    options = gateway.options(first, paid, client_id=client_id)._replace(
        upstream=_Candidates(request, surface, paid, client_id),
        # Each candidate's errors are screened when they arrive.
        screen_error=None,
        secrets=[call.provider.api_key for call in calls if call.provider.api_key],
    )
    return forwarding.forward(request, gateway.outgoing(first, paid), paid, options)


class ModelCharge(HeldCharge):
    """One hold for the candidates in `calls`. It names the one that is asked, whose estimate a lapse charges."""

    def __init__(self, caller: Principal, calls: list[ModelCall]) -> None:
        first = calls[0]
        super().__init__(caller, first.provider.slug, first.quote, first.quote.params)
        # Copies, so that the body for the first candidate is kept, and no other.
        self.calls, self._quotes = calls, [first.quote, *(replace(call).quote for call in calls[1:])]
        self.refusal: InsufficientCredits | None = None
        self._is_asked = self._ends_line = False

    @property
    def model(self) -> str:
        return f"{self._call.provider}/{self._call.model}"

    def begin(self, outgoing: UpstreamRequest) -> UpstreamRequest:
        """Hold what any of the candidates may cost. Raises: InsufficientCredits if none is affordable."""
        while True:
            worst = max((quote.worst_case for quote in self._quotes), key=lambda each: each.cost_nanos)
            self._quote = self._quote._replace(
                worst_case=worst,
                unbounded_nanos=max(quote.unbounded_nanos for quote in self._quotes),
                # Above zero, because a free model needs no credits.
                minimum_nanos=max(1, *(quote.minimum_nanos for quote in self._quotes)),
            )
            try:
                self._held_nanos = self._hold_credits()
            except InsufficientCredits as refusal:
                self._keep_affordable(refusal)
            else:
                return outgoing

    def _keep_affordable(self, refusal: InsufficientCredits) -> None:
        left_nanos, now = money.nanos_from_usd(refusal.details["credits_usd"]), clock.now()
        quotes = [(call, replace(call).quote.within(left_nanos, now)) for call in self.calls]
        kept = [(call, quote) for call, quote in quotes if quote.minimum_nanos <= left_nanos]
        if not kept or [quote.worst_case for _, quote in kept] == [quote.worst_case for quote in self._quotes]:
            raise self._with_affordable_output(refusal)
        self.refusal = refusal if len(kept) < len(quotes) else self.refusal
        self.calls, self._quotes = [call for call, _ in kept], [quote for _, quote in kept]
        self._turn_to(self.calls[0])

    def ask(self, call: ModelCall) -> None:
        """Turn to a candidate, its output limited to what is held. Raises: UpstreamTimeout if the hold has ended."""
        self._turn_to(call)
        if (bound := self._quote.output_bound(self._held_nanos)) is not None:
            self.params = injection.limit_output(self.params, bound)
        if self._is_asked:
            with self._account_unit() as session:
                # With the budgets that counted the hold.
                memo = {**credit_holds.memo_of(session, self.id), **usage.memo_of(self._call, self._quote.estimate)}
                if not credit_holds.renew(session, self.id, lease=self._lease, memo=memo):
                    raise UpstreamTimeout
        self._is_asked = True

    def _turn_to(self, call: ModelCall) -> None:
        self._quote = call.quote.within(self._held_nanos, clock.now())
        self.params, self._rule = self._quote.params or self.params, self._quote.rule or self._rule
        self._call = self._call._replace(provider=call.provider.slug, model=call.model)

    def headers(self) -> Collection[tuple[str, str]]:
        return [("X-Gateway-Model", self.model), *super().headers()]

    def feed(self, piece: bytes) -> bytes:
        relayed = super().feed(piece)
        self._ends_line = relayed.endswith(_LINE_ENDS) if relayed else self._ends_line
        return relayed

    def with_cost(self, rest: bytes) -> bytes:
        """Add the cost to `usage` in JSON, and to a stream as a comment, which clients skip."""
        if self._bill is None or self._reader is None:
            return rest
        cost = money.usd_string(self._bill[0])
        if self._reader.kind != "text/event-stream":
            return injection.add_cost(rest, cost) if self._reader.kind == "application/json" else rest
        # No blank line: some SDKs dispatch an event without data there, and fail to parse it.
        separator = b"" if (rest.endswith(_LINE_ENDS) if rest else self._ends_line) else b"\n"
        return rest + separator + f': {{"model":{json.dumps(self.model)},"cost":{cost}}}\n'.encode()


class _Failure(Exception):
    """The response or the error of a candidate that another may stand in for, and how long it asks to wait."""


class _Candidates:
    """An upstream that asks the candidates of a charge in turn, until one answers."""

    def __init__(self, request: ClientRequest, surface: Surface, paid: ModelCharge, client_id: str) -> None:
        self._request, self._surface, self._paid, self._client_id = request, surface, paid, client_id
        # The SDKs of OpenAI and Anthropic state how long they wait.
        stated = [request.headers.get(f"X-Stainless-{name}", "") for name in ("Read-Timeout", "Timeout")]
        seconds = min((float(text) for text in stated if _NUMBER.fullmatch(text)), default=inf)
        self._deadline = time.monotonic() + min(seconds, float(app_state().settings.upstream_read_timeout_seconds))

    def send(self, request: UpstreamRequest) -> UpstreamResponse:
        """Return the response of a candidate, or the last one's failure. Raises: PortError, ServiceError."""
        del request  # each candidate has its own
        outages, call = app_state().part(Outages), self._paid.calls[0]
        name, *others = names = [each.name for each in self._paid.calls]
        # The other bodies, and the parsed one, are made again when they are needed.
        self._paid.calls = []
        turns, retried = deque((each, 0.0) for each in others), set[str]()
        while True:
            try:
                incoming = self._ask(call, others=len(turns))
            except _Failure as caught:
                outcome, wait_seconds = caught.args
                if len(outages) >= _MAX_OUTAGES:
                    outages.clear()
                outages[name] = time.monotonic() + (wait_seconds or _OUTAGE_SECONDS)
                _log.warning("model_failed", model=name, reason=str(getattr(outcome, "status", outcome)))
                if wait_seconds is not None and wait_seconds <= _MAX_WAIT_SECONDS and name not in retried:
                    retried.add(name)
                    turns.append((name, time.monotonic() + wait_seconds))
                if not turns or max(time.monotonic(), turns[0][1]) > self._deadline:
                    break
            else:
                outages.pop(name, None)
                return incoming
            name, not_before = turns.popleft()
            time.sleep(max(0.0, not_before - time.monotonic()))
            [call] = [each for each in gateway.candidates(self._request, self._surface) if each.name == name]
        if self._paid.refusal is not None:
            text = f"{', '.join(names)} failed, and there are not enough credits left for the other models."
            raise InsufficientCredits(text, details=self._paid.refusal.details)
        if isinstance(outcome, Exception):
            raise outcome
        return cast("UpstreamResponse", outcome)

    def _ask(self, call: ModelCall, *, others: int) -> UpstreamResponse:
        self._paid.ask(call)
        request = gateway.outgoing(call, self._paid)
        # It takes many times the memory of the raw body.
        call.fields.clear()
        request_bodies.release_decoded(self._request)
        # What is left of the time is for all of them.
        seconds = max(0.1, (self._deadline - time.monotonic()) / (1 + others))
        request.head_seconds = Decimal(seconds) if others else None
        until = time.monotonic() + seconds
        try:
            incoming = app_state().ports.upstream.send(self._paid.traced(request))
            if incoming.status < HTTPStatus.BAD_REQUEST:
                return self._begun(incoming, until) if others else incoming
            sent = request.target, request.body
            return self._checked(screen(call.provider, self._client_id, *sent, incoming))
        except (PortError, UpstreamError, UpstreamTimeout) as error:
            raise _Failure(error, None) from None

    def _checked(self, incoming: ReadResponse) -> UpstreamResponse:
        """Return an error that the client gets: one about the request, or a failure that the provider bills."""
        status, named = incoming.status, named_headers(incoming)
        if status == HTTPStatus.TOO_MANY_REQUESTS or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            reader = ResponseReader(self._paid.params, incoming)
            reader.feed(incoming.body)
            if reader.finish().usage is None:
                stated = {each: named.get(name, "") for name, each in (("retry-after", 1), ("retry-after-ms", 1_000))}
                waits = [float(text) / each for each, text in stated.items() if _NUMBER.fullmatch(text)]
                raise _Failure(incoming, waits[-1] if waits else None)
        return incoming

    def _begun(self, incoming: UpstreamResponse, until: float) -> UpstreamResponse:
        """Read a stream to its first content, while it needs no keep-alive, and another response to its end."""
        reader = ResponseReader(self._paid.params, incoming)
        is_stream = named_headers(incoming).get("content-type", "").startswith("text/event-stream")
        silence_seconds = float(app_state().settings.stream_keep_alive_seconds) if is_stream else 0.0
        body = bytearray()
        with ExitStack() as closing:
            closing.callback(incoming.close)
            while len(body) < forwarding.MAX_BODY_BYTES and not (is_stream and reader.has_begun):
                left_seconds = max(0.001, until - time.monotonic())
                piece = incoming.read_within(Decimal(min(left_seconds, silence_seconds or left_seconds)))
                if piece is None and time.monotonic() >= until:
                    raise OutcomeUnknown("timeout")
                if not piece:
                    break
                body += piece
                reader.feed(piece)
                # It renews the lease of the hold.
                self._paid.feed(b"")
            reading = reader.finish()
            is_billed = reading.usage is not None and reading.usage.cost_nanos
            if is_stream and reading.has_failed and not (reading.has_content or is_billed):
                raise UpstreamError("The stream of the provider began with an error.")
            closing.pop_all()
        return ReadResponse(incoming.status, incoming.headers, bytes(body), incoming)
