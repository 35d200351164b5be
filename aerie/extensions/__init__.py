"""CUDA extensions: their builds sized for the host, and what device code their libraries carry."""
