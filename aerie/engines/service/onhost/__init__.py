"""Runs on hosts, on the standard library alone: what units call, and what changes which of them serves."""
