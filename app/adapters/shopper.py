"""The service's side of the shopper: starts its process with nothing of the service in the environment, and ends it.

Answers its requests for decisions, and removes the credentials that a hostile shop may have put into its messages.
"""

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import structlog

from app.adapters import child_process
from app.adapters.child_process import ChildEndedError, ChildProcess, ChildTimeoutError
from app.db.unit_of_work import assert_no_unit
from app.ports.shopper import (
    ElementQuestion,
    FailureCode,
    OrderConfirmation,
    OrderReview,
    Product,
    PurchaseFailed,
    PurchaseHandler,
    PurchaseOutcomeUnknown,
    PurchaseRequest,
    ShoppingStep,
)
from shopper.process import protocol, recorded_page
from shopper.process.redaction import CredentialRedactor, PersonalDataRedactor
from shopper.process.unprivileged_user import find_unprivileged_user

_PREFIX = "purser-shopper-"
_HEARTBEAT_SECONDS = 5.0
# Not taken from a page: redaction could damage them, as a username may be a part of them. A document is sanitized.
_TRUSTED_FIELDS = frozenset(
    {
        "kind", "code", "missing", "action", "name", "availability", "price_source", "png", "role", "purpose",
        "document",
    }
)  # fmt: skip
# Steps with texts of ours.
_OWN_STEPS = frozenset({"sign_in", "choose_address", "fill"})
_NO_SANDBOX_MESSAGE = (
    "The service's browser does not start with its sandbox, so no page was opened and nothing was bought. "
    "The operator of the service has to fix this; sending the purchase again does not help."
)
_log = structlog.get_logger(__name__)
_PATH = "/usr/local/bin:/usr/bin:/bin:/opt/homebrew/bin"


@dataclass(frozen=True, slots=True)
class BrowserShopper:
    """Makes purchases, one at a time per calling process."""

    executable: str
    private: bool
    """Whether shops may have any address."""
    sandbox_required: bool
    """Whether a browser that does not start with its sandbox is not used."""
    deadline_seconds: float = 150.0
    reachable: Collection[str] = ()
    """Each `host:port` that is reachable besides public ones."""
    max_memory: int = 3 * 1024**3
    """In bytes, of one purchase."""
    sign: Callable[[str], Mapping[str, str]] = lambda _url: {}
    """Returns the headers that say to a host at a URL whose browser this is."""

    def buy(self, request: PurchaseRequest, handler: PurchaseHandler) -> OrderConfirmation | OrderReview:
        assert_no_unit()
        _remove_stale_profiles()
        with self._process() as (child, environment):
            deadline = time.monotonic() + self.deadline_seconds
            conversation = _BrowserConversation(child, request, handler)
            command = protocol.encode(
                "buy",
                request=protocol.request_to_json(request), browser=self.executable,
                private=self.private, reachable=tuple(self.reachable), environment=environment,
                sandbox_required=self.sandbox_required, max_memory=self.max_memory,
                signatures=self._signatures(request),
            )  # fmt: skip
            try:
                child.write(command, deadline=deadline)
                return conversation.run(deadline=deadline)
            except ChildEndedError:
                failure = PurchaseFailed(FailureCode.BROWSER_ERROR, "The browser process ended early.")
                raise conversation.end_with(failure) from None
            except ChildTimeoutError:
                failure = PurchaseFailed(FailureCode.TIMEOUT, "The shop took too long.")
                raise conversation.end_with(failure) from None

    def _signatures(self, request: PurchaseRequest) -> dict[str, Mapping[str, str]]:
        """Return the headers for each host that pages may come from by its name, for as long as the purchase."""
        parts = urlsplit(request.url)
        named = (parts.netloc.lower(), *request.allowed_domains)
        hosts = {name for host in named for name in (host, f"www.{host}", host.removeprefix("www."))}
        found = {host: self.sign(f"{parts.scheme}://{host}/") for host in sorted(hosts)}
        return {host: headers for host, headers in found.items() if headers}

    def is_sandboxed(self) -> bool:
        with self._process() as (child, environment):
            deadline = time.monotonic() + self.deadline_seconds
            command = protocol.encode(
                "check_sandbox", browser=self.executable, environment=environment, sandbox_required=True
            )
            try:
                child.write(command, deadline=deadline)
                return bool(protocol.parse(child.read_line(deadline=deadline))["kind"] == "sandboxed")
            except (ChildEndedError, ChildTimeoutError):
                return False

    @contextmanager
    def _process(self) -> Iterator[tuple[ChildProcess, dict[str, str]]]:
        """Start the browser's process; yield it and the environment that the browser gets."""
        user = find_unprivileged_user(child_process.ROOT, self.executable)
        with _profile_folder(user) as folder:
            environment = {"PATH": _PATH, "LANG": "C.UTF-8", "HOME": str(folder), "TMPDIR": str(folder)}
            with child_process.run(
                "-m", "shopper", str(os.getpid()),
                environment={**environment, "PYTHONPATH": str(child_process.ROOT)},
                max_line=protocol.MAX_LINE, user=user,
            ) as child:  # fmt: skip
                yield child, environment


