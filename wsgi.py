"""WSGI entry point: `gunicorn wsgi:app`, `flask --app wsgi …`."""

import gc

from app.core.host import harden

# Before the application is imported, which takes seconds.
harden()
# Loading leaves hardly any garbage, and looking for it takes a third of the processor time.
gc.disable()

from app.factory import create_app  # noqa: E402

app = create_app()
gc.enable()
