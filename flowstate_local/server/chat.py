"""POST /v1/chat/completions and /v1/models, as clients of OpenAI know them."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterable
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Header, Request
from fastapi.responses import JSONResponse, StreamingResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel, ConfigDict, Field

from flowstate_local.completion import Sampling
from flowstate_local.errors import FlowStateError
from flowstate_local.loop import RequestResult
from flowstate_local.server.api_errors import as_api_error
from flowstate_local.server.conversation import call_id, read_turn
from flowstate_local.server.service import Service, TurnOptions
from flowstate_local.server.spaces import DEFAULT_SPACE, find_space
from flowstate_local.server.turn_stream import KEEP_ALIVE, TurnStream, sse
from flowstate_local.tools import Tool

router = APIRouter(prefix="/v1", tags=["OpenAI"])


class Lenient(BaseModel):
    """Fields that this server doesn't know are ignored: clients send new ones every month."""

    model_config = ConfigDict(extra="ignore")


class FunctionTool(Lenient):
    """A tool that the client runs."""

    name: str
    description: str = ""
    parameters: dict[str, Any] = {"type": "object", "properties": {}}


class ToolSpec(Lenient):
    """One of `tools`."""

    type: Literal["function"]
    function: FunctionTool


class StreamOptions(Lenient):
    """What a stream carries."""

    include_usage: bool = False


class ChatRequest(Lenient):
    """The body of a chat completion."""

    model: str = ""
    messages: Annotated[list[dict[str, Any]], Field(min_length=1, max_length=10_000)]
    tools: list[ToolSpec] = []
    tool_choice: Literal["auto", "none"] = "auto"
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    seed: int | None = None
    n: Literal[1] = 1
    user: str | None = None
    """Names the space, unless a header or the path does."""

    @property
    def sampling(self) -> Sampling:
        """Decoding parameters, the paper's where the client says nothing."""
        return sampling_of(
            self.temperature, self.top_p, self.max_completion_tokens or self.max_tokens, self.seed
        )


def sampling_of(
    temperature: float | None, top_p: float | None, max_tokens: int | None, seed: int | None = None
) -> Sampling:
    """Decoding parameters, the paper's where the client says nothing."""
    preset = Sampling()
    return Sampling(
        temperature=preset.temperature if temperature is None else temperature,
        top_p=preset.top_p if top_p is None else top_p,
        max_tokens=max_tokens or preset.max_tokens,
        seed=seed,
    )


SpaceHeader = Annotated[str | None, Header(alias="X-FlowState-Space", description="The memory to use.")]
DateHeader = Annotated[
    str | None,
    Header(alias="X-FlowState-Date", max_length=100, description="Today, as the model should see it."),
]
KeyHeader = Annotated[str | None, Header(alias="Idempotency-Key", max_length=200)]
_BEARER = HTTPBearer(auto_error=False, description="An API key.")


async def _authorization(
    credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(_BEARER)],
) -> str | None:
    return f"{credentials.scheme} {credentials.credentials}" if credentials else None


Authorization = Annotated[str | None, Depends(_authorization)]
"""The header of that name, declared so that OpenAPI clients know how to log in."""
STREAM_OR_JSON: dict[int | str, dict[str, Any]] = {
    200: {"description": "Whole, or as server-sent events", "content": {"text/event-stream": {}}}
}


@router.get("/models", summary="The model that is served")
async def models(request: Request, authorization: Authorization = None) -> dict[str, Any]:
    """As OpenAI lists them."""
    service: Service = request.app.state.service
    service.caller(authorization, "read")
    one = {"id": service.model, "object": "model", "created": 0, "owned_by": "flowstate_local"}
    return {"object": "list", "data": [one]}


@router.post(
    "/chat/completions",
    summary="A turn of a conversation with a memory",
    response_model=None,
    responses=STREAM_OR_JSON,
)
async def chat(
    body: ChatRequest,
    request: Request,
    authorization: Authorization = None,
    space: SpaceHeader = None,
    date: DateHeader = None,
    key: KeyHeader = None,
) -> JSONResponse | StreamingResponse:
    """Only messages after the last one of the assistant are read: the memory knows the rest."""
    return await _answer(
        request.app.state.service, body, space or body.user or DEFAULT_SPACE, authorization, date, key
    )


