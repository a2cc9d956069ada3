"""A page as plain data: what the injected script saw. Decisions are made on this, never on the live page."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

SCRIPT = (Path(__file__).parent / "snapshot.js").read_text()


@dataclass(frozen=True, slots=True)
class Option:
    """An entry of a list."""

    value: str
    text: str
    disabled: bool
    selected: bool


@dataclass(frozen=True, slots=True)
class Control:
    """A field. `value` of a password is never read, only whether there is one."""

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
    options: tuple[Option, ...]


@dataclass(frozen=True, slots=True)
class Button:
    """Something to press.

    `card` is the text around it that belongs to it and to no other button of its words, `trail` the elements it is in.
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

    @property
    def path(self) -> str:
        """Return the path that a link leads to."""
        parts = urlsplit(self.href)
        return parts.path + (f"#{parts.fragment}" if parts.fragment else "")


@dataclass(frozen=True, slots=True)
class Price:
    """An amount as it stands on a product's page."""

    text: str
    after_heading: bool
    struck: bool
    size: int


@dataclass(frozen=True, slots=True)
class Frame:
    """A visible frame."""

    address: str
    title: str
    area: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All of a page that is looked at."""

    url: str
    title: str
    heading: str
    language: str
    text: str
    alerts: tuple[str, ...]
    controls: tuple[Control, ...]
    buttons: tuple[Button, ...]
    prices: tuple[Price, ...]
    frames: tuple[Frame, ...]
    json_ld: tuple[str, ...]
    declared: Mapping[str, str]
    currencies: tuple[str, ...]

    @property
    def host(self) -> str:
        """Return the host of the page."""
        return (urlsplit(self.url).hostname or "").lower()

    @property
    def path(self) -> str:
        """Return the path of the page, without its query."""
        return urlsplit(self.url).path or "/"

    @property
    def passwords(self) -> list[Control]:
        """Return the password fields."""
        return [control for control in self.controls if control.type == "password"]

    def fingerprint(self) -> tuple[object, ...]:
        """Return what changes when a purchase gets on; digits do not count, for clocks run on some pages."""
        values = tuple((c.name or c.id, c.value, c.checked) for c in self.controls)
        return (self.path, urlsplit(self.url).fragment, re.sub(r"\d+", "", self.text), values)


def read(raw: Mapping[str, Any]) -> Snapshot:
    """Make a snapshot from what the script returned."""
    return Snapshot(
        url=str(raw["url"]),
        title=str(raw["title"]),
        heading=str(raw["heading"]),
        language=str(raw["language"]),
        text=str(raw["text"]),
        alerts=tuple(raw["alerts"]),
        controls=tuple(_control(item) for item in raw["controls"]),
        buttons=tuple(Button(**item) for item in raw["buttons"]),
        prices=tuple(Price(**item) for item in raw["prices"]),
        frames=tuple(Frame(**item) for item in raw["frames"]),
        json_ld=tuple(raw["json_ld"]),
        declared=dict(raw["declared"]),
        currencies=tuple(raw["currencies"]),
    )


def _control(item: Mapping[str, Any]) -> Control:
    options: Sequence[Mapping[str, Any]] = item["options"]
    return Control(**{**item, "options": tuple(Option(**option) for option in options)})
