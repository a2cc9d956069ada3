"""One-time initialisation before the fork server forks the children of `processes`."""

from tests.support.applications import make_app, settings_for

make_app(settings_for("sqlite:////dev/null"))
