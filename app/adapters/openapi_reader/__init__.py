"""OpenAPI documents of strangers, each read in a process of its own that is killed when its time is over.

`reader` is our side; `child` is the process: it has no secrets, and can open neither files nor sockets.
"""
