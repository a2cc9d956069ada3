"""A gunicorn worker for clients that are slow, silent or malformed. Imports nothing of the application it serves."""
