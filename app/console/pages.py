"""The pages of the console: lists, one agent and forms for acts, as `sections.toml` describes them."""

import re
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

from flask import Blueprint, Response, make_response, render_template, request, url_for

from app.console import sessions
from app.console.models import ConsoleSession
from app.console.sessions import LiveConsoleSession
from app.core.identifiers import new_id, require
from app.core.setting_types import split
from app.core.strict_json import JsonNumber
from app.errors import NotFound, RateLimited, Unauthorized
from app.identity import limits
from app.identity.principal import MasterKeyRole, needed_role
from app.owner.passkeys import challenges
from app.owner.passkeys import pages as passkey_pages
from app.owner.passkeys import service as passkeys
from app.owner.passkeys.pages import PasskeyPage
from app.owner.session import auth
from app.owner.session.sessions import end_session
from app.state import app_state
from app.version import VERSION
from app.web.client_request import current_request
from app.web.view_calls import call_view, refusal_of

entrance = Blueprint("console_entrance", __name__, url_prefix="/admin")
console = Blueprint("console", __name__, url_prefix="/admin")

_NUMBERS = {"usd": re.compile(r"\d{1,15}(\.\d{1,15})?", re.ASCII), "count": re.compile(r"\d{0,15}", re.ASCII)}
_COOKIE, _SESSION = "purser_console", "purser.console_session"
_SECTIONS: dict[str, dict[str, Any]] = tomllib.loads((Path(__file__).parent / "sections.toml").read_text("utf-8"))
_OVERVIEW: Any = _SECTIONS.pop("overview")
_PLACES = tuple((slug, each["title"]) for slug, each in _SECTIONS.items() if not {"needs", "is_hidden"} & each.keys())
_MAX_FORM_BYTES = 16 * 1024


@dataclass(frozen=True, slots=True)
class Cell:
    """A value in a table or list, as it is written."""

    title: str
    text: str
    kind: str
    href: str = ""


