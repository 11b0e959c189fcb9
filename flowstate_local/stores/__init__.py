"""Stores: repositories of many spaces, behind the Protocol in `base`."""
