"""WSGI entry point: `gunicorn wsgi:app`, `flask --app wsgi …`."""

from app.core.process_hardening import harden

# Before the application is imported, which takes seconds.
harden()

from app.factory import create_app  # noqa: E402

app = create_app()