class _Refused(Exception):
    """A view of `/v1/platform` refused a call."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.answer = status


@entrance.before_request
def _check_entrance() -> None:
    _assert_host()
    limits.count_keyless_request(current_request(), "owner_pages")
    auth.limit_form(_MAX_FORM_BYTES)


@console.before_request
def _require_session() -> Response | None:
    _assert_host()
    found = sessions.find_session(auth.get_cookie(_COOKIE))
    if found is None:
        return auth.see_other(url_for("console_entrance.sign_in_form"))
    auth.limit_form(_MAX_FORM_BYTES)
    if request.method == "POST" and not auth.is_form_valid(session_id=found.session_id):
        return _render("error.html", status=403, title="This form has expired", message="Nothing was changed.")
    limits.count_authenticated_request(found.key_id)
    current_request().master_caller = found.caller
    request.environ[_SESSION] = found
    return None


@entrance.post("/sign-in")
def sign_in() -> Response:
    if not auth.is_form_valid():
        return _render_sign_in(status=400, error="This form has expired. Send it again, with cookies enabled.")
    try:
        token = sessions.sign_in(request.form.get("master_key", ""), previous_token=auth.get_cookie(_COOKIE))
    except (Unauthorized, RateLimited) as error:
        # A 401 would need a scheme, for which browsers open a dialog of their own.
        return _render_sign_in(status=429 if isinstance(error, RateLimited) else 403, error=error.message)
    return _enter(token)


@entrance.post("/sign-in/passkey")
def sign_in_by_passkey() -> Response:
    try:
        token, _ = passkeys.sign_in(LiveConsoleSession, previous_token=auth.get_cookie(_COOKIE))
    except Unauthorized as error:
        return _render_sign_in(status=403, error=error.message)
    return _enter(token)


@console.post("/sign-out")
def sign_out() -> Response:
    end_session(auth.get_cookie(_COOKIE), ConsoleSession)
    response = auth.see_other(url_for("console_entrance.sign_in_form"))
    auth.delete_cookie(response, _COOKIE)
    return response


@console.get("")
def show_overview() -> Response:
    """Show what there is, what waits, and what was charged lately."""
    figures: list[tuple[str, Any, str]] = []
    for title, slug, chosen in _OVERVIEW["lists"]:
        found = _call(_SECTIONS[slug]["view"], {**chosen, "limit": "1"})
        figures.append((title, found["pagination"]["total"], url_for("console.show_list", slug=slug, **chosen)))
    days = _call("platform.get_usage_by_day", {"days": "7"})["days"]
    charged = _written(sum(Decimal(str(each["cost_usd"])) for each in days), "usd")
    figures.append(("Charged in seven days", charged, url_for("console.show_list", slug="usage")))
    return _render("overview.html", figures=figures)


@console.get("/<slug>")
def show_list(slug: str) -> Response:
    """Show a list with its filters, a page at a time."""
    section = _section(slug)
    names = {name for name, *_ in section.get("filters", ())}
    chosen = {name: value.strip() for name, value in request.args.items() if name in names and value.strip()}
    if "view" not in section and chosen:
        return auth.see_other(url_for("console.show_one", slug=slug, item_id=next(iter(chosen.values()))))
    if "view" not in section or section.get("needs", "") not in {"", *chosen}:
        return _render("list.html", section=section, slug=slug, chosen=chosen, rows=None, page=None)
    offset = request.args.get("offset", "")
    answer = _call(section["view"], {**chosen, **({"offset": offset[:9]} if offset.isdecimal() else {})})
    items = answer[section["items"]]
    titles, cells = _table(section["columns"], items)
    rows = [(values, _acts(section, each), each) for values, each in zip(cells, items, strict=True)]
    return _render(
        "list.html", section=section, slug=slug, chosen=chosen, rows=rows, page=answer.get("pagination"), titles=titles,
        facts=_cells(section.get("facts", ()), answer), new=_acts(section, {}, of="new"),
    )  # fmt: skip


@console.get("/<slug>/<item_id>")
def show_one(slug: str, item_id: str) -> Response:
    """Show an item with what can be done about it."""
    one = require(_section(slug).get("one"), NotFound())
    found = _call(one["view"], {one["argument"]: item_id})
    tables = [(each["title"], *_table(each["columns"], found[each["items"]])) for each in one.get("tables", ())]
    related = [(title, href.format_map(found)) for title, href in one.get("related", ())]
    return _render(
        "one.html", slug=slug, title=found[one["title"]], facts=_cells(one.get("facts", ()), found), tables=tables,
        related=related, acts=_acts(one, found), found=found,
    )  # fmt: skip


@console.post("/<slug>/<act>", defaults={"item_id": ""})
@console.post("/<slug>/<item_id>/<act>")
def act(slug: str, item_id: str, act: str) -> Response:
    """Do what a form says, by the view of `/v1/platform` that does it."""
    section = _section(slug)
    of_one = section.get("one", {})
    acts = (*section.get("acts", ()), *of_one.get("acts", ())) if item_id else section.get("new", ())
    offered = {each["view"].partition(".")[2]: each for each in acts}
    if act not in offered:
        raise NotFound
    chosen = offered[act]
    arguments: dict[str, Any] = {chosen.get("argument") or of_one["argument"]: item_id} if item_id else {}
    for name, title, kind, *_ in chosen.get("fields", ()):
        arguments[name] = _entered(request.form.get(name, ""), title, kind)
    if "shows" in chosen:
        if (refusal := sessions.find_refusal(request.environ[_SESSION])) is not None:
            raise _Refused(403, refusal)
        current_request().master_caller = replace(request.environ[_SESSION].caller, in_console=False)
    # A form that is sent twice has the effect of one.
    answer = _call(chosen["view"], arguments, {"Idempotency-Key": request.form.get("form_id", "")})
    if "shows" in chosen:
        return _render("shown.html", slug=slug, title=chosen["title"], facts=_cells(chosen["shows"], answer))
    item = {"item_id": item_id} if of_one else {section["needs"]: item_id} if "needs" in section else {}
    return auth.see_other(url_for(f"console.show_{'one' if of_one else 'list'}", slug=slug, **item, done=act))


@entrance.get("/sign-in", endpoint="sign_in_form")
def _render_sign_in(*, status: int = 200, error: str = "") -> Response:
    """Ask for a master key or a passkey."""
    party = LiveConsoleSession.relying_party()
    prompt = challenges.prompt_to_use(LiveConsoleSession.sign_in_purpose, party=party)
    return _render("sign_in.html", status=status, error=error, prompt=prompt)


def _enter(token: str) -> Response:
    response = auth.see_other(url_for("console.show_overview"))
    auth.set_cookie(response, _COOKIE, token, max_age=int(sessions.LIFETIME.total_seconds()))
    return response


def _passkey_page() -> PasskeyPage:
    found, url = request.environ[_SESSION], url_for("console.show_passkeys")
    find_refusal, name = partial(sessions.find_refusal, found), f"Console, {found.caller.name}"
    return PasskeyPage(found, name, url, find_refusal, _render, confirms_removal=True)


def _assert_host() -> None:
    """Refuse other hosts than the console's: there, it does not exist. Raises: NotFound."""
    host = request.host.rpartition(":")[0] if request.host.rpartition(":")[2].isdecimal() else request.host
    if host.lower() not in split(app_state().settings.console_hosts.lower()):
        raise NotFound


