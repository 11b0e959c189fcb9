"""What every request of HTTP passes first: an id, a bound on its body, a line in the log when it ends."""

import logging
import re
import time
import uuid
from collections.abc import Callable

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from flowstate_local import logs
from flowstate_local.server.api_errors import ApiError
from flowstate_local.server.observe import HttpRequest, Observer

REQUEST_ID = "x-request-id"
_SANE_ID = re.compile(r"[A-Za-z0-9._:-]{1,100}")
logger = logging.getLogger("flowstate_local.server")


class Edge:
    """Plain ASGI, so that streams go through untouched.

    Args:
        app: what is behind it.
        max_body_bytes: of a request, by its path.
        observer: told of every request.
    """

    def __init__(self, app: ASGIApp, max_body_bytes: Callable[[str], int], observer: Observer) -> None:
        self._app = app
        self._max_body_bytes = max_body_bytes
        self._observer = observer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        headers = {key.decode("latin-1").lower(): value.decode("latin-1") for key, value in scope["headers"]}
        request = HttpRequest(scope["method"], scope["path"], headers)
        said = headers.get(REQUEST_ID, "")
        request_id = said if _SANE_ID.fullmatch(said) else uuid.uuid4().hex
        with logs.bound(http_request=request_id), self._observer.http(request):
            await self._serve(scope, receive, send, request, request_id)

    async def _serve(
        self, scope: Scope, receive: Receive, send: Send, request: HttpRequest, request_id: str
    ) -> None:
        begun = time.perf_counter()

        async def answering(message: Message) -> None:
            if message["type"] == "http.response.start":
                request.status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", request_id.encode())]
            await send(message)

        most = self._max_body_bytes(request.path)
        try:
            if _is_too_large(request, most):
                await answer(too_large(most))(scope, receive, answering)
            else:
                await self._app(scope, _bounded(receive, most), answering)
        except Exception:
            logger.exception("a request failed inside the server")
            if request.status:
                raise  # too late to say anything else; the connection breaks
            inside = ApiError(
                500, "the request failed inside the server", type="server_error", code="internal_error"
            )
            await answer(inside)(scope, receive, answering)
        finally:
            request.route = getattr(scope.get("route"), "path", "")
            request.duration_s = time.perf_counter() - begun
            _log(request)


def _is_too_large(request: HttpRequest, most: int) -> bool:
    """A large body is refused before any of it is read."""
    length = request.headers.get("content-length", "0")
    return not length.isdecimal() or int(length) > most


def _bounded(receive: Receive, most: int) -> Receive:
    """Reads a body that doesn't tell its length, or lies, up to the bound."""
    seen = 0

    async def bounded() -> Message:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        if seen > most:
            raise HTTPException(413, str(too_large(most)))
        return message

    return bounded


def _log(request: HttpRequest) -> None:
    level = logging.WARNING if request.status >= 500 else logging.INFO
    fields = {
        "method": request.method,
        "route": request.route or request.path[:200],
        "status": request.status,
        "duration_ms": round(1e3 * request.duration_s, 1),
    }
    logger.log(level, "%s %s", request.method, request.status, extra={"flowstate": fields})


def too_large(most: int) -> ApiError:
    """For a body beyond the limit."""
    return ApiError(413, f"the body may have {most:,} bytes", code="body_too_large")


def answer(error: ApiError) -> JSONResponse:
    """An error as a response."""
    return JSONResponse(error.body, error.status, headers=error.headers)
