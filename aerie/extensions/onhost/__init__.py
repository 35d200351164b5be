"""Builds on a host: standard library only, sent there by its controller and run as a job that outlives it."""
