"""Prints the grammars of all tools by both converters. Arguments: the folder of the converters, and the server."""

from __future__ import annotations

import importlib
import json
import sys
import urllib.request


def main(folder: str, url: str) -> None:
    sys.path.insert(0, folder)
    original, package = (importlib.import_module(name) for name in ("json_schema_to_grammar", "llama_grammar"))
    message = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}).encode()
    request = urllib.request.Request(f"{url}/mcp", message, {"Content-Type": "application/json"})  # noqa: S310
    with urllib.request.urlopen(request) as response:  # noqa: S310
        tools = json.load(response)["result"]["tools"]
    grammars = {}
    for tool in tools:
        converter = original.SchemaConverter(prop_order={}, allow_fetch=False, dotall=False, raw_pattern=False)
        converter.visit(converter.resolve_refs(tool["inputSchema"], ""), "")
        by_package = package.json_schema_to_gbnf(json.dumps(tool["inputSchema"]))
        grammars[tool["name"]] = [converter.format_grammar(), by_package]
    sys.stdout.write(json.dumps(grammars))


if __name__ == "__main__":
    main(*sys.argv[1:])
