"""Values without a framework: money, addresses, chains, time, identifiers, limits of JSON."""
