"""The version of the client."""

VERSION = "1.0.0"
USER_AGENT = f"purser-sdk-python/{VERSION}"
