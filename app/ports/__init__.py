"""What the service needs from outside, as Protocols and value types. Adapters implement them; rooms use them."""
