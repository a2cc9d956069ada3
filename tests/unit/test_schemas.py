"""What schemas show of objects and dictionaries."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from marshmallow import fields

from app.web.schemas import Schema


class _Members(Schema):
    keys = fields.List(fields.String())
    deep = fields.String(attribute="outer.value")


@pytest.mark.parametrize("outer", [{"value": "v"}, SimpleNamespace(value="v")])
def test_a_member_that_a_dictionary_lacks_is_not_taken_from_its_methods(outer: Any) -> None:
    assert _Members().dump({"outer": outer}) == {"deep": "v"}
