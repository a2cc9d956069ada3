"""Access to EVM nodes: endpoints with failover, and strict decoding of their replies."""
