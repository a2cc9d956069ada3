"""What a process does only once, done before it forks: children of `processes` start without it."""

from tests.support.applications import make_app, settings_for

make_app(settings_for("sqlite:////dev/null"))
