"""Runs pretix as its package ships it, on loopback, with tickets, for which no postal address is asked.

Gets a folder, prints one line of JSON when it listens. Started by `tests.support.shops.corpus`.
"""

from __future__ import annotations

import os
import sys
from datetime import timedelta
from decimal import Decimal
from typing import Any

FOLDER = sys.argv[1]
os.environ["DJANGO_SETTINGS_MODULE"] = "pretix.testutils.settings"

import django  # noqa: E402 - it reads which settings to use
from django.conf import settings  # noqa: E402
from django_server import serve  # noqa: E402

PLUGINS = "pretix.plugins.banktransfer"
EVENTS = (("concert", "USD", 500), ("late", "USD", 0), ("euro", "EUR", 500), ("unpayable", "USD", 500))


def stock(base: str) -> dict[str, Any]:
    """Create events: with taxes and a fee, sold out, in euros, and without a way to pay; return their URLs."""
    from django.utils.timezone import now  # noqa: PLC0415 - after Django's setup
    from django_scopes import scopes_disabled  # noqa: PLC0415
    from pretix.base.models import Event, Organizer  # noqa: PLC0415

    settings.SITE_URL = base
    with scopes_disabled():
        organizer = Organizer.objects.create(name="Loopback Hall", slug="hall", plugins=PLUGINS)
        for slug, currency, count in EVENTS:
            event = Event.objects.create(
                organizer=organizer,
                name=f"An evening ({slug})",
                slug=slug,
                currency=currency,
                date_from=now() + timedelta(days=30),
                live=True,
                plugins=PLUGINS,
            )
            event.settings.payment_banktransfer__enabled = slug != "unpayable"
            event.settings.payment_banktransfer_bank_details_type = "other"
            event.settings.payment_banktransfer_bank_details = "Loopback Bank, account 1"
            event.settings.payment_banktransfer__fee_abs = Decimal("1.00")
            rule = event.tax_rules.create(name="VAT", rate=Decimal("7.00"))
            item = event.items.create(name="Standing ticket", default_price=Decimal("12.00"), tax_rule=rule)
            event.vouchers.create(code="SPRING20", price_mode="percent", value=Decimal(20), max_usages=100)
            event.quotas.create(name="Hall", size=count).items.add(item)
    return {slug: f"{base}/hall/{slug}/" for slug, _, _ in EVENTS}


def main() -> None:
    """Serve until killed."""
    settings.DEBUG = False
    settings.ALLOWED_HOSTS = ["*"]
    # The style sheets, which the settings of pretix's own tests leave out.
    settings.COMPRESS_ENABLED = True
    settings.COMPRESS_PRECOMPILERS = settings.COMPRESS_PRECOMPILERS_ORIGINAL
    settings.COMPRESS_ROOT = FOLDER
    # Without a cache it compiles them for each page.
    settings.CACHES["styles"] = {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}
    settings.COMPRESS_CACHE_BACKEND = "styles"
    settings.DATABASES["default"] |= {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": f"{FOLDER}/shop.sqlite",
        "OPTIONS": {"timeout": 20},
    }
    django.setup()

    from django.contrib.staticfiles.handlers import StaticFilesHandler  # noqa: PLC0415
    from django.core.management import call_command  # noqa: PLC0415
    from django.core.wsgi import get_wsgi_application  # noqa: PLC0415

    call_command("migrate", verbosity=0, interactive=False, run_syncdb=True)
    serve(StaticFilesHandler(get_wsgi_application()), stock)


if __name__ == "__main__":
    main()
