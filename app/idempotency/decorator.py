"""The decorator that makes a view honour `Idempotency-Key`."""

import re
from collections.abc import Callable
from datetime import timedelta
from functools import wraps
from typing import Any, TypeVar

import marshmallow as ma
import structlog
from flask import Response, jsonify, make_response, request
from sqlalchemy.exc import SQLAlchemyError

from app.db.unit_of_work import CommitUnknownError, is_unavailable
from app.errors import IdempotencyConflict, InvalidInput, ServiceError
from app.idempotency import service
from app.idempotency.service import HEADER, Claim, IdempotencyKey, KeyScope
from app.web import error_responses
from app.web.blueprint import document_errors, document_header, documentation_section
from app.web.client_request import current_request
from app.web.request_bodies import decoded_body, parsed_body
from app.web.schemas import canonical_body, canonical_json

_log = structlog.get_logger(__name__)
View = TypeVar("View", bound=Callable[..., Any])
_DERIVED_LIFETIME = timedelta(minutes=10)
_VISIBLE_ASCII = re.compile(r"[\x21-\x7e]{1,255}", re.ASCII)


def idempotent(
    *,
    owner: Callable[[], str],
    rebuild: Callable[[str], Any],
    note: str,
    pattern: str | None = None,
    applies: Callable[[], bool] = lambda: True,
    on_replay: Callable[[str], None] | None = None,
    derive_key: Callable[[], str] | None = None,
    derived_conflict: str = service.OTHER_BODY,
    stores_response: bool = True,
) -> Callable[[View], View]:
    """Honour `Idempotency-Key` on a view, unless `applies` returns False: such a request creates nothing.

    The view receives the claim as its argument `claim`, and passes it to the use case, which binds it. `owner` returns
    the id of the key's owner; `rebuild` returns from the bound id what the view returned, for a response that was lost
    in a crash. `on_replay` receives that id before a replay; what it raises is the response instead. `note` documents
    the header, `pattern` its values.

    `derive_key` returns a key for a request without one, which is valid for ten minutes and sent back; another request
    under it is refused with `derived_conflict`. A request that `derives_idempotency_keys` has one of its whole body on
    every view that derives none itself. Without `stores_response`, every replay is rebuilt from the record, and a
    response without a record is no replay.
    """

    def decorate(view: View) -> View:
        serialize, schema = _serializer_of(view), _body_schema_of(view)

        @wraps(view)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            sent = request.headers.get(HEADER)
            is_derived = derive_key is not None or current_request().derives_idempotency_keys
            if not applies() or (sent is None and not is_derived):
                return _execute(view, Claim.none(), args, kwargs)
            if sent is not None and not _VISIBLE_ASCII.fullmatch(sent):
                raise InvalidInput.field(HEADER, "must be 1 to 255 visible ASCII characters")
            content = _content_of(schema)
            key = sent or (service.derived_key(content) if derive_key is None else derive_key())
            scope = KeyScope(owner(), request.method, request.path[:200], key)
            if sent is None:
                claimed = service.claim_key(scope, content, lifetime=_DERIVED_LIFETIME, conflict=derived_conflict)
            else:
                claimed = service.claim_key(scope, content)
            if isinstance(claimed, IdempotencyKey):
                response = _replay(claimed, lambda subject_id: serialize(rebuild(subject_id)), on_replay)
            else:
                response = _execute_and_store(view, claimed, args, kwargs, stores_response=stores_response)
            if sent is None:
                response.headers[HEADER] = key
            return response

        document_errors(wrapper, [IdempotencyConflict])
        document_header(wrapper, HEADER, note, pattern=pattern)
        return wrapper  # type: ignore[return-value]

    return decorate


def _content_of(schema: ma.Schema | None) -> bytes:
    """Return what the current request asks for. One that is not valid is compared as it is; the view refuses it."""
    if schema is None:
        return b""
    try:
        body = parsed_body(current_request())
    except InvalidInput:
        return decoded_body(current_request())
    try:
        return canonical_body(schema, body)
    except ma.ValidationError:
        return canonical_json(body)


def _body_schema_of(view: Callable[..., Any]) -> ma.Schema | None:
    """Return the schema of the body that the view's `arguments` decorator declares, None without one."""
    declared = documentation_section(view, "arguments").get("parameters", [])
    return next((each["schema"] for each in declared if each["in"] == "json"), None)


def _serializer_of(view: Callable[..., Any]) -> Callable[[Any], Response]:
    """Return the serialisation that the view's `response` decorator declares; a response is returned as it is."""
    [status] = view.__dict__["_apidoc"]["success_status_codes"]
    [declared] = documentation_section(view, "response")["responses"][status]
    schema = declared["schema"]

    def serialize(found: Any) -> Response:
        if isinstance(found, Response):
            return found
        response = jsonify(schema.dump(found))
        response.status_code = status
        return response

    return serialize


def _execute(view: Callable[..., Any], claim: Claim, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    try:
        return view(*args, claim=claim, **kwargs)
    except SQLAlchemyError as error:
        if claim.is_bound and is_unavailable(error):
            raise CommitUnknownError from error
        raise


def _execute_and_store(
    view: Callable[..., Any], claim: Claim, args: tuple[Any, ...], kwargs: dict[str, Any], *, stores_response: bool
) -> Response:
    try:
        response = make_response(_execute(view, claim, args, kwargs))
    except Exception as error:
        if not claim.is_bound:
            claim.release()
        if not claim.is_bound or not isinstance(error, ServiceError):
            raise
        response = error_responses.error_response(error)
    try:
        if stores_response:
            claim.store_response(response.status_code, response.get_data())
        elif claim.is_bound:
            claim.end_lease()
        else:
            claim.release()
    except Exception:
        # What was done is recorded: the response must go out, and a replay is rebuilt from the record.
        _log.exception("idempotent_response_not_stored")
    return response


def _replay(
    stored: IdempotencyKey, rebuild: Callable[[str], Response], on_replay: Callable[[str], None] | None
) -> Response:
    if (found := stored.read()) is not None:
        response = Response(found[1], status=found[0], mimetype="application/json")
    else:
        response = rebuild(stored.record())
    if on_replay is not None and stored.subject_id is not None:
        on_replay(stored.subject_id)
    response.headers["Idempotent-Replayed"] = "true"
    return response
