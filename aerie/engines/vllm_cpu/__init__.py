"""Loaded inside the processes of vLLM's CPU build, never by aerie itself."""
