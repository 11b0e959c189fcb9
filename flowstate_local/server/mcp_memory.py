"""A memory as tools of the Model Context Protocol: search, open, add, timeline, index. For any transport.

How a call may reach which space is up to an `Access`: the process owner's over stdio, a key's over HTTP.
"""

import asyncio
import json
import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from importlib.metadata import version
from typing import Annotated, Any, Protocol

from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from mcp.types import (
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
    Tool,
    ToolAnnotations,
)
from pydantic import BaseModel, Field, ValidationError

from flowstate_local.errors import FlowStateError, UsageError
from flowstate_local.nodes import Frozen, NodeType
from flowstate_local.notes import Note, add_note
from flowstate_local.server import memory_reading as reading
from flowstate_local.stores.base import Store

Context = ServerRequestContext[Any, Any]

logger = logging.getLogger(__name__)

NAME = "flowstate"
INSTRUCTIONS = """\
A memory that outlives conversations. It holds typed nodes (one line each in the index), links between them, and the raw
results they rest on. Begin with `search` or `index`, then `open` an id to see the whole of it, hop by hop down to the
raw text (t12). `add` what is worth knowing next time, with its `source` where there is one. Nothing is ever changed: to
correct a node, add one whose refs say that it supersedes the old one. `timeline` says what was asked, and when."""
SPACE = {
    "type": "string",
    "maxLength": 200,
    "description": 'The memory to use; "default" if left out. One that is shared with you is called OWNER~space.',
}
MAX_FAULTS = 5


@dataclass(frozen=True)
class Place:
    """A space that a call may use, under the name it has in the store."""

    store: Store
    space: str


class Access(Protocol):
    """Who calls, and what they may do. Each method is asked anew for each call."""

    def may_add(self, context: Context) -> bool:
        """Whether `add` is offered."""

    def may_choose(self, context: Context) -> bool:
        """Whether a call may name its space."""

    def writer(self, context: Context) -> str:
        """Who adds, as the memory will say it."""

    def reading(self, context: Context, space: str | None) -> Place:
        """The space to read. Raises FlowStateError where that isn't allowed."""

    def writing(self, context: Context, space: str | None) -> AbstractAsyncContextManager[Place]:
        """The space to write to, for a moment. Raises FlowStateError where that isn't allowed."""

    def explain(self, error: FlowStateError) -> str:
        """An error in words that the caller may read."""


# --- what a tool takes ------------------------------------------------------------------------------------------


class Search(Frozen):
    """Find nodes by the words they hold."""

    words: Annotated[str, Field(max_length=200)] = ""
    """Words to look for, in any order; without any, the newest nodes."""
    type: NodeType | None = None
    """Only nodes of this type."""
    limit: Annotated[int, Field(ge=1, le=100)] = 20


class Open(Frozen):
    """Show what an id stands for."""

    id: Annotated[str, Field(min_length=1, max_length=64)]
    """A node (n7), a raw result (t12) or a page of it (t12#2), a request (r3), or folded requests (s1_10)."""
    hops: Annotated[int, Field(ge=0, le=8)] = 1
    """How far to follow a node's refs."""


class Time(Frozen):
    """List what was asked, or what happened in one request."""

    request: Annotated[str, Field(max_length=32)] | None = None
    """Show the events of this request instead of the list of requests."""
    before: Annotated[str, Field(max_length=32)] | None = None
    """List requests older than this one."""
    after: Annotated[int, Field(ge=0)] = 0
    """With request: list events after this number."""
    limit: Annotated[int, Field(ge=1, le=100)] = 20


class Nothing(Frozen):
    """No arguments."""


class NoteAdded(BaseModel):
    """Where a note went."""

    id: str
    request: str
    evidence: list[str] = []
    line: str


# --- the tools --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Verb:
    """One tool: what it is told, takes and answers."""

    title: str
    description: str
    takes: type[BaseModel]
    answers: type[BaseModel]
    read: Callable[[Place, Any], BaseModel] | None = None
    """None: it writes."""


def _search(place: Place, said: Search) -> BaseModel:
    return reading.search(place.store, place.space, said.words, said.type, said.limit)


def _open(place: Place, said: Open) -> BaseModel:
    return reading.opened(place.store.reader(place.space), said.id, said.hops)


def _timeline(place: Place, said: Time) -> BaseModel:
    if said.request is None:
        return reading.requests(place.store, place.space, said.before, said.limit)
    return reading.events(place.store, place.space, said.request, said.after, said.limit)


def _index(place: Place, said: Nothing) -> BaseModel:
    return reading.index(place.store, place.space)


