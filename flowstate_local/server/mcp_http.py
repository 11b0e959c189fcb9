"""Memories over MCP at /mcp: streamable HTTP, with the API's own keys, scopes and tenants.

Stateless: each call carries its key and is answered on its own, so any process behind a balancer may take it.
"""

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

from fastapi import FastAPI
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.requests import Request
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from flowstate_local.errors import FlowStateError
from flowstate_local.server.api_errors import ApiError, as_api_error
from flowstate_local.server.mcp_memory import Context, Place, make_server
from flowstate_local.server.service import Service
from flowstate_local.server.spaces import DEFAULT_SPACE, find_space, unknown_space
from flowstate_local.server.tenants import Caller

PATH = "/mcp"
SPACE_HEADER = "X-FlowState-Space"
_CALLER = "flowstate.caller"
"""Where the checked caller stands in the ASGI scope."""
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class KeyAccess:
    """A call reaches what its key may. The header names the space; where it is absent, the call itself may."""

    service: Service

    def may_add(self, context: Context) -> bool:
        """See `Access`."""
        return _caller(context).may("write")

    def may_choose(self, context: Context) -> bool:
        """See `Access`. A header pins the agent to a space: whoever configured it meant that."""
        return SPACE_HEADER not in _request(context).headers

    def writer(self, context: Context) -> str:
        """See `Access`. The tenant is certain; what the client calls itself is not."""
        client = context.session.client_params
        named = f" with {client.client_info.name}" if client else ""
        return f"{_caller(context).tenant.name} over MCP{named}"

    def reading(self, context: Context, space: str | None) -> Place:
        """See `Access`. What is foreign, unknown or still empty looks the same."""
        name = self._name(context, space)
        ref = find_space(self.service.tenants, _caller(context), name, write=False)
        if self.service.store.head(ref.stored).seq == 0:
            raise unknown_space(name)
        return Place(self.service.store, ref.stored)

    @asynccontextmanager
    async def writing(self, context: Context, space: str | None) -> AsyncIterator[Place]:
        """See `Access`."""
        caller = _caller(context)
        ref = find_space(self.service.tenants, caller, self._name(context, space), write=True)
        self.service.admission.check_bytes(ref.owner)
        async with self.service.admission.writing(caller, ref):
            yield Place(self.service.store, ref.stored)

    def explain(self, error: FlowStateError) -> str:
        """See `Access`. Of what is no fault of the client nothing inner is told."""
        answer = as_api_error(error)
        if answer.code == "space_not_found":
            return f"{answer}. `add` begins one of your own."
        told = str(answer)
        return (
            told if answer.status >= 500 or not error.hint or error.hint in told else f"{told}. {error.hint}"
        )

    def _name(self, context: Context, space: str | None) -> str:
        return _request(context).headers.get(SPACE_HEADER) or space or DEFAULT_SPACE


class McpEndpoint:
    """The ASGI application at /mcp: origin, key, then the protocol.

    Args:
        service: what is behind it.
        origins: of web pages that may call it, such as "https://app.example.org"; pages of this machine always may.
    """

    def __init__(self, service: Service, origins: Collection[str] = ()) -> None:
        self._service = service
        self._origins = {origin.rstrip("/").lower() for origin in origins}
        self._server = make_server(KeyAccess(service))
        self._manager: StreamableHTTPSessionManager | None = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Calls are answered in this context: the lifespan of the application."""
        # One manager per lifespan: it can't be started twice.
        self._manager = StreamableHTTPSessionManager(
            app=self._server,
            json_response=True,
            stateless=True,
            max_request_body_size=self._service.limits.max_body_bytes,
        )
        async with self._manager.run():
            yield

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one HTTP request. Raises ApiError, which the application turns into an answer."""
        request = Request(scope)
        self._check_origin(request.headers.get("origin"))
        scope[_CALLER] = self._service.caller(request.headers.get("authorization"), "read")
        if request.method != "POST":  # without sessions there is nothing to listen to, and nothing to end
            raise ApiError(405, "only POST is answered here", code="http_error", headers={"Allow": "POST"})
        assert self._manager is not None, "the application's lifespan has not begun"
        await self._manager.handle_request(scope, receive, send)

    def _check_origin(self, origin: str | None) -> None:
        """Turn away web pages that nobody allowed, whatever name they reached this address by (DNS rebinding).

        Programs send no Origin. The Host header proves nothing behind a proxy, so it is not looked at.
        """
        if origin is None or origin.lower() in self._origins or _is_local(origin):
            return
        raise ApiError(
            403,
            "web pages of this origin may not call here; `flowstate serve --origin` allows one",
            type="permission_error",
            code="origin_not_allowed",
        )


def mount(app: FastAPI, endpoint: McpEndpoint) -> None:
    """Put the endpoint at its path; a mount would answer only below it."""
    app.router.routes.append(Route(PATH, endpoint, include_in_schema=False))


def _is_local(origin: str) -> bool:
    try:
        return urlsplit(origin).hostname in _LOOPBACK
    except ValueError:
        return False


def _request(context: Context) -> Request:
    assert isinstance(context.request, Request), "the transport hands the HTTP request on"
    return context.request


def _caller(context: Context) -> Caller:
    caller = _request(context).scope[_CALLER]
    assert isinstance(caller, Caller)
    return caller
