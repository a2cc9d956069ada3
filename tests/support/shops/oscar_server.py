"""Runs django-oscar as its package ships it, on loopback, with a few products and customers.

Prints one line of JSON when it listens. Started by `tests.support.shops.django_oscar`.
"""

from __future__ import annotations

import argparse
import sys
import time
import types
from collections.abc import Callable, Iterable
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import django
from django.apps import apps
from django.conf import settings
from django_server import NoMigrations, serve

URLS = "oscar_urls_in_memory"
PASSWORD = "correct-horse-battery-9"
ADDRESSES = (
    ("1 Main Street", "San Francisco", "California", "94107"),
    ("7 Hudson Yards", "New York", "New York", "10001"),
)
ARTICLES = {
    "mug": ("Blue enamel mug", "12.50", 500),
    "table": ("Walnut table", "740.00", 50),
    "lamp": ("Sold-out lamp", "20.00", 0),
}
CUSTOMERS = 8


def configure(folder: Path, *, guests: bool, currency: str) -> None:
    """Configure Django as oscar's documentation describes."""
    from oscar import defaults  # noqa: PLC0415 - it reads Django's settings

    values = {name: getattr(defaults, name) for name in dir(defaults) if name.isupper()}
    middleware = (
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.middleware.csrf.CsrfViewMiddleware",
        "django.contrib.auth.middleware.AuthenticationMiddleware",
        "django.contrib.messages.middleware.MessageMiddleware",
        "oscar.apps.basket.middleware.BasketMiddleware",
    )
    processors = (
        "django.template.context_processors.request",
        "django.contrib.auth.context_processors.auth",
        "django.contrib.messages.context_processors.messages",
        "django.template.context_processors.i18n",
        "django.template.context_processors.media",
        "django.template.context_processors.static",
        "oscar.apps.search.context_processors.search_form",
        "oscar.apps.checkout.context_processors.checkout",
        "oscar.apps.communication.notifications.context_processors.notifications",
        "oscar.core.context_processors.metadata",
    )
    import oscar  # noqa: PLC0415

    values |= {
        "DEBUG": False,
        "SECRET_KEY": "a shop of the tests",
        "ALLOWED_HOSTS": ["*"],
        "SITE_ID": 1,
        "USE_TZ": True,
        "LANGUAGE_CODE": "en-us",
        "ROOT_URLCONF": URLS,
        "DEFAULT_AUTO_FIELD": "django.db.models.AutoField",
        "INSTALLED_APPS": [*oscar.INSTALLED_APPS, "sorl.thumbnail"],
        "DATABASES": {
            "default": {
                "ENGINE": "django.db.backends.sqlite3",
                "NAME": str(folder / "shop.sqlite"),
                "OPTIONS": {"timeout": 20},
            }
        },
        "MIGRATION_MODULES": NoMigrations(),
        "MIDDLEWARE": list(middleware),
        "TEMPLATES": [
            {
                "BACKEND": "django.template.backends.django.DjangoTemplates",
                "APP_DIRS": True,
                "OPTIONS": {"context_processors": list(processors)},
            }
        ],
        "AUTHENTICATION_BACKENDS": (
            "oscar.apps.customer.auth_backends.EmailBackend",
            "django.contrib.auth.backends.ModelBackend",
        ),
        # The tests have many customers and guess no passwords.
        "PASSWORD_HASHERS": ["django.contrib.auth.hashers.MD5PasswordHasher"],
        "HAYSTACK_CONNECTIONS": {"default": {"ENGINE": "haystack.backends.simple_backend.SimpleEngine"}},
        "EMAIL_BACKEND": "django.core.mail.backends.dummy.EmailBackend",
        "STATIC_URL": "/static/",
        "STATICFILES_FINDERS": ["django.contrib.staticfiles.finders.AppDirectoriesFinder"],
        "MEDIA_ROOT": str(folder / "media"),
        "MEDIA_URL": "/media/",
        "OSCAR_SHOP_NAME": "Loopback Outfitters",
        "OSCAR_DEFAULT_CURRENCY": currency,
        "OSCAR_ALLOW_ANON_CHECKOUT": guests,
        "OSCAR_SEND_REGISTRATION_EMAIL": False,
        "OSCAR_INITIAL_ORDER_STATUS": "Pending",
        "OSCAR_INITIAL_LINE_STATUS": "Pending",
        "OSCAR_ORDER_STATUS_PIPELINE": {"Pending": ()},
    }
    settings.configure(**values)
    django.setup()


