"""Shop systems from the Python index as they are published, each in an environment of its own: their orders."""

from __future__ import annotations

import json
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import requests

from tests.support.published import make_data, make_python
from tests.support.shops.started import HERE, started_shop

_PLONE = HERE / "plone_server.py"
_ORDERS = {
    "pretix": "select total, email from pretixbase_order order by id",
    "cartridge": "select total, shipping_detail_postcode from shop_order order by id",
}
_COUPONS = {
    "pretix": "select v.code from pretixbase_orderposition p left join pretixbase_voucher v on v.id = p.voucher_id "
    "order by p.id",
    "cartridge": "select nullif(discount_code, '') from shop_order order by id",
}


@dataclass(frozen=True, slots=True)
class CorpusShop:
    """A running shop: the URLs of its products by name."""

    name: str
    folder: Path
    urls: dict[str, str]

    def orders(self) -> list[tuple[str, str]]:
        """Return the total of each order in the shop's database, with the address that it is sent to."""
        return [(f"{float(total):.2f}", str(address)) for total, address in self._read(_ORDERS[self.name])]

    def coupons(self) -> list[str | None]:
        """Return the coupon code of each order."""
        return [code for (code,) in self._read(_COUPONS[self.name])]

    def _read(self, query: str) -> list[Any]:
        with closing(sqlite3.connect(self.folder / "shop.sqlite", timeout=20)) as database:
            return database.execute(query).fetchall()


@dataclass(frozen=True, slots=True)
class PloneShop:
    """A running shop of Plone: the URLs of its products by name."""

    python: Path
    folder: Path
    urls: dict[str, str]

    def orders(self) -> list[tuple[str, str, str]]:
        """Return total, postal code and recipient of each order in the shop's database."""
        return [(total, code, name) for total, code, name, _ in self._read()]

    def delivery_methods(self) -> list[str]:
        """Return the delivery method of each order."""
        return [method for *_, method in self._read()]

    def _read(self) -> list[list[str]]:
        command = [self.python, "-W", "ignore", _PLONE, self.folder]
        ran = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
        orders: list[list[str]] = json.loads(ran.stdout)
        return orders


def _read_first_page(urls: dict[str, str]) -> None:
    """Let the shop load what it loads for its first page, for which a purchase does not wait."""
    requests.get(next(iter(urls.values())), timeout=120).raise_for_status()


@contextmanager
def plone_shop(language: str) -> Iterator[PloneShop]:
    """Run Plone's shop in a language until the block ends. Its site is created once per lock file and language."""
    requirements = HERE / "plone.txt"
    site = make_data(_PLONE, "--make", language, requirements=requirements)
    python = make_python(requirements)
    with started_shop((python, "-W", "ignore", _PLONE), "--site", str(site)) as (folder, urls):
        _read_first_page(urls)
        yield PloneShop(python, folder, urls)


@contextmanager
def corpus_shop(name: str, *options: str) -> Iterator[CorpusShop]:
    """Run `<name>_server.py` with the requirements of `<name>.txt` until the block ends."""
    python = make_python(HERE / f"{name}.txt")
    with started_shop((python, "-W", "ignore", HERE / f"{name}_server.py"), *options) as (folder, urls):
        _read_first_page(urls)
        yield CorpusShop(name, folder, urls)
