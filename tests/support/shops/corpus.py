"""Shop systems from the Python index as they are published, each in an environment of its own: their orders."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.published import make_python
from tests.support.shops.started import HERE, started_shop

_ORDERS = {
    "pretix": "select total, email from pretixbase_order order by id",
    "cartridge": "select total, shipping_detail_postcode from shop_order order by id",
}


@dataclass(frozen=True, slots=True)
class CorpusShop:
    """A running shop: the URLs of its products by name."""

    name: str
    folder: Path
    urls: dict[str, str]

    def orders(self) -> list[tuple[str, str]]:
        """Return the total of each order in the shop's database, with the address that it is sent to."""
        with closing(sqlite3.connect(self.folder / "shop.sqlite", timeout=20)) as database:
            rows = database.execute(_ORDERS[self.name]).fetchall()
        return [(f"{float(total):.2f}", str(address)) for total, address in rows]


@contextmanager
def corpus_shop(name: str, *options: str) -> Iterator[CorpusShop]:
    """Run `<name>_server.py` with the requirements of `<name>.txt` until the block ends."""
    python = make_python(HERE / f"{name}.txt")
    with started_shop((python, "-W", "ignore", HERE / f"{name}_server.py"), *options) as (folder, urls):
        yield CorpusShop(name, folder, urls)
