"""The version of the service."""

VERSION = "1.0.0"
