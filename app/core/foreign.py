"""JSON of other services, read by pydantic models: strictly, only what is used of it, and without its values in errors.

Integers are never booleans, fractions or texts unless a type says so, and each has a range. A list ends at its first
bad entry, so that no answer makes millions of errors.
"""

from collections.abc import Callable
from functools import cache
from threading import Lock
from typing import Annotated, Any, Self, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, FailFast, Field, Strict, TypeAdapter, ValidationError
from pydantic.alias_generators import to_camel

T = TypeVar("T")

_MAX_DIGITS = 78
_building = Lock()


class MalformedResponseError(ValueError):
    """The response does not have the expected shape; the message names that shape, never the response."""


class ForeignModel(BaseModel):
    """Members of an object of another service, named in camel case there; further members are ignored."""

    model_config = ConfigDict(
        strict=True,
        frozen=True,
        extra="ignore",
        alias_generator=to_camel,
        validate_by_name=True,
        arbitrary_types_allowed=True,
        hide_input_in_errors=True,
        defer_build=True,  # processes that never use a model start faster
    )

    @classmethod
    def read(cls, value: object) -> Self:
        """Return the model of a JSON value. Raises: MalformedResponseError."""
        if not cls.__pydantic_complete__:
            with _building:
                cls.model_rebuild()
        return _validated(cls.model_validate, value)


def parsed(parse: Callable[[Any], object]) -> BeforeValidator:
    """Return a validator of what a library can parse, whatever it raises for anything else."""

    def validate(value: object) -> object:
        try:
            return parse(value)
        except Exception:
            raise ValueError("it cannot be parsed") from None

    return BeforeValidator(validate)


def _from_digits(value: object) -> object:
    is_number = isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= _MAX_DIGITS
    return int(str(value)) if is_number else value


Items = Annotated[tuple[T, ...], Strict(strict=False), FailFast()]
OptionalItems = Annotated[Items[T], BeforeValidator(lambda value: () if value is None else value)]
"""A list, or null for an empty one; give it a default if it may be missing."""
Text = Annotated[str, Strict()]
OptionalText = Annotated[str | None, Strict(), BeforeValidator(lambda value: value or None)]
HexBytes = Annotated[bytes, parsed(lambda text: bytes.fromhex(text.removeprefix("0x")))]
U64 = Annotated[int, Field(strict=True, ge=0, lt=2**64)]
U64Digits = Annotated[U64, BeforeValidator(_from_digits)]
U256Digits = Annotated[int, Field(strict=True, ge=0, lt=2**256), BeforeValidator(_from_digits)]


def claimed_text(raw: bytes) -> str | None:
    """Return what others named something, in at most 64 printable characters, or None."""
    return "".join(filter(str.isprintable, raw[:1024].decode(errors="ignore"))).strip()[:64] or None


def reader(kind: Any) -> Callable[[object], Any]:
    """Return the same as `ForeignModel.read` for any other type."""
    adapter = cache(lambda: TypeAdapter(kind))
    return lambda value: _validated(adapter().validate_python, value)


def _validated(validate: Callable[[object], T], value: object) -> T:
    try:
        return validate(value)
    except ValidationError as error:
        shape = _shape(error)
    # Here, because an exception that is raised while another is handled refers to it.
    raise MalformedResponseError(shape)


def _shape(error: ValidationError) -> str:
    """Return kind and place of the first mistake: names of members, never what another service made a name."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    place = ".".join(str(part) for part in first["loc"] if isinstance(part, int) or part.isidentifier())
    return f"there is no {place}" if first["type"] == "missing" else f"{first['type']} at {place or 'the top'}"
