"""The HTTP server of the server tests, for the tests of its /mcp."""

from tests.server.conftest import serve

__all__ = ["serve"]
