"""Engines as services of a host: units with gates before them, a front address, and changes that can be taken back."""
