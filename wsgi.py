"""WSGI entry point: `gunicorn wsgi:app`, `flask --app wsgi …`."""

import gc

from app.core.host import harden

# Before anything else is imported, which takes seconds.
harden()

from flask import Flask  # noqa: E402

import commands  # noqa: E402


def _load() -> Flask:
    # Loading leaves hardly any garbage, and looking for it takes a third of the processor time.
    gc.disable()
    from app.factory import create_app  # noqa: PLC0415 - not needed to list the commands

    application = create_app()
    # Whatever lives as long as the process is not looked through again.
    gc.freeze()
    gc.enable()
    return application


app = commands.listing(_load) if commands.are_looked_up() else _load()