def stock(base: str, *, currency: str) -> dict[str, Any]:
    """Create countries, products and customers; return what the tests need of them."""
    from django.contrib.auth import get_user_model  # noqa: PLC0415
    from oscar.core.loading import get_model  # noqa: PLC0415

    country = get_model("address", "Country")
    for code, name in (("US", "United States of America"), ("GB", "United Kingdom")):
        country.objects.create(iso_3166_1_a2=code, printable_name=name, name=name, is_shipping_country=True)
    goods = get_model("catalogue", "ProductClass").objects.create(
        name="Goods", requires_shipping=True, track_stock=True
    )
    partner = get_model("partner", "Partner").objects.create(name="Warehouse")
    products, urls = {}, {}
    for key, (title, price, count) in ARTICLES.items():
        product = get_model("catalogue", "Product").objects.create(
            title=title, product_class=goods, structure="standalone", is_public=True, description="<p>An article.</p>"
        )
        get_model("partner", "StockRecord").objects.create(
            product=product,
            partner=partner,
            partner_sku=f"SKU-{key}",
            price_currency=currency,
            price=Decimal(price),
            num_in_stock=count,
        )
        products[key], urls[key] = product, base + product.get_absolute_url()
    users = get_user_model()
    for kind in ("stored", "plain", "leftover"):
        for number in range(CUSTOMERS):
            name = f"{kind}{number}@example.com"
            user = users.objects.create_user(username=f"{kind}{number}", email=name, password=PASSWORD)
            if kind != "plain":
                for line1, city, state, code in ADDRESSES:
                    get_model("address", "UserAddress").objects.create(
                        user=user,
                        first_name="Ada",
                        last_name="Buyer",
                        line1=line1,
                        line4=city,
                        state=state,
                        postcode=code,
                        country_id="US",
                    )
            if kind == "leftover":
                _leave_in_basket(user, products["table"])
    _offer_coupon()
    return {"base": base, "password": PASSWORD, **urls}


def _offer_coupon() -> None:
    from django.utils.timezone import now  # noqa: PLC0415
    from oscar.core.loading import get_model  # noqa: PLC0415

    goods = get_model("offer", "Range").objects.create(name="All", includes_all_products=True)
    offer = get_model("offer", "ConditionalOffer").objects.create(
        name="Spring sale",
        offer_type="Voucher",
        condition=get_model("offer", "Condition").objects.create(range=goods, type="Count", value=1),
        benefit=get_model("offer", "Benefit").objects.create(range=goods, type="Percentage", value=20),
    )
    voucher = get_model("voucher", "Voucher").objects.create(
        name="Spring", code="SPRING20", usage="Multi-use",
        start_datetime=now() - timedelta(days=1), end_datetime=now() + timedelta(days=30),
    )  # fmt: skip
    voucher.offers.add(offer)


def _leave_in_basket(user: Any, product: Any) -> None:
    from oscar.apps.partner.strategy import Default  # noqa: PLC0415
    from oscar.core.loading import get_model  # noqa: PLC0415

    basket = get_model("basket", "Basket").objects.create(owner=user)
    basket.strategy = Default()
    basket.add_product(product)


def slow(application: Callable[..., Any], folder: Path) -> Callable[..., Any]:
    """Serve static files, and delay the response to an order while the file `hold` exists."""
    from django.contrib.staticfiles.handlers import StaticFilesHandler  # noqa: PLC0415

    inner = StaticFilesHandler(application)

    def serve(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        answer: Iterable[bytes] = inner(environ, start_response)
        if environ["REQUEST_METHOD"] == "POST" and "preview" in environ["PATH_INFO"]:
            (folder / "ordered").touch()
            deadline = time.monotonic() + 30
            while (folder / "hold").exists() and time.monotonic() < deadline:
                time.sleep(0.05)
        return answer

    return serve


def main() -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--guests", action="store_true")
    parser.add_argument("--currency", default="USD")
    options = parser.parse_args()
    configure(options.folder, guests=options.guests, currency=options.currency)

    from django.core.management import call_command  # noqa: PLC0415
    from django.core.wsgi import get_wsgi_application  # noqa: PLC0415
    from django.urls import include, path  # noqa: PLC0415

    urls = types.ModuleType(URLS)
    urls.urlpatterns = [  # type: ignore[attr-defined]
        path("i18n/", include("django.conf.urls.i18n")),
        path("", include(apps.get_app_config("oscar").urls[0])),
    ]
    sys.modules[URLS] = urls
    call_command("migrate", verbosity=0, interactive=False, run_syncdb=True)
    application = slow(get_wsgi_application(), options.folder)
    serve(application, lambda base: stock(base, currency=options.currency))


if __name__ == "__main__":
    main()
