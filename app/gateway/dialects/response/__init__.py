"""Responses of provider dialects: framing of streams, and usage."""
