"""Sign-in: attempted once. A refusal is final, and a purchase with credentials never continues as a guest."""

import re

from app.ports.shopper import FailureCode, PurchaseFailed
from shopper.flow import evidence
from shopper.flow.session import BrowserSession, assert_no_human_check, is_own_host, preferred_button
from shopper.page import autofill, breakdown, keywords, prices
from shopper.page.snapshot import FormControl, PageButton, PageSnapshot
from shopper.page.tab import PageActionFailed

_SUBMIT = re.compile(r"\W*(submit|confirm|finish|complete)\W*", re.IGNORECASE)
_RESULT_SECONDS = 20.0
_FORM_SECONDS = 6.0


def sign_in_if_offered(session: BrowserSession, snapshot: PageSnapshot) -> bool:
    """Sign in if the page offers it; return whether it did. Raises: PurchaseFailed."""
    if session.is_guest:
        return False
    if _login_form(snapshot) is None:
        link = _login_link(snapshot)
        if link is None:
            return False
        snapshot = session.click(link, "open_login")
        snapshot = session.tab.wait_for(lambda now: _login_form(now) is not None, seconds=_FORM_SECONDS)
    if _login_form(snapshot) is None:
        return False
    sign_in(session, snapshot)
    return True


def sign_in(session: BrowserSession, snapshot: PageSnapshot) -> PageSnapshot:
    """Fill the form, submit it once and check the result. Raises: PurchaseFailed(login_failed)."""
    if session.sign_in_attempted:
        raise _login_failure("The shop asks to sign in again; it was tried once.")
    session.sign_in_attempted = True
    try:
        password = _fill(session, snapshot)
        session.record_step("sign_in", "username and password", snapshot.path)
        before = session.tab.take_snapshot()
        _send(session, password)
    except PageActionFailed:
        raise _login_failure("The sign-in form could not be filled or sent.") from None
    session.tab.wait_for(lambda now: _has_result(before, now), seconds=_RESULT_SECONDS)
    session.tab.settle()
    after = session.tab.take_snapshot()
    assert_no_human_check(after)
    if any(autofill.token_of(control) == "one-time-code" for control in after.controls) or (
        keywords.ONE_TIME_CODE.search(after.text) and not keywords.ONE_TIME_CODE.search(before.text)
    ):
        raise PurchaseFailed(
            FailureCode.HUMAN_CHECK, "The shop asks for a code that it has sent to the account's owner."
        )
    if _login_form(after) is not None or _is_rejection(before, after):
        alerts = next(iter(_new_alerts(before, after)), "")
        raise _login_failure(f"The shop refused the sign-in{': ' + alerts if alerts else ''}.", quoted=(alerts,))
    session.signed_in = True
    return after


def _fill(session: BrowserSession, snapshot: PageSnapshot) -> FormControl:
    """Type username and password; return the password field, unsent. Raises: PurchaseFailed, PageActionFailed."""
    if _login_form(snapshot) is None:
        raise _login_failure("There is no sign-in form.")
    for choice in snapshot.controls:
        if choice.type == "radio" and keywords.RETURNING_CUSTOMER.search(choice.label) and not choice.checked:
            session.tab.check(choice)
    before = session.tab.take_snapshot()
    _assert_own_host(session, before)
    user, password = _login_form(before) or (None, None)
    if user is not None and not user.disabled:
        session.tab.fill(user, session.request.username or "")
    if password is None and user is not None:
        # The shop asks for the password on a second page.
        _send(session, user)
        snapshot = session.tab.wait_for(
            lambda now: bool(now.passwords) or _is_rejection(before, now), seconds=_FORM_SECONDS
        )
        _assert_own_host(session, snapshot)
        password = snapshot.passwords[0] if len(snapshot.passwords) == 1 else None
    if password is None:
        raise _login_failure("The shop does not accept this username.")
    session.tab.fill(password, session.request.password or "")
    return password


def _assert_own_host(session: BrowserSession, snapshot: PageSnapshot) -> None:
    if not is_own_host(session, snapshot):
        raise PurchaseFailed(
            FailureCode.LOGIN_FAILED,
            "The sign-in form is on another host than the product. Credentials are typed on the product's host and its"
            " subdomains only; try a product link on the host that signs in, or buy as a guest.",
        )


def is_required(session: BrowserSession, snapshot: PageSnapshot) -> bool:
    """Return whether the page requires a sign-in before it continues."""
    if session.signed_in or session.is_guest:
        return False
    return (
        any(autofill.token_of(control) == autofill.PASSWORD for control in snapshot.controls)
        and _login_form(snapshot) is not None
    )


def _login_link(snapshot: PageSnapshot) -> PageButton | None:
    links = [
        button
        for button in snapshot.buttons
        if len(button.text) < 40 and not keywords.NOT_LOGIN.search(f"{button.text} {button.path}")
    ]
    return preferred_button([button for button in links if keywords.LOGIN_PATH.search(button.path)]) or evidence.best(
        links, structure=[], words=[keywords.LOGIN, keywords.ACCOUNT]
    )


