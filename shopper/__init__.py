"""The browser process: makes one purchase in a web shop. See README.md.

This file imports nothing, so that the process starts without the service.
"""
