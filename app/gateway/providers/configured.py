"""Parsing of the provider table: `providers.toml`, with additions and overrides from GATEWAY_PROVIDERS_FILE.

Both are TOML, with a table for each row: `[providers.<slug>]`. All errors are reported, one per line.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Self

import pydantic
from pydantic import AfterValidator, Field

from app.config import Settings
from app.core.chains import ChainName
from app.core.money import nanos_from_usd
from app.gateway.providers.table import MAX_MODELS, STRICT, ModelName, Name, Provider, ProviderTable

_BUILT_IN = Path(__file__).with_name("providers.toml")
_MERGED_FIELDS = ("routes", "methods", "networks", "endpoints", "limits")
_REFUSED = "refused_fields"
_PLAIN = re.compile(r"[\w-]+")
_PROBLEMS = {
    "extra_forbidden": "is unknown", "unexpected_keyword_argument": "is unknown", "missing": "is missing",
    "model_type": "must be a table", "dict_type": "must be a table", "dataclass_type": "must be a table",
}  # fmt: skip


def _check_names(rows: dict[str, Provider]) -> dict[str, Provider]:
    owners: dict[str, str] = {}
    for slug, row in rows.items():
        for name in (slug, *row.aliases):
            if owners.setdefault(name, slug) != slug:
                raise ValueError(f"the name {name} of {slug} is taken by {owners[name]}")
    return rows


class ProvidersFile(pydantic.BaseModel):
    model_config = STRICT

    providers: Annotated[dict[Name, Provider], AfterValidator(_check_names)]
    models: dict[ModelName, Annotated[tuple[ModelName, ...], Field(min_length=1, max_length=MAX_MODELS)]] = {}

    @pydantic.model_validator(mode="after")
    def _check_models(self) -> Self:
        known = {name for slug, row in self.providers.items() for name in (slug, *row.aliases)}
        named = [each.partition("/") for targets in self.models.values() for each in targets]
        if not all(slash and slug in known for slug, slash, _ in named):
            raise ValueError("models must be lists of provider/name, such as openai/gpt-5")
        return self


def load_table(settings: Settings) -> ProviderTable:
    """Parse the table. Raises: SystemExit with one line for each error in the file."""
    document: dict[str, Any] = {"providers": _built_in(settings)}
    if settings.gateway_providers_file:
        document = _merge(document["providers"], _read_file(Path(settings.gateway_providers_file)))
    try:
        parsed = ProvidersFile.model_validate(document)
    except pydantic.ValidationError as error:
        raise SystemExit("\n".join(["GATEWAY_PROVIDERS_FILE is invalid:", *_lines(error)])) from None
    floor_nanos = nanos_from_usd(settings.x402_price_usd)
    table = {slug: row.listed_as(slug, floor_nanos) for slug, row in parsed.providers.items()}
    row = table["alchemy"]
    table["alchemy"] = row.model_copy(update={"endpoints": {**_sandbox_chains(settings), **row.endpoints}})
    return ProviderTable(table, parsed.models)


def _lines(error: pydantic.ValidationError) -> Iterator[str]:
    """Yield a line with its place for each mistake, without the value, which may be a key."""
    for each in error.errors(include_url=False, include_input=False):
        parts = [str(part) for part in each["loc"] if part != "[key]"]
        problem = _PROBLEMS.get(each["type"]) or each["msg"].removeprefix("Value error, ")
        if each["type"] == "extra_forbidden" and parts[2:] == parts[-1:]:
            problem += f"; known are {', '.join(Provider.model_fields)}"
        yield f"{'.'.join(part if _PLAIN.fullmatch(part) else repr(part) for part in parts)}: {problem}"


def _built_in(settings: Settings) -> dict[str, Any]:
    """Return the tables of `providers.toml` with the operator's URLs and keys."""
    found: dict[str, Any] = tomllib.loads(_BUILT_IN.read_text("utf-8"))["providers"]
    for row in found.values():
        base_url, api_key = row.pop("settings")
        row["base_url"] = getattr(settings.upstreams, base_url)
        row["api_key"] = getattr(settings.upstreams, api_key).get_secret_value()
    if "pro-api" in settings.upstreams.coingecko_base_url:
        found["coingecko"]["credential"]["header"] = "x-cg-pro-api-key"
    return found


def _sandbox_chains(settings: Settings) -> Mapping[str, str]:
    """Return the RPC URLs of the sandbox's chains, which replace Alchemy if no key is set."""
    if not settings.is_sandbox or settings.upstreams.alchemy_api_key.get_secret_value():
        return {}
    urls = {name.value: settings.rpc_urls(name) for name in ChainName}
    return {name: urls[name][0] for name in urls if urls[name]}


def _merge(built_in: dict[str, Any], read: dict[str, Any]) -> dict[str, Any]:
    rows = read.get("providers", {})
    if not isinstance(rows, dict):
        return read
    merged = {
        slug: _merge_row(built_in[slug], row) if slug in built_in and isinstance(row, dict) else row
        for slug, row in rows.items()
    }
    return {**read, "providers": {**built_in, **merged}}


def _merge_row(present: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row with fields replaced.

    New routes and methods precede the present ones, and false removes one; refused fields are added.
    """
    merged = {**present, **given}
    for name in _MERGED_FIELDS:
        if isinstance(present.get(name), dict) and isinstance(given.get(name), dict):
            both = given[name] | {key: old for key, old in present[name].items() if key not in given[name]}
            merged[name] = {key: value for key, value in both.items() if value is not False}
    if isinstance(present.get(_REFUSED), list) and isinstance(given.get(_REFUSED), list):
        merged[_REFUSED] = [*present[_REFUSED], *given[_REFUSED]]
    return merged


def _read_file(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        problem = error.strerror
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError):
        problem = "is not valid TOML"
    raise SystemExit(f"GATEWAY_PROVIDERS_FILE is invalid:\n{path}: {problem}")
