"""Runs bda.plone.shop, the shop of the Plone CMS, on loopback: prices with taxes, pickup, a review, orders on invoice.

Creating the site takes half a minute: `--make` does it once. `--site` serves a copy, and prints one
line of JSON when it listens. Started by `tests.support.shops.corpus`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from decimal import Decimal
from operator import itemgetter
from pathlib import Path
from typing import Any

CONFIGURATION = """
%define INSTANCE {folder}
instancehome $INSTANCE
<zodb_db main>
  mount-point /
  <filestorage>
    path $INSTANCE/Data.fs
  </filestorage>
</zodb_db>
"""
PACKAGES = """
<configure xmlns="http://namespaces.zope.org/zope" xmlns:meta="http://namespaces.zope.org/meta"
           xmlns:five="http://namespaces.zope.org/five">
  <include package="Products.Five" />
  <meta:redefinePermission from="zope2.Public" to="zope.Public" />
  <five:loadProducts file="meta.zcml" />
  <five:loadProducts />
  <five:loadProductsOverrides />
  <include package="bda.plone.shop" />
</configure>
"""
BEHAVIORS = ("IBuyableBehavior", "IStockBehavior", "IShippingBehavior")
# What a guest needs to order, and what only customers with an account have by default.
PERMISSIONS = (
    "bda.plone.shop: View Buyable Info",
    "bda.plone.shop: Modify Cart",
    "bda.plone.checkout: Perform Checkout",
)
SHOP = "bda.plone.shop.interfaces"
SETTINGS = {
    f"{SHOP}.IShopSettings.currency": "USD",
    f"{SHOP}.IShopSettings.default_item_display_gross": True,
    f"{SHOP}.IShopSettings.admin_email": "shop@example.com",
    f"{SHOP}.IShopSettings.admin_name": "Loopback Supplies",
    f"{SHOP}.IShopShippingSettings.flat_shipping_cost": Decimal("5.0"),
    f"{SHOP}.IShopShippingSettings.available_shipping_methods": ["default_shipping", "cash_and_carry"],
    f"{SHOP}.IPaymentTextSettings.available_payment_methods": ["invoice", "cash"],
    "plone.email_from_address": "shop@example.com",
    "plone.email_from_name": "Loopback Supplies",
    "plone.smtp_host": "localhost",
}
PRODUCTS = (("mug", "Blue enamel mug", "10.00", 100.0), ("bowl", "Sold out bowl", "20.00", 0.0))


def open_database(folder: Path) -> Any:
    """Configure Zope in a folder and return its root object."""
    (folder / "etc").mkdir(exist_ok=True)
    (folder / "etc" / "site.zcml").write_text(PACKAGES)
    (folder / "zope.conf").write_text(CONFIGURATION.format(folder=folder))

    os.environ["zope_i18n_compile_mo_files"] = "true"  # noqa: SIM112 - Zope's own name
    import Zope2  # noqa: PLC0415 - the folder comes first
    from Zope2.Startup.run import configure_wsgi  # noqa: PLC0415

    configure_wsgi(str(folder / "zope.conf"))
    return Zope2.app()


def make(root: Any, language: str) -> None:
    """Create the site with its products and a customer."""
    import plone.api  # noqa: PLC0415
    import transaction  # noqa: PLC0415
    from AccessControl.SecurityManagement import newSecurityManager  # noqa: PLC0415
    from plone.dexterity.interfaces import IDexterityFTI  # noqa: PLC0415
    from Products.CMFPlone.factory import addPloneSite  # noqa: PLC0415
    from Testing.makerequest import makerequest  # noqa: PLC0415
    from zope.component import getUtility  # noqa: PLC0415
    from zope.component.hooks import setSite  # noqa: PLC0415

    root = makerequest(root)
    root.acl_users._doAddUser("admin", "only-for-the-tests", ["Manager"], [])
    newSecurityManager(None, root.acl_users.getUser("admin").__of__(root.acl_users))
    profiles = ("plonetheme.barceloneta:default", "bda.plone.shop:default")
    site = addPloneSite(root, "shop", setup_content=False, default_language=language, extension_ids=profiles)
    setSite(site)
    # Documents can be bought, as the package's own tests do it.
    getUtility(IDexterityFTI, name="Document").behaviors += tuple(f"bda.plone.shop.dx.{name}" for name in BEHAVIORS)
    for name, value in SETTINGS.items():
        plone.api.portal.set_registry_record(name, value)
    for permission in PERMISSIONS:
        site.manage_permission(permission, ["Manager", "Customer", "Authenticated", "Anonymous"], acquire=1)
    site.portal_workflow.setDefaultChain("simple_publication_workflow")
    for slug, title, net, count in PRODUCTS:
        product = plone.api.content.create(
            container=site,
            type="Document",
            id=slug,
            title=title,
            item_net=Decimal(net),
            item_vat="20",
            item_display_gross=True,
            item_comment_enabled=False,
            item_available=count,
            item_overbook=0.0,
        )
        plone.api.content.transition(product, "publish")
    roles = ("Member", "Customer")
    plone.api.user.create(email="ada@example.com", username="ada", password="a-long-password", roles=roles)
    transaction.commit()


def serve(root: Any) -> None:
    """Serve the site, and print the URLs of its products when it listens."""
    import waitress  # noqa: PLC0415
    from Products.MailHost.MailHost import MailBase  # noqa: PLC0415
    from ZPublisher.WSGIPublisher import publish_module  # noqa: PLC0415

    root._p_jar.close()
    # No mail is sent; a failure to send would be reported on the confirmation.
    MailBase._send = lambda *_arguments, **_options: None
    server = waitress.create_server(publish_module, host="127.0.0.1", port=0, threads=4)
    base = f"http://127.0.0.1:{server.effective_port}/shop"
    print(json.dumps({slug: f"{base}/{slug}" for slug, *_ in PRODUCTS}), flush=True)  # noqa: T201 - what the tests wait for
    sys.stdout = sys.stderr
    server.run()


def orders(folder: Path) -> list[tuple[str, str, str, str]]:
    """Return total, postal code, recipient and delivery method of each order, as they are in the database."""
    from ZODB.DB import DB  # noqa: PLC0415
    from ZODB.FileStorage import FileStorage  # noqa: PLC0415

    database = DB(FileStorage(str(folder / "Data.fs"), read_only=True))
    kept = database.open().root()["Application"]["shop"].__annotations__
    found = []
    lines = [line.attrs for line in _records(kept, "SOUP-bda_plone_orders_bookings")]
    for order in sorted(
        (order.attrs for order in _records(kept, "SOUP-bda_plone_orders_orders")), key=itemgetter("created")
    ):
        goods = sum(
            line["net"] * line["buyable_count"] * (100 + Decimal(line["vat"])) / 100
            for line in lines
            if line["order_uid"] == order["uid"]
        )
        code = order["billing_address.zip"]
        name = f"{order['personal_data.firstname']} {order['personal_data.lastname']}"
        found.append((f"{goods + order['shipping']:.2f}", code, name, order["shipping_method"]))
    return found


def _records(kept: Any, name: str) -> list[Any]:
    return list(kept[name].data.values()) if name in kept else []


def main() -> None:
    """Serve until killed, make the site, or print its orders."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--make", metavar="LANGUAGE", help="create the site")
    parser.add_argument("--site", type=Path, help="serve a copy of the site in this folder")
    options = parser.parse_args()
    if options.make:
        make(open_database(options.folder), options.make)
    elif options.site:
        shutil.copy(options.site / "Data.fs", options.folder)
        serve(open_database(options.folder))
    else:
        print(json.dumps(orders(options.folder)))  # noqa: T201 - what the tests read


if __name__ == "__main__":
    main()
