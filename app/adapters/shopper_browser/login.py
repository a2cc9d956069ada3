"""Signing in: once. A refusal is final, and whoever was given an account never buys as a guest."""

from __future__ import annotations

from app.adapters.shopper_browser import fields, signals
from app.adapters.shopper_browser.snapshot import Button, Control, Snapshot
from app.adapters.shopper_browser.tab import Gone
from app.adapters.shopper_browser.trip import Trip, assert_no_human_check, best
from app.ports.shopper import Failed, Trouble

_OUTCOME_SECONDS = 20.0
_FORM_SECONDS = 6.0


def sign_in_first(trip: Trip, seen: Snapshot) -> bool:
    """Sign in where the page has a way to do so; tell whether it had. Raises: Failed."""
    if trip.is_guest:
        return False
    if _form(seen) is None:
        door = _door(seen)
        if door is None:
            return False
        seen = trip.press(door, "open_login")
        seen = trip.tab.wait_for(lambda now: _form(now) is not None, seconds=_FORM_SECONDS)
    if _form(seen) is None:
        return False
    sign_in(trip, seen)
    return True


def sign_in(trip: Trip, seen: Snapshot) -> Snapshot:
    """Fill the form that is there, send it once and see what comes of it. Raises: Failed(login_failed)."""
    if trip.tried_to_sign_in:
        raise _refused("The shop asks to sign in again; it was tried once.")
    trip.tried_to_sign_in = True
    try:
        password = _fill(trip, seen)
        trip.note("sign_in", "username and password", seen.path)
        before = trip.tab.look()
        _send(trip, password)
    except Gone:
        raise _refused("The form to sign in could not be filled.") from None
    trip.tab.wait_for(lambda now: _decided(before, now), seconds=_OUTCOME_SECONDS)
    trip.tab.settle()
    after = trip.tab.look()
    assert_no_human_check(after)
    if any(fields.token_of(control) == "one-time-code" for control in after.controls) or (
        signals.ONE_TIME_CODE.search(after.text) and not signals.ONE_TIME_CODE.search(before.text)
    ):
        raise Failed(Trouble.HUMAN_CHECK, "The shop asks for a code that it has sent to the account's owner.")
    if _form(after) is not None or _says_no(before, after):
        said = next(iter(_new_alerts(before, after)), "")
        raise _refused(f"The shop refused the log-in{': ' + said if said else ''}.")
    trip.signed_in = True
    return after


def _fill(trip: Trip, seen: Snapshot) -> Control:
    """Type username and password; return the password's field, unsent. Raises: Failed, Gone."""
    if _form(seen) is None:
        raise _refused("There is no form to sign in with.")
    for choice in seen.controls:
        if choice.type == "radio" and signals.RETURNING.search(choice.label) and not choice.checked:
            trip.tab.tick(choice)
    before = trip.tab.look()
    user, password = _form(before) or (None, None)
    if user is not None and not user.disabled:
        trip.tab.type(user, trip.errand.username or "")
    if password is None and user is not None:
        # The password is asked for on a second page.
        _send(trip, user)
        seen = trip.tab.wait_for(
            lambda now: bool(now.passwords) or _says_no(before, now), seconds=_FORM_SECONDS
        )
        password = seen.passwords[0] if len(seen.passwords) == 1 else None
    if password is None:
        raise _refused("The shop does not take this username.")
    trip.tab.type(password, trip.errand.password or "")
    return password


def is_asked_for(trip: Trip, seen: Snapshot) -> bool:
    """Tell whether the page wants somebody to sign in before it goes on."""
    if trip.signed_in or trip.is_guest:
        return False
    return (
        any(fields.token_of(control) == fields.PASSWORD for control in seen.controls)
        and _form(seen) is not None
    )


def _door(seen: Snapshot) -> Button | None:
    doors = [
        button
        for button in seen.buttons
        if signals.LOGIN.search(button.text)
        and not signals.NOT_LOGIN.search(button.text)
        and len(button.text) < 40
    ]
    doors = doors or [button for button in seen.buttons if signals.ACCOUNT.search(button.text)]
    return best(doors)


def _form(seen: Snapshot) -> tuple[Control | None, Control | None] | None:
    """Return the username's and the password's field of the form for those who have an account."""
    candidates: list[tuple[int, Control | None, Control | None]] = []
    for number in dict.fromkeys(control.form for control in seen.controls):
        members = [control for control in seen.controls if control.form == number]
        buttons = [button for button in seen.buttons if button.form == number]
        secrets = [control for control in members if control.type == "password"]
        words = " ".join(button.text for button in buttons)
        if len(secrets) != 1 or secrets[0].autocomplete == "new-password":
            continue
        says_login = bool(signals.LOGIN.search(words) or signals.RETURNING.search(words))
        if signals.REGISTER.search(words) and not any(
            signals.LOGIN.search(button.text) for button in buttons
        ):
            continue
        users = [
            control
            for control in members
            if control.type in {"text", "email", "tel", "textbox"}
            and fields.token_of(control) in {"email", fields.USERNAME, "tel", "name", None}
        ]
        before = [control for control in users if members.index(control) < members.index(secrets[0])]
        candidates.append((2 if says_login else 1, next(reversed(before or users), None), secrets[0]))
    if candidates:
        # A form around a whole checkout may hold a password, too; the one that says so comes first.
        _, user, password = max(candidates, key=lambda found: found[0])
        return user, password
    if not seen.passwords and signals.LOGIN.search(seen.heading):
        names = [
            control for control in seen.controls if fields.token_of(control) in {"email", fields.USERNAME}
        ]
        if len(names) == 1:
            return names[0], None
    return None


def _send(trip: Trip, control: Control) -> None:
    """Send the form of a field: by its button, else by Enter. Raises: Gone."""
    seen = trip.tab.look()
    same = (
        field
        for field in seen.controls
        if (field.type, field.name, field.id) == (control.type, control.name, control.id)
    )
    field = next(same, None)
    if field is None:
        raise Gone
    near = [
        button
        for button in seen.buttons
        if (button.form, button.dialog, button.disabled) == (field.form, field.dialog, False)
        and not signals.REGISTER.search(button.text)
        and not signals.NOT_LOGIN.search(button.text)
    ]
    buttons = [button for button in near if button.tag != "a"]
    named = [
        button for button in buttons if signals.LOGIN.search(button.text) or signals.NEXT.search(button.text)
    ]
    submits = [button for button in buttons if button.submits]
    target = best([button for button in named if button.submits]) or best(named) or best(submits)
    if target is not None:
        trip.tab.press(target)
    else:
        trip.tab.enter(field)


def _decided(before: Snapshot, now: Snapshot) -> bool:
    return not now.passwords or _says_no(before, now) or (now.path != before.path and _form(now) is None)


def _says_no(before: Snapshot, now: Snapshot) -> bool:
    fresh = set(now.text.splitlines()) - set(before.text.splitlines())
    lines = [*fresh, *_new_alerts(before, now)]
    return any(signals.REFUSED_LOGIN.search(line) for line in lines if len(line) < 300)


def _new_alerts(before: Snapshot, now: Snapshot) -> list[str]:
    return [line for line in now.alerts if line not in before.alerts]


def _refused(message: str) -> Failed:
    return Failed(
        Trouble.LOGIN_FAILED, f"{message} Check username and password; it is not tried a second time."
    )
