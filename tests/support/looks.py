"""How a page looks: accessibility rules and horizontal scrolling, at three widths, in light and dark."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Page

RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
# What depends on the width, and on the colours; all else is the same wherever the same elements are shown.
_OF_WIDTH = ["target-size", "scrollable-region-focusable"]
_OF_COLOURS = ["color-contrast"]
PHONE, TABLET, DESKTOP = 360, 768, 1280
_PICTURES = os.environ.get("PURSER_SCREENSHOTS")


def assert_good(page: Page, axe: str, name: str, *, hides_by_width: bool = False) -> None:
    """Check a state with axe and for horizontal scrolling: phone, tablet and desktop, light and dark.

    All rules are checked once, and on the desktop again where the style sheet `hides_by_width`; at each width those
    that depend on it, and those of the colours in light and in dark.
    """
    usual = page.viewport_size
    looks = [
        (PHONE, "light"),
        (TABLET, "light"),
        (DESKTOP, "dark"),
        *([(PHONE, "dark"), (DESKTOP, "light")] if _PICTURES else []),
    ]
    for number, (width, scheme) in enumerate(looks):
        page.set_viewport_size({"width": width, "height": 860})
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        rules = [*_OF_WIDTH, *(_OF_COLOURS if width != TABLET else [])]
        if number == 0:
            page.evaluate(axe)
        if number == 0 or (hides_by_width and width == DESKTOP):
            rules = RULES
        found = page.evaluate("rules => axe.run(document, {runOnly: rules, resultTypes: ['violations']})", rules)
        faults = [(v["id"], [node["html"] for node in v["nodes"]]) for v in found["violations"]]
        assert faults == [], (name, width, scheme, faults)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), (name, width)
        if _PICTURES:
            Path(_PICTURES).mkdir(parents=True, exist_ok=True)
            page.screenshot(path=f"{_PICTURES}/{name}-{width}-{scheme}.png", full_page=True)
    page.emulate_media(color_scheme="light")
    page.set_viewport_size(usual or {"width": DESKTOP, "height": 860})


@contextmanager
def navigation(page: Page) -> Iterator[None]:
    """Wait for the navigation that a click causes."""
    with page.expect_navigation(wait_until="load"):
        yield
