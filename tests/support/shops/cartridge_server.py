"""Runs Cartridge, the shop of the Mezzanine CMS, on loopback: variants, taxes on top, a flat rate for shipping.

Gets a folder, prints one line of JSON when it listens. Started by `tests.support.shops.corpus`.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import locale
import sys
import types
from decimal import Decimal
from pathlib import Path
from typing import Any

import django
from django.conf import settings
from django_server import serve

URLS = "cartridge_urls_in_memory"
# Dollars as in en_US, which need not be installed.
DOLLARS = {
    "currency_symbol": "$", "int_curr_symbol": "USD ", "frac_digits": 2, "int_frac_digits": 2, "mon_decimal_point": ".",
    "mon_thousands_sep": ",", "mon_grouping": [3, 3, 0], "p_cs_precedes": 1, "n_cs_precedes": 1, "p_sep_by_space": 0,
    "n_sep_by_space": 0, "p_sign_posn": 1, "n_sign_posn": 1, "positive_sign": "", "negative_sign": "-",
}  # fmt: skip


def configure(folder: Path, *, card: bool) -> None:
    """Configure Django as the template of a new project does."""
    spec = importlib.util.find_spec("cartridge")
    assert spec is not None
    assert spec.origin is not None
    template = Path(spec.origin).parent / "project_template" / "project_name" / "settings.py"
    values: dict[str, Any] = {"__file__": str(folder / "project" / "settings.py")}
    tree = ast.parse(template.read_text())
    # The end of the file reads settings of the machine and calls Mezzanine, as is done below.
    tree.body = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom | ast.Assign)]
    exec(compile(tree, str(template), "exec"), values)  # noqa: S102 - the package's own file
    for processors in values["TEMPLATES"]:
        processors["OPTIONS"]["builtins"] = ["mezzanine.template.loader_tags"]
    values |= {
        "SECRET_KEY": "a shop of the tests",
        "NEVERCACHE_KEY": "a shop of the tests",
        "ALLOWED_HOSTS": ["*"],
        "ROOT_URLCONF": URLS,
        "DATABASES": {
            "default": {
                "ENGINE": "django.db.backends.sqlite3",
                "NAME": str(folder / "shop.sqlite"),
                "OPTIONS": {"timeout": 20},
            }
        },
        "EMAIL_BACKEND": "django.core.mail.backends.dummy.EmailBackend",
        "LOGGING": {
            "version": 1,
            "handlers": {"errors": {"class": "logging.StreamHandler"}},
            "loggers": {"django.request": {"handlers": ["errors"]}},
        },
        "SHOP_CURRENCY_LOCALE": "C.UTF-8",
        "SHOP_DEFAULT_TAX_RATE": 8.0,
        "SHOP_PAYMENT_STEP_ENABLED": card,
    }
    from mezzanine.utils.conf import set_dynamic_settings  # noqa: PLC0415

    set_dynamic_settings(values)
    settings.configure(**{name: value for name, value in values.items() if name.isupper()})
    locale._override_localeconv = DOLLARS  # type: ignore[attr-defined]
    django.setup()


def stock(base: str) -> dict[str, Any]:
    """Create a shirt in two sizes and a mug; return their URLs."""
    from cartridge.shop.models import DiscountCode, Product, ProductOption, ProductVariation  # noqa: PLC0415
    from django.contrib.sites.models import Site  # noqa: PLC0415

    Site.objects.update_or_create(pk=1, defaults={"domain": base.partition("//")[2], "name": "Loopback Supplies"})
    DiscountCode.objects.create(title="Spring", code="SPRING20", discount_percent=Decimal(20), active=True)
    for size in ("Small", "Large"):
        ProductOption.objects.create(type=1, name=size)
    urls = {}
    for slug, title, price, sizes in (
        ("mug", "Blue enamel mug", "12.50", []),
        ("shirt", "Linen shirt", "40.00", ["Small", "Large"]),
    ):
        product = Product.objects.create(title=title, slug=slug, available=True, content="<p>An article.</p>")
        if sizes:
            product.variations.create_from_options({"option1": sizes})
        else:
            product.variations.manage_empty()
        variations = ProductVariation.objects.filter(product=product)
        variations.update(unit_price=Decimal(price), num_in_stock=500)
        variations.filter(pk=variations.order_by("pk")[0].pk).update(default=True)
        product.variations.set_default_images([])
        product.copy_default_variation()
        urls[slug] = base + product.get_absolute_url()
    return urls


def main() -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--card", action="store_true", help="ask for a card, as the shop does by default")
    options = parser.parse_args()
    configure(options.folder, card=options.card)

    from cartridge.shop.views import order_history  # noqa: PLC0415
    from django.contrib.staticfiles.handlers import StaticFilesHandler  # noqa: PLC0415
    from django.core.management import call_command  # noqa: PLC0415
    from django.core.wsgi import get_wsgi_application  # noqa: PLC0415
    from django.urls import include, path  # noqa: PLC0415

    urls = types.ModuleType(URLS)
    urls.urlpatterns = [  # type: ignore[attr-defined]
        path("shop/", include("cartridge.shop.urls")),
        path("account/orders/", order_history, name="shop_order_history"),
        path("", order_history, name="home"),
        path("", include("mezzanine.urls")),
    ]
    sys.modules[URLS] = urls
    call_command("migrate", verbosity=0, interactive=False, run_syncdb=True)
    serve(StaticFilesHandler(get_wsgi_application()), stock)


if __name__ == "__main__":
    main()
