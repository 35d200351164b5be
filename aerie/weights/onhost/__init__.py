"""Staging on the host itself: what fetches, verifies and warms a model there; standard library only."""
