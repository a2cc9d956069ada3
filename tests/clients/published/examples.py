"""Runs the documented examples of released packages. Arguments: the gateway's address, a key, and modules next to it.

A module names its `PACKAGE` and defines `example_…(gateway)` functions, which assert what they get.
"""

from __future__ import annotations

import importlib
import io
import json
import sys
import traceback
import wave
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any


@dataclass(frozen=True, slots=True)
class Gateway:
    """The address and the key that a client is given."""

    url: str
    key: str

    def base(self, provider: str) -> str:
        return f"{self.url}/v1/gateway/{provider}"

    @property
    def sound(self) -> bytes:
        """A tenth of a second of silence as a WAV file."""
        file = io.BytesIO()
        with wave.open(file, "wb") as writer:
            writer.setnchannels(1)
            writer.setsampwidth(2)
            writer.setframerate(16_000)
            writer.writeframes(bytes(3200))
        return file.getvalue()


def raises(kind: type[Exception], call: Callable[[], object]) -> Any:
    """Return the exception that a call raises. It must be of this kind."""
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"{kind.__name__} was not raised")


def run(name: str, gateway: Gateway) -> dict[str, Any]:
    """Run the examples of one module, all of them even if some fail."""
    module = importlib.import_module(name)
    titles, failed = [], {}
    for function_name, example in list(vars(module).items()):
        if not function_name.startswith("example_"):
            continue
        title = function_name.removeprefix("example_").replace("_", " ")
        titles.append(title)
        try:
            example(gateway)
        except Exception:  # reported to the test, which fails
            failed[title] = traceback.format_exc()
    return {
        "registry": "PyPI",
        "package": module.PACKAGE,
        "version": version(module.PACKAGE),
        "examples": titles,
        "failed": failed,
    }


if __name__ == "__main__":
    _, address, secret, *names = sys.argv
    # What packages print themselves goes elsewhere.
    with redirect_stdout(sys.stderr):
        rows = [run(name, Gateway(address, secret)) for name in names]
    sys.stdout.write(json.dumps(rows))
