"""The serialiser of schemas returns what marshmallow's own returns, which it replaces for speed."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import marshmallow as ma
import pytest
from marshmallow import fields

from app.web.fields import Instant, Usd
from app.web.schemas import Schema


def _declared() -> dict[str, Any]:
    inner = Schema.from_dict({"text": fields.String(), "count": fields.Integer(data_key="n")})
    return {
        "plain": fields.String(),
        "renamed": fields.Integer(data_key="shownAs"),
        "cost_usd": Usd(attribute="cost_nanos"),
        "at": Instant(),
        "deep": fields.String(attribute="outer.inner.value"),
        "with_default": fields.String(dump_default="x"),
        "computed": fields.Function(lambda obj: str(type(obj).__name__)),
        "by_method": fields.Method("double"),
        "constant": fields.Constant(7),
        "hidden": fields.String(load_only=True),
        "nested": fields.Nested(inner),
        "partly": fields.Nested(inner(only=("text",))),
        "many": fields.List(fields.Nested(inner)),
        "by_name": fields.Dict(keys=fields.String(), values=fields.Nested(inner)),
        "double": lambda _self, _obj: "twice",
    }


class _Upper(Schema):
    """Finds values in its own way."""

    plain = fields.String()

    def get_attribute(self, obj: Any, attr: str, default: Any) -> Any:
        """Return a value in capitals."""
        return str(super().get_attribute(obj, attr, default)).upper()


INNER = {"text": "é", "count": 3, "more": 1}
VALUES = {
    "plain": "a", "renamed": 5, "cost_nanos": 1_500_000_000, "at": datetime(2026, 1, 2, tzinfo=UTC),
    "outer": {"inner": {"value": "v"}}, "hidden": "secret", "nested": INNER, "partly": INNER, "many": [INNER, {}],
    "by_name": {"a": INNER},
}  # fmt: skip


@pytest.mark.parametrize(
    "shown",
    [
        VALUES,
        SimpleNamespace(**{**VALUES, "outer": SimpleNamespace(inner=SimpleNamespace(value="v"))}),
        dict.fromkeys(VALUES),
        {},
        SimpleNamespace(),
        {"outer": {"inner": None}, "items": 1},
        {"outer": None, "many": []},
    ],
)
def test_the_bytes_are_marshmallows(shown: Any) -> None:
    ours = type("Ours", (Schema,), _declared())()
    theirs = type("Theirs", (ma.Schema,), _declared())()
    assert json.dumps(ours.dump(shown)) == json.dumps(theirs.dump(shown))
    assert json.dumps(ours.dump([shown, shown], many=True)) == json.dumps(theirs.dump([shown, shown], many=True))


def test_a_schema_that_finds_values_in_its_own_way_is_asked() -> None:
    assert _Upper().dump({"plain": "abc"}) == {"plain": "ABC"}
