"""The application: routes, errors in OpenAI's shape, limits, health, and a drain at the end."""

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from flowstate_local.errors import FlowStateError
from flowstate_local.server import admin, chat, inspector, memory, memory_views, responses
from flowstate_local.server.api_errors import ApiError, ErrorBody, as_api_error
from flowstate_local.server.edge import Edge, answer, logger
from flowstate_local.server.mcp_http import McpEndpoint, mount
from flowstate_local.server.metrics import CONTENT_TYPE, Metrics
from flowstate_local.server.service import Service

DRAIN_S = 20.0
"""Seconds that turns under way get to end when the server stops."""


def make_app(service: Service, metrics: Metrics | None = None, *, origins: Collection[str] = ()) -> FastAPI:
    """The whole API around a service. The caller closes engine, store and tenants after it.

    Args:
        service: what the routes call.
        metrics: what `/metrics` shows; they are told only if they are among the service's observers.
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
        # Both pages load scripts from elsewhere; a server on somebody's own machine must not.
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        responses={
            "4XX": {"model": ErrorBody, "description": "Refused: the error says why"},
            "5XX": {"model": ErrorBody, "description": "The server could not do it"},
        },
    )
    app.state.service = service
    app.include_router(chat.router)
    app.include_router(responses.router)
    app.include_router(memory.router)
    app.include_router(memory_views.router)
    app.include_router(inspector.router)
    app.include_router(admin.router)
    mount(app, mcp)
    _health(app, service)
    if metrics is not None:
        _metrics(app, service, metrics)
    _errors(app)
    app.add_middleware(Edge, max_body_bytes=service.limits.body_bytes_of, observer=service.observer)
    return app


def _health(app: FastAPI, service: Service) -> None:
    @app.get("/health", tags=["operations"], summary="The process is alive")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/ready", tags=["operations"], summary="It takes requests", response_model=None)
    async def ready() -> JSONResponse:
        """503 while it shuts down: a balancer sends nothing more."""
        return JSONResponse(
            {"status": "draining" if service.admission.draining else "ready"},
            503 if service.admission.draining else 200,
        )


def _metrics(app: FastAPI, service: Service, metrics: Metrics) -> None:
    metrics.gauge("turns_running", "Turns in the engine.", lambda: service.admission.n_running)
    metrics.gauge(
        "turns_waiting", "Turns that wait for a place or their space.", lambda: service.admission.n_waiting
    )
    metrics.gauge("spaces", "Spaces in the store.", lambda: len(service.store.spaces()))

    @app.get("/metrics", tags=["operations"], summary="For Prometheus", response_class=Response)
    async def read() -> Response:
        """Needs no key, and names no tenant. Keep it from the outside with the proxy in front."""
        return Response(await run_in_threadpool(metrics.text), media_type=CONTENT_TYPE)


def _errors(app: FastAPI) -> None:
    @app.exception_handler(FlowStateError)
    async def ours(request: Request, error: FlowStateError) -> JSONResponse:
        told = as_api_error(error)
        if told.status == 500:  # the client isn't told what; the log is
            logger.error("a request failed inside the server", exc_info=error)
        return answer(told)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        fault: dict[str, Any] = error.errors()[0]
        place = ".".join(str(part) for part in fault["loc"] if part != "body")
        return answer(
            ApiError(400, f"{place or 'body'}: {fault['msg']}", code="invalid_value", param=place or None)
        )

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> JSONResponse:
        return answer(_of_http(error))


def _of_http(error: HTTPException) -> ApiError:
    code = "body_too_large" if error.status_code == 413 else "http_error"
    return ApiError(error.status_code, str(error.detail), code=code, headers=dict(error.headers or {}))
