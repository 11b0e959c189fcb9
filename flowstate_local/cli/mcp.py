"""`flowstate mcp`: give another agent this memory, over stdio."""

import asyncio
import logging
import sys
from typing import Annotated

import typer

from flowstate_local.cli.roots import Space, StorePath, opened_space
from flowstate_local.errors import UsageError

EXAMPLES = """Examples:

`flowstate mcp --space travel` is what the agent starts: put it into the list of MCP servers of your client

`flowstate mcp --space travel --read-only` lets it look, and never write

Over HTTP the same tools are at /mcp of `flowstate serve`.
"""


def mcp(
    space: Space = "default",
    read_only: Annotated[bool, typer.Option("--read-only", help="Offer no tool that writes.")] = False,
    store: StorePath = None,
) -> None:
    """Serve one memory to an agent that speaks MCP, on stdin and stdout."""
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
    with opened_space(store, space, as_json=False, may="read" if read_only else "create") as opened:
        try:
            from flowstate_local.server.mcp_stdio import serve_stdio
        except ModuleNotFoundError as error:
            raise UsageError(
                f"MCP needs the package {error.name}", hint="pip install 'flowstate-local[mcp]'"
            ) from None
        asyncio.run(serve_stdio(opened, space, read_only=read_only))