def _section(slug: str) -> Mapping[str, Any]:
    return require(_SECTIONS.get(slug), NotFound())


def _call(view: str, arguments: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> Any:
    """Return the answer of a view. Raises: _Refused."""
    response = call_view(current_request(), view, arguments, headers=headers or {})
    answer = response.get_json()
    if response.status_code >= 400:  # noqa: PLR2004
        raise _Refused(response.status_code, refusal_of(answer))
    return answer


def _acts(owner: Mapping[str, Any], row: Mapping[str, Any], *, of: str = "acts") -> list[Mapping[str, Any]]:
    """Return the acts that a row's state and the role permit, or with `of="new"` those that make a row."""
    role = request.environ[_SESSION].caller.role
    return [
        {**each, "name": each["view"].partition(".")[2], "form_id": new_id()}
        for each in owner.get(of, ())
        if role in {MasterKeyRole.ADMIN, needed_role(each["view"])}
        and (row[each["if"]] if "if" in each else True)
        and not ("unless" in each and row[each["unless"]])
    ]


def _cells(columns: Any, row: Mapping[str, Any]) -> list[Cell]:
    return [
        Cell(title, _written(_value(row, path), kind), kind, rest[0].format_map(row) if rest else "")
        for title, path, kind, *rest in columns
    ]


def _table(columns: Any, items: Any) -> tuple[list[str], list[list[Cell]]]:
    """Return the titles and cells of a table, without columns in which no item has a value."""
    filled = [each for each in columns if any(_value(item, each[1]) not in (None, "") for item in items)]
    return [title for title, *_ in filled], [_cells(filled, item) for item in items]


def _value(row: Any, path: str) -> Any:
    """Return the value at a path of names; the row itself without one."""
    found: Any = row
    for name in path.split(".") if path else ():
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def _written(value: Any, kind: str) -> str:
    if value is None or value == "" or (kind == "limit" and not value):
        return "none"
    if kind in ("usd", "limit"):
        return f"{Decimal(str(value)):,.2f} USD"
    if kind in ("flag", "good"):
        return "Yes" if value else "No"
    if kind == "time":
        return f"{datetime.fromisoformat(value):%d %b %Y, %H:%M} UTC"
    return str(value)


def _entered(text: str, title: str, kind: str) -> Any:
    """Return what was entered in a field, as the view takes it. Raises: _Refused."""
    if kind in ("flag", "row", "text", "choice"):
        return text == "on" if kind == "flag" else text
    if kind == "time":
        with suppress(ValueError):
            return datetime.fromisoformat(text).replace(tzinfo=UTC).isoformat()
    elif _NUMBERS[kind].fullmatch(text := text.strip()):
        return JsonNumber(text) if kind == "usd" else int(text) if text else None
    examples = {"time": "a time such as 2026-11-28T06:30", "count": "a whole number such as 600, or nothing"}
    raise _Refused(400, f"{title}: enter {examples.get(kind, 'a number such as 25 or 7.50')}.")


def _render(template: str, *, status: int = 200, **values: Any) -> Response:
    signed_in: LiveConsoleSession | None = request.environ.get(_SESSION)
    body = render_template(
        f"console/{template}", csrf_field=auth.CSRF_FIELD, settings=app_state().settings, version=VERSION,
        csrf_token=auth.csrf_token(session_id=signed_in.session_id if signed_in else ""),
        signed_in=signed_in, places=_PLACES, prompt_of=lambda: passkeys.prompt_of(request.environ[_SESSION]), **values,
    )  # fmt: skip
    return make_response(body, status)


@console.errorhandler(_Refused)
def _on_refusal(refusal: _Refused) -> Response:
    title = "Not found" if refusal.answer == 404 else "Nothing was changed"  # noqa: PLR2004
    return _render("error.html", status=refusal.answer, title=title, message=str(refusal))


passkey_pages.add_views(console, "/passkeys", _passkey_page)
for _blueprint in (entrance, console):
    _blueprint.after_request(auth.set_security_headers)
    _blueprint.register_error_handler(Exception, auth.on_unhandled_error)
