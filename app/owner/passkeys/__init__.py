"""Passkeys of owners (WebAuthn): adding, signing in, confirming an action, removing."""
