"""Options of commands, made of the arguments of the client's methods: the API's field names with dashes."""

from __future__ import annotations

import inspect
import json
import re
import types
import typing
from collections.abc import Callable, Iterable
from typing import Any

import click

from purser.types import Omit

_ENTRY = re.compile(r"^(?P<name>\w+): (?P<text>.+)")


if typing.TYPE_CHECKING:
    AnyType = click.ParamType[Any]
else:
    # Versions of click differ in whether it is generic.
    AnyType = click.ParamType


class JsonValue(AnyType):
    """A value written as JSON."""

    name = "json"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return json.loads(value) if isinstance(value, str) else value
        except ValueError:
            self.fail("is not JSON.", param, ctx)


class Pair(AnyType):
    """A name and a value."""

    name = "name=value"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        name, separator, text = str(value).partition("=")
        if not separator:
            self.fail("must be NAME=VALUE.", param, ctx)
        return name, text


def parameters_of(
    method: Callable[..., Any], *, arguments: Iterable[str] = (), hidden: Iterable[str] = ()
) -> list[click.Parameter]:
    """Return the parameters of a command that calls a method; `arguments` are given by position."""
    hints, texts = typing.get_type_hints(method), _texts(inspect.getdoc(method) or "")
    found: list[click.Parameter] = []
    for name, parameter in inspect.signature(method).parameters.items():
        if name == "self" or name in hidden:
            continue
        is_required = parameter.default is inspect.Parameter.empty
        if name in arguments:
            found.append(click.Argument([name], required=is_required))
            continue
        dashed, options = name.replace("_", "-"), _options_of(hints[name])
        switch = f"--{dashed}" if "default" not in options else f"--{dashed}/--no-{dashed}"
        found.append(click.Option([switch, name], required=is_required, help=texts.get(name), **options))
    return found


def arguments_of(values: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments for a method from the values of its parameters: those that were given."""
    given = {name: value for name, value in values.items() if value is not None and value != ()}
    return {name: _unpacked(value) for name, value in given.items()}


def _unpacked(value: Any) -> Any:
    if not isinstance(value, tuple):
        return value
    is_map = all(isinstance(each, tuple) for each in value)
    return dict(value) if is_map else list(value)


def _options_of(hint: Any) -> dict[str, Any]:
    kinds = [each for each in _parts(hint) if each not in {Omit, type(None)}]
    literals = [value for each in kinds if typing.get_origin(each) is typing.Literal for value in typing.get_args(each)]
    if literals:
        return {"type": click.Choice([str(each) for each in literals])}
    kind = kinds[0] if len(kinds) == 1 else None
    if kind is bool:
        return {"default": None}
    inner = typing.get_args(kind)
    if typing.get_origin(kind) is list and (inner[0] is str or typing.get_origin(inner[0]) is typing.Literal):
        return {"type": str, "multiple": True}
    if typing.get_origin(kind) is dict and inner[1] is str:
        return {"type": Pair(), "multiple": True}
    return {"type": kind if kind in {str, int, float} else JsonValue()}


def _parts(hint: Any) -> tuple[Any, ...]:
    return typing.get_args(hint) if typing.get_origin(hint) in {typing.Union, types.UnionType} else (hint,)


def _texts(docstring: str) -> dict[str, str]:
    """Return the texts of the arguments in a docstring."""
    found: dict[str, str] = {}
    name = ""
    for line in docstring.splitlines():
        entry = _ENTRY.match(line)
        if entry:
            name = entry["name"]
            found[name] = entry["text"]
        elif name and line.startswith("    "):
            found[name] += f" {line.strip()}"
        else:
            name = ""
    return found
