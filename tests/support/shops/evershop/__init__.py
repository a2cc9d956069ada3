"""EverShop, an npm package: pages that React draws, a checkout on one page, PostgreSQL; as it is published."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg

from tests.support.published import environment, make_node
from tests.support.servers import postgres_server
from tests.support.shops.started import started_shop

_SOURCES = Path(__file__).parent
_ORDERS = """
    select o.grand_total, a.postcode, i.product_sku, i.qty from "order" o
    join order_address a on a.order_address_id = o.shipping_address_id
    join order_item i on i.order_item_order_id = o.order_id
    where o.customer_email = %s order by o.order_id, i.order_item_id
"""


@dataclass(frozen=True, slots=True)
class EverShop:
    """A running shop: the URLs of its products by article number."""

    database: str
    urls: dict[str, str]

    def orders_of(self, email: str) -> list[tuple[str, str, str, int]]:
        """Return total, postal code, article number and quantity of each line that a customer ordered."""
        with psycopg.connect(self.database) as connection:
            rows = connection.execute(_ORDERS, (email,)).fetchall()
        return [(f"{total:.2f}", code, article, quantity) for total, code, article, quantity in rows]

    def terms_of(self, email: str) -> list[tuple[str | None, str, str]]:
        """Return coupon code, discount and delivery method of each order of a customer."""
        query = """
            select o.coupon, o.discount_amount, m.name from "order" o
            left join core_shipping_method m on m.uuid::text = o.shipping_method_data ->> 'method_code'
            where o.customer_email = %s order by o.order_id
        """
        with psycopg.connect(self.database) as connection:
            rows = connection.execute(query, (email,)).fetchall()
        return [(code, f"{discount:.2f}", method) for code, discount, method in rows]


@contextmanager
def ever_shop() -> Iterator[EverShop]:
    """Run the shop until the block ends. Its packages are installed, and its pages built, once per lock file."""
    packages = make_node(_SOURCES, "build.mjs")
    with postgres_server() as server:
        database = server.create_database("evershop").replace("+psycopg", "")
        program = ("node", _SOURCES / "serve.mjs", packages, database)
        with started_shop(program, environment=environment()) as (_, urls):
            yield EverShop(database, urls)
