"""A Flask application that does nothing: what this machine's web server costs by itself."""

from __future__ import annotations

from flask import Flask

app = Flask("nothing")


@app.get("/")
def nothing() -> dict[str, str]:
    """Answer."""
    return {"status": "ok"}
