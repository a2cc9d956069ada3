"""Start and watch the whole service on one machine: `./run` without anything else installed.

Development and trial only: production hosts read the Procfile themselves. Standard library only, because it
runs before the requirements are there, and it must never import the service.
"""
