"""Serving engines: how each is launched, watched, measured and stopped; acceptance has one definition here."""