def _login_form(snapshot: PageSnapshot) -> tuple[FormControl | None, FormControl | None] | None:
    """Return the username and password fields of the sign-in form."""
    candidates: list[tuple[tuple[bool, bool, bool], FormControl | None, FormControl | None]] = []
    for number in dict.fromkeys(control.form for control in snapshot.controls):
        members = [control for control in snapshot.controls if control.form == number]
        buttons = [button for button in snapshot.buttons if button.form == number]
        secrets = [control for control in members if control.type == "password"]
        # Two passwords are those of a registration.
        if len(secrets) != 1 or secrets[0].autocomplete == "new-password":
            continue
        is_declared = secrets[0].autocomplete == "current-password"
        is_sent_to_login = any(keywords.LOGIN_PATH.search(button.action) for button in buttons)
        words = " ".join(button.text for button in buttons)
        says_login = any(evidence.is_named(button, keywords.LOGIN) for button in buttons)
        if keywords.REGISTER.search(words) and not (is_declared or is_sent_to_login or says_login):
            continue
        says_login = says_login or bool(keywords.RETURNING_CUSTOMER.search(words))
        users = [
            control
            for control in members
            if control.type in {"text", "email", "tel", "textbox"}
            and autofill.token_of(control) in {"email", autofill.USERNAME, "tel", "name", None}
        ]
        before = [control for control in users if members.index(control) < members.index(secrets[0])]
        rank = (is_declared, is_sent_to_login, says_login)
        candidates.append((rank, next(reversed(before or users), None), secrets[0]))
    if candidates:
        # A form around a whole checkout may also contain a password; one that is a sign-in comes first.
        _, user, password = max(candidates, key=lambda found: found[0])
        return user, password
    if not snapshot.passwords and keywords.LOGIN.search(snapshot.heading):
        names = [control for control in snapshot.controls if autofill.token_of(control) in {"email", autofill.USERNAME}]
        if len(names) == 1:
            return names[0], None
    return None


def _send(session: BrowserSession, control: FormControl) -> None:
    """Submit the form of a field: by its button, or by Enter if it has none. Raises: PageActionFailed."""
    snapshot = session.tab.take_snapshot()
    same = (
        field
        for field in snapshot.controls
        if (field.type, field.name, field.id) == (control.type, control.name, control.id)
    )
    field = next(same, None)
    if field is None:
        raise PageActionFailed
    near = [
        button
        for button in snapshot.buttons
        if (button.form, button.dialog, button.disabled) == (field.form, field.dialog, False)
        and not keywords.REGISTER.search(button.text)
        and not keywords.NOT_LOGIN.search(button.text)
    ]
    buttons = [button for button in near if button.tag != "a" and not _may_order(snapshot, button)]
    named = [button for button in buttons if keywords.LOGIN.search(button.text) or keywords.NEXT.search(button.text)]
    submits = [button for button in buttons if button.submits]
    target = (
        preferred_button([button for button in named if button.submits])
        or preferred_button(named)
        or preferred_button(submits)
    )
    if target is not None:
        session.tab.click(target)
    elif any(_may_order(snapshot, button) for button in near):
        raise PageActionFailed
    else:
        session.tab.submit_by_enter(field)


def _may_order(snapshot: PageSnapshot, button: PageButton) -> bool:
    """Return whether a button of a form with a password says that it orders; "Submit" alone may sign in."""
    ordering = [name for name in (button.text, button.label) if keywords.PLACE_ORDER.search(name)]
    if not ordering:
        return False
    shows_total = prices.total_of(breakdown.labelled_amounts(snapshot)) is not None
    return not all(map(_SUBMIT.fullmatch, ordering)) or (shows_total and not signs_in(snapshot, button))


def _has_result(before: PageSnapshot, now: PageSnapshot) -> bool:
    return not now.passwords or _is_rejection(before, now) or (now.path != before.path and _login_form(now) is None)


def _is_rejection(before: PageSnapshot, now: PageSnapshot) -> bool:
    new_lines = set(now.text.splitlines()) - set(before.text.splitlines())
    lines = [*new_lines, *_new_alerts(before, now)]
    return any(keywords.LOGIN_REJECTED.search(line) for line in lines if len(line) < 300)


def _new_alerts(before: PageSnapshot, now: PageSnapshot) -> list[str]:
    return [line for line in now.alerts if line not in before.alerts]


def _login_failure(message: str, *, quoted: tuple[str, ...] = ()) -> PurchaseFailed:
    return PurchaseFailed(
        FailureCode.LOGIN_FAILED, f"{message} Check username and password; there is no second attempt.", quoted=quoted
    )


def signs_in(snapshot: PageSnapshot, button: PageButton) -> bool:
    """Return whether a button belongs to a form with a password and nothing else but a name for it."""
    fields = [control for control in snapshot.controls if control.form == button.form >= 0]
    tokens = {autofill.token_of(control) for control in fields if control.type != "checkbox"}
    return autofill.PASSWORD in tokens and tokens <= {autofill.PASSWORD, autofill.USERNAME, "email"}
