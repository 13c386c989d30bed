"""Models that are solvable networks, or have one inside."""
