"""A foreign MCP server for the tests, written with the official package: what a real one does, and what a bad one does.

python foreign_server.py          on stdio
python foreign_server.py PORT     on http://127.0.0.1:PORT/mcp
"""

import base64
import os
import sys
import time
from typing import Annotated, Literal

import anyio
from mcp.server.mcpserver import MCPServer
from mcp.types import CallToolResult, ImageContent, TextContent, ToolAnnotations
from pydantic import Field

server = MCPServer("foreign", version="1.2", log_level="CRITICAL")
calls: list[str] = []


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def taxi_price(
    hotel: str, persons: Annotated[int, Field(ge=1, le=8)] = 1, kind: Literal["car", "van"] = "car"
) -> str:
    """What a taxi from the station to a hotel costs.

    More that nobody needs.
    """
    return f"{kind} to {hotel} for {persons}: 14 dollars"


@server.tool(annotations=ToolAnnotations(idempotent_hint=True))
def rooms(city: str) -> dict[str, int]:
    """Rooms by hotel."""
    return {"Aurora": 3, f"Grand {city}": 0}


@server.tool()
def echo(text: str) -> str:
    """Say it again."""
    return text


@server.tool()
def big(n: int) -> str:
    """Many characters."""
    return "x" * n


@server.tool()
def picture() -> CallToolResult:
    """A text and a picture."""
    pixels = base64.b64encode(b"\x89PNG" + bytes(96)).decode()
    picture = ImageContent(data=pixels, mime_type="image/png")
    return CallToolResult(content=[TextContent(text="a dot"), picture])


@server.tool()
def summed() -> CallToolResult:
    """A text that says less than the data."""
    return CallToolResult(content=[TextContent(text="two items")], structured_content={"items": [1, 2]})


@server.tool()
def fails(why: str) -> str:
    """Fail."""
    raise ValueError(f"secret of the server: {why}")


@server.tool()
def refuses() -> CallToolResult:
    """Fail in words."""
    return CallToolResult(content=[TextContent(text="no rooms on that day ☹")], is_error=True)


@server.tool()
async def slow(seconds: float) -> str:
    """Take its time."""
    await anyio.sleep(seconds)
    return "done"


@server.tool(annotations=ToolAnnotations(idempotent_hint=True))
def process() -> str:
    """The process that answers."""
    return str(os.getpid())


@server.tool()
def dies(seconds: float = 0.0) -> str:
    """End the process in the middle of the call."""
    time.sleep(seconds)
    os._exit(3)


@server.tool(name="dotted.name-2")
def dotted(value: int) -> int:
    """A name that this project's tools can't have."""
    return value + 1


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run("streamable-http", port=int(sys.argv[1]))
    else:
        server.run("stdio")
