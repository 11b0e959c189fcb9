"""Errors as clients of OpenAI know them: a status and `{"error": {message, type, param, code}}`."""

from typing import Any

from pydantic import BaseModel

from flowstate_local.errors import (
    BadSpaceName,
    ConflictError,
    EngineUnavailable,
    FlowStateError,
    GrammarError,
    PromptTooLong,
    StoreBusy,
    StoreFull,
    UsageError,
)


class ErrorDetail(BaseModel):
    """What went wrong."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    """The body of every answer other than success."""

    error: ErrorDetail


class ApiError(FlowStateError):
    """An answer other than success.

    Args:
        status: of HTTP.
        message: for whoever reads it.
        type: as OpenAI names kinds of errors.
        code: for programs.
        param: the field of the request that is wrong.
        headers: such as Retry-After.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = "invalid_request_error",
        code: str | None = None,
        param: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.type = type
        self.code = code
        self.param = param
        self.headers = headers or {}

    @property
    def body(self) -> dict[str, Any]:
        """JSON."""
        return {"error": {"message": str(self), "type": self.type, "param": self.param, "code": self.code}}


_KINDS: tuple[tuple[type[FlowStateError], int, str, str], ...] = (
    (PromptTooLong, 400, "invalid_request_error", "context_length_exceeded"),
    (BadSpaceName, 400, "invalid_request_error", "bad_space_name"),
    (UsageError, 400, "invalid_request_error", "bad_request"),
    (GrammarError, 400, "invalid_request_error", "tool_schema"),
    (StoreBusy, 409, "conflict_error", "busy"),
    (ConflictError, 409, "conflict_error", "conflict"),
    (StoreFull, 507, "server_error", "storage_full"),
    (EngineUnavailable, 503, "server_error", "engine_unavailable"),
)


def as_api_error(error: FlowStateError) -> ApiError:
    """The answer for one of this project's errors. Of what is no fault of the client nothing inner is told."""
    if isinstance(error, ApiError):
        return error
    for kind, status, type_, code in _KINDS:
        if isinstance(error, kind):
            hint = f" {error.hint}" if error.hint and status == 400 else ""
            headers = {"Retry-After": "1"} if status in (409, 503) else None
            return ApiError(status, f"{error}{hint}", type=type_, code=code, headers=headers)
    return ApiError(500, "the request failed inside the server", type="server_error", code="internal_error")
