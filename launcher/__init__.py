"""Starts and supervises the whole service on one machine (`./run`).

For development and trial: production hosts read the Procfile themselves. `environment.py` runs before the requirements
are installed, so it imports the standard library only. The rest imports the settings, and the service in forks only.
"""
