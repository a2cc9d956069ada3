"""What a shop adds unasked: subscriptions chosen beforehand, insurances and gifts ticked beforehand. None is bought."""

from __future__ import annotations

from app.adapters.shopper_browser import money, signals
from app.adapters.shopper_browser.snapshot import Control, Snapshot
from app.adapters.shopper_browser.trip import Trip
from app.ports.shopper import Failed, Trouble

_LONGEST_LINE = 200


def choose_once(trip: Trip, seen: Snapshot) -> Snapshot:
    """Choose to buy once where a subscription is offered, unless the caller has asked for one."""
    if _is_asked_for(trip):
        return seen
    for control in seen.controls:
        if control.type == "radio" and signals.ONCE.search(control.label) and not control.checked:
            trip.tab.tick(control)
            trip.note("choose", control.label, seen.path)
            return trip.tab.look()
        if control.type == "select":
            once = next((option for option in control.options if signals.ONCE.search(option.text)), None)
            if once is not None and not once.selected:
                trip.tab.select(control, once.value)
                trip.note("choose", once.text, seen.path)
                return trip.tab.look()
    return seen


def to_refuse(seen: Snapshot) -> list[Control]:
    """Return the boxes that are ticked for something which nobody has asked for."""
    return [
        control
        for control in seen.controls
        if control.type == "checkbox"
        and control.checked
        and not control.disabled
        and signals.EXTRA.search(f"{control.label} {control.name}")
        and not (control.required or signals.TERMS.search(control.label))
    ]


def assert_none(trip: Trip, seen: Snapshot) -> None:
    """See that nothing comes again by itself and nothing was added. Raises: Failed(cart_mismatch)."""
    if _is_asked_for(trip):
        return
    if any(money.amounts(control.label) for control in to_refuse(seen)):
        raise Failed(Trouble.CART_MISMATCH, "The shop adds something to the order that cannot be taken off.")
    for line in seen.text.splitlines():
        if (
            len(line) <= _LONGEST_LINE
            and signals.COMES_AGAIN.search(line)
            and not signals.NOT_AGAIN.search(line)
        ):
            raise Failed(
                Trouble.CART_MISMATCH,
                f"The order would come again by itself; the shop says: {line.strip()}",
            )


def _is_asked_for(trip: Trip) -> bool:
    return any(
        signals.COMES_AGAIN.search(value) or "subscri" in value.lower()
        for value in trip.errand.options.values()
    )
