"""A shopper that drives a browser. `shopper` stands on the service's side, `__main__` in a process of its own.

The heuristics are over there: `errand` is the story, `snapshot` what is looked at, `tab` what is done. This file
imports nothing, for the browser's process has no use for the service.
"""
