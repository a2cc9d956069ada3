"""The browser process: start-up, protocol, egress, redaction."""