VERBS = {
    "search": _Verb(
        "Search the memory",
        "Find nodes by the words they hold, the best match first; those that newer ones replace are marked.",
        Search,
        reading.SearchResult,
        _search,
    ),
    "open": _Verb(
        "Open an id",
        "Show a node with what it rests on, the raw text behind it page by page, or a request with its nodes.",
        Open,
        reading.Opened,
        _open,
    ),
    "timeline": _Verb(
        "Timeline",
        "List what was asked of this memory, the newest first; or, of one request, the events it was made of.",
        Time,
        reading.Timeline,
        _timeline,
    ),
    "index": _Verb(
        "Index",
        "One line for each node, the oldest first; old requests are folded into lines that can be opened.",
        Nothing,
        reading.IndexLines,
        _index,
    ),
    "add": _Verb(
        "Add a node",
        "Remember something: a typed node with a one-line summary, links to older nodes, and the text it comes from.",
        Note,
        NoteAdded,
    ),
}


def make_server(access: Access) -> Server[Any]:
    """The MCP server of the memories that `access` opens."""

    async def list_tools(context: Context, params: PaginatedRequestParams | None) -> ListToolsResult:
        may_choose = access.may_choose(context)
        offered = {n: v for n, v in VERBS.items() if v.read is not None or access.may_add(context)}
        return ListToolsResult(tools=[_tool(name, verb, may_choose) for name, verb in offered.items()])

    async def call_tool(context: Context, params: CallToolRequestParams) -> CallToolResult:
        verb = VERBS.get(params.name)
        if verb is None:
            raise MCPError(INVALID_PARAMS, f"there is no tool {params.name!r}; tools: {', '.join(VERBS)}")
        try:
            return _result(await _call(access, context, verb, params.arguments or {}))
        except ValidationError as error:
            return _failure(_faults(error))
        except FlowStateError as error:
            return _failure(access.explain(error))
        except Exception:
            logger.exception("tool %s failed", params.name)
            return _failure("the call failed inside the server; its log says why")

    return Server(
        NAME,
        version=version("flowstate-local"),
        title="FlowState memory",
        instructions=INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


async def _call(access: Access, context: Context, verb: _Verb, arguments: dict[str, Any]) -> BaseModel:
    arguments = dict(arguments)
    space = _space_of(arguments) if access.may_choose(context) else None
    said = verb.takes.model_validate(arguments)
    if verb.read is not None:
        return await asyncio.to_thread(verb.read, access.reading(context, space), said)
    if not access.may_add(context):
        raise UsageError("this memory is read-only here", hint="Ask its owner for access that may write.")
    assert isinstance(said, Note)
    async with access.writing(context, space) as place:
        added = await asyncio.to_thread(
            add_note, place.store, place.space, said, writer=access.writer(context)
        )
    node = added.node
    line = f"{node.id} {node.type}: {node.summary}"
    return NoteAdded(id=node.id, request=added.request, evidence=list(node.evidence), line=line)


def _space_of(arguments: dict[str, Any]) -> str | None:
    space = arguments.pop("space", None)
    if space is not None and not isinstance(space, str):
        raise UsageError("space: must be a text")
    return space


def _tool(name: str, verb: _Verb, may_choose: bool) -> Tool:
    schema = verb.takes.model_json_schema()
    if may_choose:
        schema.setdefault("properties", {})["space"] = SPACE
    reads = verb.read is not None
    return Tool(
        name=name,
        title=verb.title,
        description=verb.description,
        input_schema=schema,
        output_schema=verb.answers.model_json_schema(),
        annotations=ToolAnnotations(
            title=verb.title,
            read_only_hint=reads,
            destructive_hint=False,
            idempotent_hint=reads,
            open_world_hint=False,
        ),
    )


def _result(answer: BaseModel) -> CallToolResult:
    structured = answer.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
    # Clients that know nothing of structured content read the text.
    text = json.dumps(structured, ensure_ascii=False, separators=(",", ":"))
    return CallToolResult(content=[TextContent(text=text)], structured_content=structured)


def _failure(why: str) -> CallToolResult:
    return CallToolResult(content=[TextContent(text=why)], is_error=True)


def _faults(error: ValidationError) -> str:
    """What is wrong with the arguments, field by field, without repeating their values."""
    told = []
    for fault in error.errors(include_url=False, include_context=False, include_input=False)[:MAX_FAULTS]:
        where = ".".join(str(part) for part in fault["loc"]) or "arguments"
        told.append(f"{where}: {fault['msg'][:1].lower()}{fault['msg'][1:]}")
    return "; ".join(told)