class _BrowserConversation:
    """The parent's side of one purchase. After an authorization every bad end is `PurchaseOutcomeUnknown`."""

    def __init__(self, child: ChildProcess, request: PurchaseRequest, handler: PurchaseHandler) -> None:
        self._child = child
        self._handler = handler
        self._dry_run = request.dry_run
        self._order_authorized = False
        self._deadline = 0.0
        self._redactor = CredentialRedactor(request.password, request.username, request.coupon_code)
        self._personal_data = PersonalDataRedactor(request)

    def end_with(self, failure: PurchaseFailed) -> PurchaseFailed | PurchaseOutcomeUnknown:
        """Return a failure, or that the outcome is unknown if an order was authorized before it."""
        if self._order_authorized:
            return PurchaseOutcomeUnknown("The order button may have been clicked; then the browser was lost.")
        return failure

    def run(self, *, deadline: float) -> OrderConfirmation | OrderReview:
        """Serve the child. Raises: PurchaseFailed, PurchaseOutcomeUnknown, ChildEndedError, ChildTimeoutError."""
        self._deadline = deadline
        for line in self._lines(deadline):
            try:
                message = self._redact(protocol.parse(line))
                if message["kind"] in {"confirmed", "reviewed"}:
                    return self._result(message)
                self._dispatch(message)
            except (ValueError, KeyError, TypeError):
                failure = PurchaseFailed(FailureCode.BROWSER_ERROR, "The browser process sent an invalid message.")
                raise self.end_with(failure) from None
        raise ChildTimeoutError

    def _result(self, message: Mapping[str, Any]) -> OrderConfirmation | OrderReview:
        values = protocol.review_values(message)
        if message["kind"] == "reviewed" and self._dry_run and not self._order_authorized:
            return OrderReview(**values)
        if message["kind"] == "confirmed" and self._order_authorized:
            return OrderConfirmation(**values)
        if message["kind"] == "confirmed":
            raise PurchaseOutcomeUnknown("The browser reports an order that was not authorized.")
        raise ValueError("only a dry run ends with a review")

    def _dispatch(self, message: Mapping[str, Any]) -> None:
        values = {name: value for name, value in message.items() if name != "kind"}
        match message["kind"]:
            case "first_page" | "step" | "screenshot" | "page":
                self._record(message["kind"], values)
            case "product":
                self._reply(lambda: self._handler.on_product(Product(**values)))
            case "authorize_order":
                self._reply(lambda: self._authorize_order(OrderReview(**protocol.review_values(values))))
            case "choose":
                self._choose(protocol.question_from_json(values))
            case "failed":
                raise self.end_with(protocol.failure_from_json(values))
            case "unsandboxed":
                _log.warning("browser_without_sandbox")
            case "sandbox_unavailable":
                _log.error("browser_sandbox_unavailable", see="flask doctor")
                raise self.end_with(PurchaseFailed(FailureCode.BROWSER_ERROR, _NO_SANDBOX_MESSAGE, is_permanent=True))
            case "outcome_unknown":
                raise PurchaseOutcomeUnknown(str(values["message"]))
            case _:
                raise ValueError("unknown message")

    def _record(self, kind: str, values: Mapping[str, Any]) -> None:
        match kind:
            case "first_page":
                self._handler.on_first_page()
            case "step":
                self._handler.on_step(ShoppingStep(**values))
            case "page":
                document = recorded_page.sanitize(str(values["document"]), self._personal_data.redact)
                self._handler.on_page(document)
            case _:
                self._handler.on_screenshot(str(values["name"]), protocol.decode_png(values["png"]))

    def _authorize_order(self, review: OrderReview) -> None:
        if self._order_authorized or self._dry_run:
            raise PurchaseFailed(FailureCode.BROWSER_ERROR, "The browser asked for an order that is not permitted.")
        self._handler.authorize_order(review)
        self._order_authorized = True

    def _choose(self, question: ElementQuestion) -> None:
        if self._order_authorized:
            raise ValueError("nothing is left to choose")
        redact = self._personal_data.redact
        candidates = tuple(
            replace(item, name=redact(item.name), text=redact(item.text)) for item in question.candidates
        )
        index = self._handler.choose(replace(question, page=redact(question.page), candidates=candidates))
        self._child.write(protocol.encode("choice", index=index), deadline=self._deadline)

    def _reply(self, decide: Any) -> None:
        try:
            decide()
            answer = protocol.encode("allow")
        except PurchaseFailed as refusal:
            answer = protocol.encode("refuse", **protocol.failure_to_json(refusal))
        self._child.write(answer, deadline=self._deadline)

    def _lines(self, deadline: float) -> Iterator[bytes]:
        """Yield the child's lines until the deadline, and call the handler's heartbeat."""
        last_heartbeat = time.monotonic()
        while (now := time.monotonic()) < deadline:
            if now - last_heartbeat >= _HEARTBEAT_SECONDS:
                self._handler.heartbeat()
                last_heartbeat = now
            try:
                line = self._child.read_line(deadline=min(deadline, last_heartbeat + _HEARTBEAT_SECONDS))
            except ChildTimeoutError:
                continue
            yield line

    def _redact(self, value: Any, *, name: str = "") -> Any:
        """Remove the credentials from everything that a page may have echoed."""
        if isinstance(value, str):
            return value if name in _TRUSTED_FIELDS else self._redactor.redact(value)
        if isinstance(value, dict):
            redacted = {key: self._redact(inner, name=key) for key, inner in value.items()}
            own = "message" if "quoted" in value else "text" if value.get("action") in _OWN_STEPS else None
            if own is not None and isinstance(value.get(own), str):
                quoted = [str(each) for each in value.get("quoted", ())]
                redacted[own] = self._redactor.redact_message(value[own], quoted)
            return redacted
        if isinstance(value, list):
            return [self._redact(inner, name=name) for inner in value]
        return value


@contextmanager
def _profile_folder(user: int | None) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-"))
    try:
        if user is not None:
            os.chown(folder, user, user)
        yield folder
    finally:
        _remove(folder)


def _remove_stale_profiles() -> None:
    """Remove the profiles of processes that were killed before they could."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        owner_pid = folder.name.removeprefix(_PREFIX).partition("-")[0]
        if not owner_pid.isdigit():
            continue
        try:
            os.kill(int(owner_pid), 0)
        except ProcessLookupError:
            _remove(folder)
        except OSError:
            continue


def _remove(folder: Path) -> None:
    # Processes of the browser that are ending may still write for a moment.
    for _ in range(20):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        time.sleep(0.05)
