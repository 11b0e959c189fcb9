"""The application: routes, errors in OpenAI's shape, limits, health, and a drain at the end."""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from flowstate_local.errors import FlowStateError
from flowstate_local.server import chat, memory
from flowstate_local.server.api_errors import ApiError, as_api_error
from flowstate_local.server.mcp_http import McpEndpoint, mount
from flowstate_local.server.service import Service

DRAIN_S = 20.0
"""Seconds that turns under way get to end when the server stops."""


def make_app(service: Service, *, origins: Collection[str] = ()) -> FastAPI:
    """The whole API around a service. The caller closes engine, store and tenants after it.

    Args:
        service: what is behind it.
        origins: of web pages that may call /mcp, besides those of this machine.
    """
    mcp = McpEndpoint(service, origins)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with mcp.running():
            yield
            await service.drain(DRAIN_S)

    app = FastAPI(
        title="flowstate_local",
        summary="An OpenAI-compatible endpoint with a memory.",
        version="1",
        lifespan=lifespan,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.service = service
    app.include_router(chat.router)
    app.include_router(memory.router)
    mount(app, mcp)
    _health(app, service)
    _errors(app)
    _body_limit(app, service.limits.max_body_bytes)
    return app


def _health(app: FastAPI, service: Service) -> None:
    @app.get("/health", tags=["operations"], summary="The process is alive")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/ready", tags=["operations"], summary="It takes requests", response_model=None)
    async def ready() -> JSONResponse:
        """503 while it shuts down: a balancer sends nothing more."""
        return JSONResponse(
            {"status": "draining" if service.draining else "ready"}, 503 if service.draining else 200
        )


def _errors(app: FastAPI) -> None:
    @app.exception_handler(FlowStateError)
    async def ours(request: Request, error: FlowStateError) -> JSONResponse:
        return _answer(as_api_error(error))

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        fault: dict[str, Any] = error.errors()[0]
        place = ".".join(str(part) for part in fault["loc"] if part != "body")
        return _answer(
            ApiError(400, f"{place or 'body'}: {fault['msg']}", code="invalid_value", param=place or None)
        )

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> JSONResponse:
        return _answer(ApiError(error.status_code, str(error.detail), code="http_error"))


def _body_limit(app: FastAPI, most: int) -> None:
    @app.middleware("http")
    async def limited(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
        """Refuse a large body before it is read; one that lies about its length is cut off by the server."""
        length = request.headers.get("content-length", "")
        if request.method in ("POST", "PUT", "PATCH") and (not length.isdecimal() or int(length) > most):
            status, why = (
                (411, "Content-Length is missing")
                if not length.isdecimal()
                else (413, f"the body may have {most:,} bytes")
            )
            return _answer(
                ApiError(status, why, code="body_too_large" if status == 413 else "length_required")
            )
        return await call_next(request)


def _answer(error: ApiError) -> JSONResponse:
    return JSONResponse(error.body, error.status, headers=error.headers)
