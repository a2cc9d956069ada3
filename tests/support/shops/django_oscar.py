"""A running django-oscar shop: its product URLs, and the orders in its database."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.shops.started import HERE, started_shop


@dataclass(frozen=True, slots=True)
class Ordered:
    """An order in the shop's database."""

    number: str
    total: str
    customer: str
    title: str
    quantity: int
    postal_code: str
    line1: str


@dataclass(frozen=True, slots=True)
class Oscar:
    """The running shop; each customer (`stored3@example.com`) belongs to one test."""

    folder: Path
    base: str
    password: str
    mug: str
    table: str
    lamp: str

    def orders_of(self, customer: str) -> list[Ordered]:
        """Return the orders of a customer; a guest is identified by the e-mail address."""
        query = """
            select o.number, o.total_incl_tax, coalesce(u.email, o.guest_email), l.title, l.quantity,
                   a.postcode, a.line1
            from order_order o join order_line l on l.order_id = o.id
            left join auth_user u on u.id = o.user_id left join order_shippingaddress a on a.id = o.shipping_address_id
            where coalesce(u.email, o.guest_email) = ? order by o.id, l.id
        """
        with closing(sqlite3.connect(self.folder / "shop.sqlite", timeout=20)) as database:
            rows = database.execute(query, (customer,)).fetchall()
        return [Ordered(str(row[0]), f"{row[1]:.2f}", *row[2:]) for row in rows]

    def in_basket_of(self, customer: str) -> int:
        """Return how many units a customer has left in the basket."""
        query = """
            select coalesce(sum(l.quantity), 0) from basket_line l join basket_basket b on b.id = l.basket_id
            join auth_user u on u.id = b.owner_id where u.email = ? and b.status = 'Open'
        """
        with closing(sqlite3.connect(self.folder / "shop.sqlite", timeout=20)) as database:
            return int(database.execute(query, (customer,)).fetchone()[0])

    def coupons_of(self, customer: str) -> list[tuple[str, str]]:
        """Return coupon code and discount of each order of a customer that has one."""
        query = """
            select d.voucher_code, d.amount from order_orderdiscount d join order_order o on o.id = d.order_id
            left join auth_user u on u.id = o.user_id where coalesce(u.email, o.guest_email) = ? order by o.id
        """
        with closing(sqlite3.connect(self.folder / "shop.sqlite", timeout=20)) as database:
            return [(code, f"{amount:.2f}") for code, amount in database.execute(query, (customer,))]

    @contextmanager
    def holding_orders(self) -> Iterator[Path]:
        """Delay the responses to orders; yields the file that appears once an order was placed."""
        (self.folder / "hold").touch()
        (self.folder / "ordered").unlink(missing_ok=True)
        try:
            yield self.folder / "ordered"
        finally:
            (self.folder / "hold").unlink()


@contextmanager
def oscar_shop(*options: str) -> Iterator[Oscar]:
    """Run the shop until the block ends."""
    program = (sys.executable, "-W", "ignore", HERE / "oscar_server.py")
    with started_shop(program, *options) as (folder, stocked):
        yield Oscar(folder, **stocked)
