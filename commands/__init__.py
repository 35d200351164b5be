"""The tasks, a module per subject; tasks.py collects them."""
