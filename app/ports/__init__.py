"""The outside systems that the service depends on, as Protocols and value types. `app.adapters` implements them."""
