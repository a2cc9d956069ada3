"""The samples of the reference, as a reader copies them."""

from __future__ import annotations

import html
import re

from flask.testing import FlaskClient

from app.web.reference import ReferenceOperation

_SAMPLE = re.compile(r'<div class="code sample (\w+)"><pre[^>]*><code>(.*?)</code></pre></div>', re.DOTALL)


def samples_of(client: FlaskClient, operation: ReferenceOperation) -> dict[str, str]:
    """Return the samples on the page of an operation, by language."""
    found = {language: html.unescape(text) for language, text in _SAMPLE.findall(client.get(operation.href).text)}
    assert list(found) == ["curl", "python", "typescript"]
    return found
