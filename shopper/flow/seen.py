"""Descriptions of pages on which purchases end, for a person who finishes them by hand."""

from collections.abc import Iterable

from shopper.page import autofill
from shopper.page.snapshot import PageSnapshot

_MAX_SEEN = 8
_MAX_LENGTH = 40
_MAX_ERROR_LENGTH = 120
# The browser's own words for a field that has not been filled yet.
_EMPTY = ("Please fill", "Please select", "Please check", "Please tick")


def describe(snapshot: PageSnapshot) -> tuple[str, tuple[str, ...]]:
    """Return the page, its errors, its buttons and its empty fields; and the parts that are the page's own words."""
    problems = [
        f"{control.label or control.name}: {control.problem}"
        for control in snapshot.controls
        if control.problem and not control.problem.startswith(_EMPTY)
    ]
    buttons = [
        button.text for button in snapshot.buttons if not button.disabled and button.region not in {"nav", "footer"}
    ]
    fields = [
        control.label or control.name
        for control in snapshot.controls
        if control.type in autofill.TYPEABLE and not control.filled and not control.disabled
    ]
    title, path = (snapshot.heading or snapshot.title)[:_MAX_LENGTH], snapshot.path[:_MAX_LENGTH]
    errors = _listed([*snapshot.alerts, *problems], _MAX_ERROR_LENGTH)
    listed, empty = _listed(buttons, _MAX_LENGTH), _listed(fields, _MAX_LENGTH)
    text = f'Page "{title}" ({path}). Errors shown: {errors}. Buttons seen: {listed}. Empty fields: {empty}.'
    return text, (title, path, errors, listed, empty)


def _listed(texts: Iterable[str], length: int) -> str:
    found = dict.fromkeys(" ".join(text.split())[:length] for text in texts)
    return "; ".join([text for text in found if text][:_MAX_SEEN]) or "none"
