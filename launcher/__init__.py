"""Starts and supervises the whole service on one machine (`./run`).

For development and trial: production hosts read the Procfile themselves. Standard library only, because it runs
before the requirements are installed; it never imports the service.
"""
