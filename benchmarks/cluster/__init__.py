"""The cluster of `deploy/cluster` on one machine, each host in its own network namespace, under load and faults."""
