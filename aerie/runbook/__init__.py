"""Runbooks: steps that leave evidence, gates that judge it, a journal to resume from.

Nothing is imported here: the worker side of this package runs inside the train and engine
environments, which have none of the controller's libraries.
"""
