"""Notices to owners by e-mail and browser."""
