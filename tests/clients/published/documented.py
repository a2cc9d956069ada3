"""Runs an example of a document. Arguments: the file with the example, the package that it shows."""

import io
import json
import runpy
import sys
from contextlib import redirect_stdout
from importlib.metadata import version

_, example, package = sys.argv
printed = io.StringIO()
with redirect_stdout(printed):
    runpy.run_path(example, run_name="__main__")
sys.stdout.write(json.dumps({"printed": printed.getvalue(), "version": version(package)}))
