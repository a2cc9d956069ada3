"""Access to Solana nodes: endpoints with failover, and strict decoding of their replies."""
