"""POST /v1/responses, as clients of OpenAI know it: a response is a request of a space."""

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import Field

from flowstate_local.completion import Sampling
from flowstate_local.errors import FlowStateError, UsageError
from flowstate_local.loop import RequestResult
from flowstate_local.nodes import RequestId
from flowstate_local.server.api_errors import ApiError, as_api_error
from flowstate_local.server.chat import (
    STREAM_OR_JSON,
    Authorization,
    DateHeader,
    FunctionTool,
    KeyHeader,
    Lenient,
    SpaceHeader,
    external_tools,
    sampling_of,
    streamed,
)
from flowstate_local.server.conversation import Turn, call_id, read_call_id, read_turn
from flowstate_local.server.service import Service, TurnOptions
from flowstate_local.server.spaces import DEFAULT_SPACE, SpaceRef, find_space
from flowstate_local.server.turn_stream import KEEP_ALIVE, TurnStream, sse

router = APIRouter(prefix="/v1", tags=["OpenAI"])
PREFIX = "resp_"


class ResponseTool(FunctionTool):
    """A tool that the client runs."""

    type: Literal["function"]


class ResponseRequest(Lenient):
    """The body of a response to be."""

    model: str = ""
    input: str | Annotated[list[dict[str, Any]], Field(min_length=1, max_length=10_000)]
    instructions: str | None = None
    previous_response_id: Annotated[str, Field(max_length=1_000)] | None = None
    """Names the space too. The memory of a space is one line of requests: going back to an older response goes on
    from the newest."""
    conversation: str | dict[str, Any] | None = None
    """Names the space, unless a header or the response before does."""
    tools: list[ResponseTool] = []
    tool_choice: Literal["auto", "none"] = "auto"
    stream: bool = False
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    metadata: dict[str, str] | None = None
    user: str | None = None

    @property
    def sampling(self) -> Sampling:
        """Decoding parameters, the paper's where the client says nothing."""
        return sampling_of(self.temperature, self.top_p, self.max_output_tokens)

    @property
    def space(self) -> str | None:
        """The space that the body names."""
        named = self.conversation
        return (str(named.get("id") or "") if isinstance(named, dict) else named) or self.user

    @property
    def turn(self) -> Turn:
        """What is new. Raises UsageError."""
        items: list[dict[str, Any]] = (
            [{"role": "user", "content": self.input}] if isinstance(self.input, str) else self.input
        )
        system = [{"role": "system", "content": self.instructions}] if self.instructions else []
        return read_turn([*system, *map(_as_message, items)])


@dataclass(frozen=True)
class ResponseId:
    """What a response is: a request of a space, from its start or from the result of a call on."""

    space: str
    """As its caller names it."""
    request: str
    after: str = ""
    """Raw result with which this part of the request began."""

    def __str__(self) -> str:
        """As clients see it."""
        said = json.dumps([self.space, self.request, self.after], separators=(",", ":"))
        return PREFIX + base64.urlsafe_b64encode(said.encode()).decode().rstrip("=")

    @classmethod
    def read(cls, text: str) -> "ResponseId":
        """Read it back. Raises ApiError."""
        try:
            encoded = text.removeprefix(PREFIX)
            parts = json.loads(base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)))
            space, request, after = parts
            if not all(isinstance(part, str) for part in parts) or str(cls(space, request, after)) != text:
                raise ValueError(text)
        except ValueError:
            raise unknown_response(text) from None
        return cls(space, request, after)


@router.post("/responses", summary="A turn, as a response", response_model=None, responses=STREAM_OR_JSON)
async def respond(
    body: ResponseRequest,
    request: Request,
    authorization: Authorization = None,
    space: SpaceHeader = None,
    date: DateHeader = None,
    key: KeyHeader = None,
) -> JSONResponse | StreamingResponse:
    """`previous_response_id` goes on in its space; without one, a header, `conversation` or `user` names the space."""
    service: Service = request.app.state.service
    caller = service.caller(authorization, "write")
    before = ResponseId.read(body.previous_response_id) if body.previous_response_id else None
    named = space or (before.space if before else body.space) or DEFAULT_SPACE
    ref = find_space(service.tenants, caller, named, write=True)
    if before is not None:
        _check_known(service, ref, before, str(body.previous_response_id))
    turn = body.turn
    shown = _Shown(service, body, turn, named)
    stream = TurnStream()
    work = service.in_background(
        service.turn(
            caller,
            ref,
            turn,
            TurnOptions(
                tools=external_tools(list(body.tools), body.tool_choice),
                sampling=body.sampling,
                date=date,
                key=key,
                on_text=stream.write if body.stream else None,
                on_request=shown.started,
            ),
        )
    )
    if body.stream:
        return streamed(_events(work, stream, shown))
    return JSONResponse(shown.ended(await asyncio.shield(work)))