@router.post(
    "/spaces/{space}/chat/completions",
    summary="The same, the space in the path",
    response_model=None,
    responses=STREAM_OR_JSON,
)
async def chat_in_space(
    space: str,
    body: ChatRequest,
    request: Request,
    authorization: Authorization = None,
    date: DateHeader = None,
    key: KeyHeader = None,
) -> JSONResponse | StreamingResponse:
    """For clients that can only be given a base URL."""
    return await _answer(request.app.state.service, body, space, authorization, date, key)


async def _answer(
    service: Service,
    body: ChatRequest,
    space: str,
    authorization: str | None,
    date: str | None,
    key: str | None,
) -> JSONResponse | StreamingResponse:
    caller = service.caller(authorization, "write")
    ref = find_space(service.tenants, caller, space, write=True)
    stream = TurnStream()
    # A client that goes away doesn't stop its request: it is durable, and the next turn finds what it came to.
    work = service.in_background(
        service.turn(
            caller,
            ref,
            read_turn(body.messages),
            TurnOptions(
                tools=external_tools([tool.function for tool in body.tools], body.tool_choice),
                sampling=body.sampling,
                date=date,
                key=key,
                on_text=stream.write if body.stream else None,
            ),
        )
    )
    head = {"id": f"chatcmpl-{time.time_ns():x}", "created": int(time.time()), "model": service.model}
    if body.stream:
        return streamed(_events(work, stream, head, include_usage=body.stream_options.include_usage))
    result = await asyncio.shield(work)
    choice = {"index": 0, "message": _message(result), "finish_reason": _finish(result), "logprobs": None}
    return JSONResponse(head | {"object": "chat.completion", "choices": [choice], "usage": usage_of(result)})


async def _events(
    work: "asyncio.Future[RequestResult]", stream: TurnStream, head: dict[str, Any], *, include_usage: bool
) -> AsyncIterator[str]:
    """Server-sent events: the message while it is written, then calls and the reason it ended."""
    head = head | {"object": "chat.completion.chunk"}

    def event(delta: dict[str, Any], finish: str | None = None) -> str:
        choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}
        return sse(head | {"choices": [choice]})

    try:
        yield event({"role": "assistant", "content": ""})
        async for piece in stream.texts(work):
            yield event({"content": piece}) if piece else KEEP_ALIVE
        result = work.result()
        if result.call is not None:
            yield event({"tool_calls": [{"index": 0, **_call(result)}]})
        yield event({}, _finish(result))
        if include_usage:
            yield sse(head | {"choices": [], "usage": usage_of(result)})
    except FlowStateError as error:
        yield sse(as_api_error(error).body)
    yield "data: [DONE]\n\n"


def external_tools(functions: Iterable[FunctionTool], choice: str) -> list[Tool]:
    """The client's tools as the loop knows them; none where it says that none may be called."""
    if choice == "none":
        return []
    return [Tool.from_schema(f.name, f.description, f.parameters, None) for f in functions]


def streamed(events: AsyncIterator[str]) -> StreamingResponse:
    """A response of server-sent events that no proxy holds back."""
    headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
    return StreamingResponse(events, media_type="text/event-stream", headers=headers)


def _message(result: RequestResult) -> dict[str, Any]:
    if result.call is not None:
        return {"role": "assistant", "content": None, "tool_calls": [_call(result)]}
    return {"role": "assistant", "content": result.message}


def _call(result: RequestResult) -> dict[str, Any]:
    assert result.call is not None
    arguments = json.dumps(result.call.arguments, ensure_ascii=False)
    return {
        "id": call_id(result.call),
        "type": "function",
        "function": {"name": result.call.name, "arguments": arguments},
    }


def _finish(result: RequestResult) -> str:
    if result.outcome == "waiting":
        return "tool_calls"
    return "stop" if result.outcome == "replied" else "length"


def usage_of(result: RequestResult) -> dict[str, Any]:
    """Of all steps of the request so far."""
    return {
        "prompt_tokens": result.prompt_tokens,
        "completion_tokens": result.generated_tokens,
        "total_tokens": result.prompt_tokens + result.generated_tokens,
        "prompt_tokens_details": {"cached_tokens": result.cached_tokens},
    }
