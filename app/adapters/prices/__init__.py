"""Market prices and their sources."""