@router.get("/responses/{response}", summary="A response again")
async def response_again(
    response: str, request: Request, authorization: Authorization = None
) -> dict[str, Any]:
    """As it ended; the tokens are not counted again."""
    service: Service = request.app.state.service
    caller = service.caller(authorization, "read")
    found = ResponseId.read(response)
    ref = find_space(service.tenants, caller, found.space, write=False)
    record = service.store.reader(ref.stored).request(RequestId(found.request))
    if record is None:
        raise unknown_response(response, status=404)
    name = f"msg_{response.removeprefix(PREFIX)}"
    message = {"type": "message", "id": name, "role": "assistant", "status": "completed"}
    output = [message | {"content": [_text(record.message)]}]
    return _shell(response, service, int(record.at)) | {"status": "completed", "output": output}


def unknown_response(said: str, status: int = 400) -> ApiError:
    """For a response that isn't there, or isn't the caller's."""
    return ApiError(
        status,
        f"there is no response {said!r}",
        code="previous_response_not_found" if status == 400 else "response_not_found",
        param="previous_response_id" if status == 400 else None,
    )


class _Shown:
    """A response as the client sees it while it comes to be."""

    def __init__(self, service: Service, body: ResponseRequest, turn: Turn, name: str) -> None:
        self._service = service
        self._body = body
        self._name = name
        self._at = int(time.time())
        self.id = ""
        """Known when the request is durable."""
        for said in turn.results:  # the request is there already
            self.started(*read_call_id(said))

    def started(self, request: RequestId, after: str = "") -> None:
        """The request began, or goes on after a raw result."""
        self.id = str(ResponseId(self._name, request, after))

    def begun(self) -> dict[str, Any]:
        """The object before there is anything in it."""
        body = self._body
        return _shell(self.id, self._service, self._at) | {
            "instructions": body.instructions,
            "previous_response_id": body.previous_response_id,
            "metadata": body.metadata or {},
            "temperature": body.sampling.temperature,
            "top_p": body.sampling.top_p,
            "max_output_tokens": body.max_output_tokens,
            "tools": [{**tool.model_dump(), "strict": True} for tool in body.tools],
            "tool_choice": body.tool_choice,
        }

    def ended(self, result: RequestResult) -> dict[str, Any]:
        """The whole object."""
        if not self.id:
            self.started(result.request)
        is_whole = result.outcome in ("replied", "waiting")
        return self.begun() | {
            "status": "completed" if is_whole else "incomplete",
            "incomplete_details": None if is_whole else {"reason": "max_output_tokens"},
            "output": [self.item(result)],
            "usage": _usage(result),
        }

    def item(self, result: RequestResult) -> dict[str, Any]:
        """What it says, or whom it calls."""
        if result.call is None:
            return self.message([_text(result.message)], "completed")
        said = call_id(result.call)
        return {
            "type": "function_call",
            "id": f"fc_{said}",
            "call_id": said,
            "name": result.call.name,
            "arguments": json.dumps(result.call.arguments, ensure_ascii=False),
            "status": "completed",
        }

    def message(self, content: list[dict[str, Any]], status: str) -> dict[str, Any]:
        """A message item."""
        name = f"msg_{self.id.removeprefix(PREFIX)}"
        return {"type": "message", "id": name, "role": "assistant", "status": status, "content": content}


async def _events(
    work: "asyncio.Future[RequestResult]", stream: TurnStream, shown: _Shown
) -> AsyncIterator[str]:
    """Server-sent events, in the order in which OpenAI sends them."""
    writer = _Writer(shown)
    try:
        async for piece in stream.texts(work):
            if not shown.id and work.done():
                shown.ended(work.result())
            for event in writer.piece(piece):
                yield event
        for event in writer.end(work.result()):
            yield event
    except FlowStateError as error:
        told = as_api_error(error)
        yield writer.event("error", code=told.code, message=str(told), param=told.param)


