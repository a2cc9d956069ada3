"""The seller's side: registration and maintenance of services."""
