"""The choice of a button by ranked evidence: the structure of the page first, words for what it leaves open.

Words of a language decide alone only where structure is silent. As vetoes they come before both: a name of an order,
a removal or an extra excludes a button, because a click cannot be undone and structure does not show what it costs.
"""

import re
from collections.abc import Callable, Sequence

from shopper.flow.session import preferred_button
from shopper.page.snapshot import PageButton

Rule = Callable[[PageButton], bool]


def by_structure(
    buttons: Sequence[PageButton],
    *,
    structure: Sequence[Rule],
    words: Sequence[re.Pattern[str]],
    never: Sequence[re.Pattern[str]] = (),
) -> PageButton | None:
    """Return the button that the strongest rule singles out, alone or with the help of `words`; None if none does."""
    usable = [button for button in buttons if not button.disabled and not is_named(button, *never)]
    for rule in structure:
        found = [button for button in usable if rule(button)]
        chosen = found[0] if len(found) == 1 else _named(found, words)
        if chosen is not None:
            return chosen
    return None


def best(
    buttons: Sequence[PageButton],
    *,
    structure: Sequence[Rule],
    words: Sequence[re.Pattern[str]],
    never: Sequence[re.Pattern[str]] = (),
) -> PageButton | None:
    """Return the button with the strongest evidence, by structure or else by words; None if nothing tells."""
    found = by_structure(buttons, structure=structure, words=words, never=never)
    return found or _named([button for button in buttons if not is_named(button, *never)], words)


def is_named(button: PageButton, *words: re.Pattern[str]) -> bool:
    """Return whether the text or the accessible name of a button has one of the words."""
    return any(pattern.search(name) for pattern in words for name in (button.text, button.label))


def _named(buttons: Sequence[PageButton], words: Sequence[re.Pattern[str]]) -> PageButton | None:
    for pattern in words:
        found = preferred_button([button for button in buttons if pattern.search(button.text)])
        if found is not None:
            return found
    return None
