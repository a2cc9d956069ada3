"""Countries and their subdivisions, with the spellings that shops use. No I/O."""

import functools
import gettext
import re

import pycountry

_COUNTRY_ALIASES = {
    "US": ("usa", "united states of america", "u.s.a.", "america"),
    "GB": ("uk", "great britain", "england", "u.k."),
    "KR": ("south korea",),
    "RU": ("russia",),
    "CZ": ("czech republic", "czechia"),
    "NL": ("netherlands", "holland"),
    "TR": ("turkey",),
}


@functools.cache
def country_names(text: str) -> tuple[str, ...]:
    """Return all spellings of a country, lower-case, the ISO code first; () for one that does not exist."""
    wanted = text.strip().lower()
    code = next((code for code, names in _COUNTRY_ALIASES.items() if wanted in names), None)
    found = None
    for known in pycountry.countries:
        if code == known.alpha_2 or wanted in {known.alpha_2.lower(), known.alpha_3.lower(), *_names_of(known)}:
            found = known
            break
    if found is None:
        return ()
    names = [found.alpha_2.lower(), found.alpha_3.lower(), *_names_of(found), *_COUNTRY_ALIASES.get(found.alpha_2, ())]
    return tuple(dict.fromkeys(names))


@functools.cache
def state_names(text: str, country: str | None) -> tuple[str, ...]:
    """Return the spellings of a state or province: the one sent, its code and its name."""
    given = text.strip().lower()
    code = (country_names(country) or ("",))[0].upper() if country else ""
    for known in pycountry.subdivisions.get(country_code=code) or ():  # type: ignore[no-untyped-call]
        short = known.code.partition("-")[2].lower()
        if given in {short, known.name.lower()}:
            return (given, short, known.name.lower(), known.code.lower())
    return (given,)


def matches(option: str, names: tuple[str, ...]) -> bool:
    """Return whether a list option is one of these names, ignoring brackets and dashes around it."""
    plain = re.sub(r"\s*[(\[].*?[)\]]\s*", " ", option).strip().lower()
    return option.strip().lower() in names or plain in names


def _names_of(country: object) -> tuple[str, ...]:
    names = [getattr(country, name, None) for name in ("name", "official_name", "common_name")]
    known = [str(name) for name in names if name]
    translated = [language.gettext(name) for language in _languages() for name in known]
    return tuple(name.lower() for name in (*known, *translated))


@functools.cache
def _languages() -> tuple[gettext.NullTranslations, ...]:
    """Return the names of countries in the other languages of `keywords`. Those of all languages are ambiguous."""
    return tuple(gettext.translation("iso3166-1", pycountry.LOCALES_DIR, [language]) for language in ("de", "fr"))
