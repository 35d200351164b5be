"""Measuring servers by their address: load, latencies, acceptance and energy; one, or several against each other."""
