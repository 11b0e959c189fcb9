"""A memory over MCP on stdin and stdout: for an agent on this machine that starts the process itself."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from mcp.server.stdio import stdio_server

from flowstate_local.errors import FlowStateError
from flowstate_local.server.mcp_memory import Context, Place, make_server
from flowstate_local.stores.base import Store


@dataclass(frozen=True)
class OwnerAccess:
    """Whoever started the process owns the store: one space, named when it was started."""

    store: Store
    space: str
    read_only: bool = False

    def may_add(self, context: Context) -> bool:
        """See `Access`."""
        return not self.read_only

    def may_choose(self, context: Context) -> bool:
        """See `Access`."""
        return False

    def writer(self, context: Context) -> str:
        """See `Access`."""
        client = context.session.client_params
        return f"{client.client_info.name if client else 'another agent'} over MCP"

    def reading(self, context: Context, space: str | None) -> Place:
        """See `Access`. A space that nobody has written to yet is an empty memory."""
        return Place(self.store, self.space)

    @asynccontextmanager
    async def writing(self, context: Context, space: str | None) -> AsyncIterator[Place]:
        """See `Access`."""
        yield Place(self.store, self.space)

    def explain(self, error: FlowStateError) -> str:
        """See `Access`."""
        return f"{error}. {error.hint}" if error.hint else str(error)


async def serve_stdio(store: Store, space: str, *, read_only: bool) -> None:
    """Serve one client until it closes stdin."""
    server = make_server(OwnerAccess(store, space, read_only))
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())
