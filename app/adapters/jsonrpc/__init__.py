"""JSON-RPC 2.0 over HTTP for all chains: pooled connections, failover, learned limits, strict replies."""
