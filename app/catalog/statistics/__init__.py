"""Call counts, latencies and revenue of services."""
