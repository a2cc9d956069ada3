"""Key custody: derivation, encryption and signing."""
