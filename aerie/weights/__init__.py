"""Weights: what a model's files are, how they come onto hosts, and the proof that they are the right ones.

What lies here is sent to hosts too, so nothing but the standard library is imported.
"""
