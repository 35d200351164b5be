"""Loaded inside SGLang's processes, never by aerie itself."""
