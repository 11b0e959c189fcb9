"""Engines: one model each, behind the Protocol in `base`."""