class _Writer:
    """Turns what happens into events."""

    def __init__(self, shown: _Shown) -> None:
        self._shown = shown
        self._numbers = count()
        self._begun = False
        self._text: str | None = None
        """Of the message so far; None before its first piece."""

    def event(self, kind: str, **fields: Any) -> str:
        """One event, numbered."""
        return sse({"type": kind, "sequence_number": next(self._numbers), **fields}, kind)

    def piece(self, piece: str) -> Iterator[str]:
        """A piece of the reply, or "" after a silence."""
        if self._shown.id:
            yield from self._begin()
        if not piece:
            yield KEEP_ALIVE
            return
        if self._text is None:
            yield from self._begin_message()
        self._text = (self._text or "") + piece
        yield self._of_text("response.output_text.delta", delta=piece, logprobs=[])

    def end(self, result: RequestResult) -> Iterator[str]:
        """How the turn ended."""
        response = self._shown.ended(result)
        yield from self._begin()
        item = response["output"][0]
        yield from self._end_message(item) if result.call is None else self._call(item)
        yield self.event(f"response.{response['status']}", response=response)

    def _begin(self) -> Iterator[str]:
        if not self._begun:
            self._begun = True
            for kind in ("response.created", "response.in_progress"):
                yield self.event(kind, response=self._shown.begun())

    def _begin_message(self) -> Iterator[str]:
        self._text = ""
        item = self._shown.message([], "in_progress")
        yield self.event("response.output_item.added", output_index=0, item=item)
        yield self._of_text("response.content_part.added", part=_text(""))

    def _end_message(self, item: dict[str, Any]) -> Iterator[str]:
        if self._text is None:
            yield from self._begin_message()
        part = item["content"][0]
        yield self._of_text("response.output_text.done", text=part["text"], logprobs=[])
        yield self._of_text("response.content_part.done", part=part)
        yield self.event("response.output_item.done", output_index=0, item=item)

    def _call(self, item: dict[str, Any]) -> Iterator[str]:
        empty = item | {"arguments": "", "status": "in_progress"}
        yield self.event("response.output_item.added", output_index=0, item=empty)
        place = {"item_id": item["id"], "output_index": 0}
        arguments = item["arguments"]
        yield self.event("response.function_call_arguments.delta", **place, delta=arguments)
        yield self.event(
            "response.function_call_arguments.done", **place, name=item["name"], arguments=arguments
        )
        yield self.event("response.output_item.done", output_index=0, item=item)

    def _of_text(self, kind: str, **fields: Any) -> str:
        place = {"item_id": self._shown.message([], "")["id"], "output_index": 0, "content_index": 0}
        return self.event(kind, **place, **fields)


# --- pieces of the objects ----------------------------------------------------------------------------------------


def _shell(said: str, service: Service, at: int) -> dict[str, Any]:
    return {
        "id": said,
        "object": "response",
        "created_at": at,
        "status": "in_progress",
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "model": service.model,
        "output": [],
        "parallel_tool_calls": False,
        "temperature": None,
        "tool_choice": "auto",
        "tools": [],
        "top_p": None,
        "usage": None,
    }


def _text(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _usage(result: RequestResult) -> dict[str, Any]:
    return {
        "input_tokens": result.prompt_tokens,
        "input_tokens_details": {"cached_tokens": result.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": result.generated_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": result.prompt_tokens + result.generated_tokens,
    }


def _as_message(item: dict[str, Any]) -> dict[str, Any]:
    """An item of the input as a message of a chat."""
    kind = item.get("type", "message")
    if kind == "function_call_output":
        return {"role": "tool", "tool_call_id": item.get("call_id"), "content": item.get("output")}
    if kind in ("function_call", "reasoning"):
        return {"role": "assistant"}
    if kind != "message":
        raise UsageError(f"an input item of type {kind!r}; messages and outputs of functions are taken")
    return item


def _check_known(service: Service, ref: SpaceRef, before: ResponseId, said: str) -> None:
    """Raise ApiError unless the space has that request, ended or not."""
    head = service.store.head(ref.stored)
    if before.request != head.open_request and not service.store.reader(ref.stored).request(
        RequestId(before.request)
    ):
        raise unknown_response(said)
