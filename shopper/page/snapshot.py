"""A page as plain data, from the injected script. Decisions are made on this, never on the live page."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

SCRIPT = (Path(__file__).parent / "snapshot.js").read_text()
DOCUMENT_SCRIPT = (Path(__file__).parent / "document.js").read_text()


@dataclass(frozen=True, slots=True)
class ListOption:
    """An option of a list."""

    value: str
    text: str
    disabled: bool
    selected: bool


@dataclass(frozen=True, slots=True)
class FormControl:
    """A field. The `value` of a password is never read, only whether there is one."""

    number: int
    type: str
    name: str
    id: str
    autocomplete: str
    placeholder: str
    label: str
    value: str
    filled: bool
    checked: bool
    required: bool
    disabled: bool
    problem: str
    form: int
    group: str
    card: str
    dialog: bool
    options: tuple[ListOption, ...]
    entry: int = -1
    """The entry of a list or a table that it belongs to; -1 for none."""


@dataclass(frozen=True, slots=True)
class PageButton:
    """A button or link.

    `card` is the surrounding text that belongs to no other button with its text, `trail` the elements that contain it.
    """

    number: int
    text: str
    tag: str
    href: str
    disabled: bool
    form: int
    submits: bool
    dialog: bool
    region: str
    area: int
    card: str
    around: str
    trail: str
    label: str = ""
    """The accessible name that the page sets, which may differ from the text."""
    action: str = ""
    """The path that the form is sent to."""
    code: str = ""
    """The identifiers in the markup, which programmers write in English in every language."""
    toggles: bool = False
    """Opens or selects something, by its ARIA state."""
    entry: int = -1
    """The entry of a list or a table that it belongs to, which has the text `entry_text`; -1 for none."""
    entry_text: str = ""
    in_list: bool = False
    """Belongs to one entry of a list or a table."""
    sends_elsewhere: bool = False
    """Whether the form is sent to another origin than the page's."""

    @property
    def path(self) -> str:
        """Return the path that a link leads to."""
        parts = urlsplit(self.href)
        return parts.path + (f"#{parts.fragment}" if parts.fragment else "")


@dataclass(frozen=True, slots=True)
class PagePrice:
    """An amount on a product page."""

    text: str
    after_heading: bool
    struck: bool
    size: int


@dataclass(frozen=True, slots=True)
class AmountRow:
    """An amount and the text of its row; rows of one table or list have the same `group`.

    `option` is `chosen` or `unchosen` for the price of an option, such as a delivery method, and otherwise empty.
    """

    amount: str
    text: str
    struck: bool
    group: int
    option: str = ""


@dataclass(frozen=True, slots=True)
class PageFrame:
    """A visible frame."""

    address: str
    title: str
    area: int


@dataclass(frozen=True, slots=True)
class PageSnapshot:
    """The parts of a page on which decisions are made."""

    url: str
    title: str
    heading: str
    language: str
    text: str
    alerts: tuple[str, ...]
    controls: tuple[FormControl, ...]
    buttons: tuple[PageButton, ...]
    prices: tuple[PagePrice, ...]
    frames: tuple[PageFrame, ...]
    json_ld: tuple[str, ...]
    declared: Mapping[str, str]
    currencies: tuple[str, ...]
    amounts: tuple[AmountRow, ...] = ()
    data: tuple[str, ...] = ()
    """The JSON of the shop's own scripts."""
    machine_values: tuple[str, ...] = ()
    """The values of amounts that their elements state for machines."""
    steps_after: int = -1
    """How many steps follow the current one in a list of steps; -1 without such a list."""

    @property
    def host(self) -> str:
        """Return the host of the page."""
        return (urlsplit(self.url).hostname or "").lower()

    @property
    def path(self) -> str:
        """Return the path of the page, without its query."""
        return urlsplit(self.url).path or "/"

    def is_left_by(self, button: PageButton) -> bool:
        """Return whether a button is a link to another page; one to "#" is operated by a script."""
        target = button.href.rstrip("#")
        return target.startswith("http") and target not in {self.url, self.url.partition("#")[0]}

    @property
    def passwords(self) -> list[FormControl]:
        """Return the password fields."""
        return [control for control in self.controls if control.type == "password"]

    def fingerprint(self) -> tuple[object, ...]:
        """Return what changes when a purchase advances; digits do not count, because some pages show clocks."""
        values = tuple((c.name or c.id, c.value, c.checked) for c in self.controls)
        return (self.path, urlsplit(self.url).fragment, re.sub(r"\d+", "", self.text), values)


def parse_snapshot(raw: Mapping[str, Any]) -> PageSnapshot:
    """Return a snapshot from the script's result."""
    return PageSnapshot(
        url=str(raw["url"]),
        title=str(raw["title"]),
        heading=str(raw["heading"]),
        language=str(raw["language"]),
        text=str(raw["text"]),
        alerts=tuple(raw["alerts"]),
        controls=tuple(_control(item) for item in raw["controls"]),
        buttons=tuple(PageButton(**item) for item in raw["buttons"]),
        prices=tuple(PagePrice(**item) for item in raw["prices"]),
        frames=tuple(PageFrame(**item) for item in raw["frames"]),
        json_ld=tuple(raw["json_ld"]),
        declared=dict(raw["declared"]),
        currencies=tuple(raw["currencies"]),
        amounts=tuple(AmountRow(**item) for item in raw["amounts"]),
        data=tuple(raw["data"]),
        machine_values=tuple(raw["machine_values"]),
        steps_after=int(raw["steps_after"]),
    )


def _control(item: Mapping[str, Any]) -> FormControl:
    options: Sequence[Mapping[str, Any]] = item["options"]
    return FormControl(**{**item, "options": tuple(ListOption(**option) for option in options)})
