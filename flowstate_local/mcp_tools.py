"""Tools of MCP servers, as tools of the loop.

    async with mcp_tools("npx -y @modelcontextprotocol/server-everything") as tools:
        agent = Agent(engine, store, tools)

A connection is opened by a task of its own, for who opens it must also close it; calls come from any task. When a
server dies, the call that was on its way fails, and the next one connects anew.
"""

import asyncio
import json
import logging
import os
import re
import shlex
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pydantic import ValidationError

from flowstate_local.completion import Profile
from flowstate_local.errors import GrammarError, ToolError, UsageError
from flowstate_local.schema_rules import check_tool_schema
from flowstate_local.tools import DEFAULT_TIMEOUT_S, Tool, canonical_json

if TYPE_CHECKING:
    from mcp import Client
    from mcp.client._transport import TransportStreams
    from mcp.types import CallToolResult
    from mcp.types import Tool as RemoteTool

logger = logging.getLogger(__name__)

CONNECT_S = 30.0
"""How long a server may take to start and to greet."""
MAX_PAGES = 100
"""Of a list of tools; a server that never ends its list isn't followed further."""
MAX_DESCRIPTION = 1_000
"""Characters of a tool's description in the prompt: a foreign text must not fill it."""
MAX_PARAMETER_DESCRIPTION = 300
MAX_NAME = 64
_NOT_FOUND = 404

_WORD = re.compile(r"^([A-Za-z_][A-Za-z0-9_-]*)=(.*)$", re.DOTALL)
_VARIABLE = re.compile(r"\$(?:([A-Za-z_][A-Za-z0-9_]*)|\{([A-Za-z_][A-Za-z0-9_]*)\})")
_FORMATS = ("date", "time", "date-time", "uuid", "email", "uri", "ipv4")
"""Formats that grammars know. The others say nothing that JSON Schema itself would check."""


@dataclass(frozen=True)
class McpTarget:
    """Where an MCP server is: a URL, or a command that starts one."""

    url: str = ""
    command: tuple[str, ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    """Of each request to the URL, such as Authorization."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Of the command, besides the few harmless variables that it inherits."""
    cwd: str | None = None

    @classmethod
    def parse(cls, text: str) -> "McpTarget":
        """Read one line: `URL [Header=value ...]`, or `[NAME=value ...] command [argument ...]`.

        `$NAME` in a value stands for a variable of the environment, so that no secret need stand in the line.

        Raises:
            UsageError: it is empty, or its quotes don't match.
        """
        try:
            words = shlex.split(text)
        except ValueError as error:
            raise UsageError(f"MCP server {text!r}: {error}") from None
        if words and words[0].startswith(("http://", "https://")):
            return cls(url=words[0], headers=_assignments(words[1:]))
        first = next((i for i, word in enumerate(words) if not _WORD.match(word)), None)
        if first is None:
            raise UsageError(
                "an MCP server needs a URL or a command", hint="For example --mcp 'npx -y some-server'."
            )
        return cls(command=tuple(words[first:]), env=_assignments(words[:first]))

    def __str__(self) -> str:
        """How errors name it: without anything that may be a secret."""
        if self.url:
            parts = urlsplit(self.url)
            return f"{parts.scheme}://{parts.hostname}{f':{parts.port}' if parts.port else ''}{parts.path}"
        plain = (a for a in self.command[1:] if not a.startswith("-") and "=" not in a and "://" not in a)
        return " ".join([os.path.basename(self.command[0]), *list(plain)[:1]])


def _assignments(words: Iterable[str]) -> dict[str, str]:
    found = {}
    for word in words:
        match = _WORD.match(word)
        if match is None:
            raise UsageError(
                f"{word!r} is not of the form Name=value", hint="Put quotes around a value with blanks."
            )
        found[match[1]] = _VARIABLE.sub(_value_of, match[2])
    return found


def _value_of(variable: re.Match[str]) -> str:
    name = variable[1] or variable[2]
    if name not in os.environ:
        raise UsageError(f"${name} is not set", hint=f"export {name}=... before you start this.")
    return os.environ[name]


def _checked(headers: Mapping[str, str]) -> dict[str, str]:
    """Headers that can be sent. What is wrong with one is said without its value, which may be a key."""
    sent = {name: value.strip() for name, value in headers.items()}
    for name, value in sent.items():
        if not (value.isascii() and value.isprintable()):
            raise UsageError(f"header {name} holds characters that can't be sent")
    return sent


@asynccontextmanager
async def mcp_tools(
    target: str | McpTarget,
    *,
    headers: Mapping[str, str] | None = None,
    env: Mapping[str, str] | None = None,
    only: Collection[str] | None = None,
    taken: Collection[str] = (),
    profile: Profile = "guidance",
    strict: bool = False,
    timeout_s: float = DEFAULT_TIMEOUT_S,
) -> AsyncIterator[list[Tool]]:
    """The tools of one MCP server, connected for as long as this context lasts.

    What a server says of its tools is believed: one that calls a tool read-only or idempotent has calls repeated
    after a crash. Use servers that you trust.

    Args:
        target: a URL (streamable HTTP), a command line (stdio), or a `McpTarget`.
        headers: of each request to a URL, besides those of the target.
        env: variables of a command's environment, besides those of the target.
        only: names of the tools to take, as the server calls them; all if not given.
        taken: names that are in use; tools of these names get the server's name in front.
        profile: whose grammar must hold the arguments.
        strict: whether a tool whose arguments no grammar can hold is an error; else it is left out, or offered
            without the optional arguments that can't be held, and the log says so.
        timeout_s: seconds after which a call counts as failed.

    Raises:
        UsageError: the target makes no sense, or the package `mcp` is missing.
        ToolError: kind "unreachable": the server doesn't start or answer.
        GrammarError: with `strict`; names tool, path and keyword.
    """
    try:
        import mcp  # noqa: F401
    except ModuleNotFoundError as error:
        raise UsageError(
            f"MCP needs the package {error.name}", hint="pip install 'flowstate-local[mcp]'"
        ) from None
    if isinstance(target, str):
        target = McpTarget.parse(target)
    target = McpTarget(
        target.url,
        target.command,
        _checked({**target.headers, **(headers or {})}),
        {**target.env, **(env or {})},
        target.cwd,
    )
    connection = _Connection(target)
    try:
        client = await connection.client()
        listed = [t for t in await _listed(client, target) if only is None or t.name in only]
        prefix = client.server_info.name if client.server_info else str(target)
        names = _names([t.name for t in listed], _identifier(prefix), set(taken), str(target))
        make = _Maker(connection, profile, strict, timeout_s)
        yield [tool for t, name in zip(listed, names, strict=True) if name and (tool := make.tool(t, name))]
    finally:
        await connection.close()


async def _listed(client: "Client", target: McpTarget) -> list["RemoteTool"]:
    from mcp import MCPError

    found: list[RemoteTool] = []
    cursor: str | None = None
    for _ in range(MAX_PAGES):
        try:
            page = await client.list_tools(cursor=cursor)
        except MCPError as error:
            raise _unreachable(target, f"it doesn't list its tools: {error.message}") from None
        except ValidationError as error:
            raise _unreachable(
                target, f"its list of tools is no such list: {error.errors()[0]['msg']}"
            ) from None
        found += page.tools
        cursor = page.next_cursor
        if cursor is None:
            return found
    logger.warning("MCP server %s: its list of tools has no end; %d are taken", target, len(found))
    return found


# --- the connection ---------------------------------------------------------------------------------------------


class _Connection:
    """A server that is connected when it is needed, again and again."""

    def __init__(self, target: McpTarget) -> None:
        self.target = target
        self._life: _Life | None = None
        self._lock = asyncio.Lock()

    async def client(self) -> "Client":
        """A client that was alive just now. Raises ToolError "unreachable"."""
        async with self._lock:
            if self._life is None or self._life.ended.is_set():
                await self._end()
                self._life = _Life(self.target)
            return await self._life.client()

    @property
    def is_forgotten(self) -> bool:
        """Whether the server doesn't know our session any more: it answers 404, in whatever words."""
        return self._life is not None and _NOT_FOUND in self._life.refused

    def lost(self) -> None:
        """What was connected is of no use any more."""
        if self._life is not None:
            self._life.ended.set()

    async def close(self) -> None:
        """Disconnect, and end the server's process."""
        async with self._lock:
            await self._end()

    async def _end(self) -> None:
        life, self._life = self._life, None
        if life is not None:
            await life.close()


class _Life:
    """One connection from its start to its end."""

    def __init__(self, target: McpTarget) -> None:
        import anyio

        self.ended = asyncio.Event()
        self._target = target
        self.refused: list[int] = []
        """HTTP statuses of refusals since the greeting, or in it; the protocol's own errors don't tell them."""
        self._ready: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._scope = anyio.CancelScope()
        self._task = asyncio.create_task(self._hold())

    async def client(self) -> "Client":
        """The client, as soon as the server has greeted. Raises ToolError."""
        try:
            return await asyncio.wait_for(asyncio.shield(self._ready), CONNECT_S)
        except TimeoutError:
            await self.close()
            raise _unreachable(self._target, f"no answer within {CONNECT_S:g} s") from None

    async def close(self) -> None:
        """End it, and wait until it has ended."""
        self.ended.set()
        if not self._ready.done():
            self._scope.cancel()
        await asyncio.wait({self._task})
        if not self._ready.cancelled():
            self._ready.exception()  # whoever waited has it; if nobody did, it must not be reported as unheard

    async def _hold(self) -> None:
        from mcp import Client
        from mcp.types import Implementation

        why = "it was given up"
        try:
            with self._scope:
                watched = _watched(_transport(self._target, self.refused), self.ended)
                async with Client(
                    watched, client_info=Implementation(name="flowstate", version="")
                ) as client:
                    self.refused.clear()  # older servers refuse the question for the newest protocol
                    self._ready.set_result(client)
                    await self.ended.wait()
        except Exception as error:
            why = _innermost(error)
            logger.debug("MCP server %s: the connection ended: %s", self._target, why)
        finally:
            self.ended.set()
            if not self._ready.done():
                status = f"HTTP {self.refused[-1]}" if self.refused else why
                self._ready.set_exception(_unreachable(self._target, status))


@asynccontextmanager
async def _transport(target: McpTarget, refused: list[int]) -> AsyncIterator["TransportStreams"]:
    if target.command:
        from mcp import StdioServerParameters, stdio_client

        started = StdioServerParameters(
            command=target.command[0],
            args=list(target.command[1:]),
            env=dict(target.env),
            cwd=target.cwd,
        )
        async with stdio_client(started) as streams:
            yield streams
        return
    import httpx2
    from mcp.client.streamable_http import streamable_http_client

    async def note(response: httpx2.Response) -> None:
        if response.status_code >= 400:
            refused.append(response.status_code)

    # Tools have time limits of their own; one on reading would end the slow ones before.
    limits = httpx2.Timeout(CONNECT_S, read=None)
    async with (
        httpx2.AsyncClient(
            headers=dict(target.headers), timeout=limits, event_hooks={"response": [note]}
        ) as http,
        streamable_http_client(target.url, http_client=http) as streams,
    ):
        yield streams


@asynccontextmanager
async def _watched(
    transport: "AbstractAsyncContextManager[TransportStreams]", ended: asyncio.Event
) -> AsyncIterator["TransportStreams"]:
    """The transport, with a bell that rings when the server's side of it ends."""
    async with transport as (read, write):
        yield _Bell(read, ended), write


class _Bell:
    """A stream of messages that says when it has ended, which nobody asks it while no call is under way."""

    def __init__(self, stream: Any, ended: asyncio.Event) -> None:
        self._stream, self._ended = stream, ended

    @property
    def last_context(self) -> Any:
        """Of the sender, where the transport keeps it."""
        return getattr(self._stream, "last_context", None)

    async def receive(self) -> Any:
        """The next message."""
        return await self._stream.receive()

    async def aclose(self) -> None:
        """Close it."""
        await self._stream.aclose()

    def __aiter__(self) -> "_Bell":
        return self

    async def __anext__(self) -> Any:
        try:
            return await self._stream.__anext__()
        except BaseException:
            self._ended.set()
            raise

    async def __aenter__(self) -> "_Bell":
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> Any:
        return await self._stream.__aexit__(*error)


def _innermost(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _unreachable(target: McpTarget, why: str) -> ToolError:
    return ToolError(f"MCP server {target} can't be used: {why}", kind="unreachable", retryable=True)


# --- names ------------------------------------------------------------------------------------------------------


def _identifier(text: str) -> str:
    """A name that a tool can have here: MCP allows more characters, and more of them."""
    name = re.sub(r"[^A-Za-z0-9_]+", "_", text).strip("_") or "tool"
    return (f"_{name}" if name[0].isdigit() else name)[:MAX_NAME]


def _names(theirs: Sequence[str], prefix: str, taken: set[str], server: str) -> list[str | None]:
    """Our name for each of their tools; None for one whose name they gave twice, for it can't be called."""
    names: list[str | None] = []
    for place, their in enumerate(theirs):
        if their in theirs[:place]:
            logger.warning(
                "MCP server %s: it lists two tools called %r; the second is left out", server, their
            )
            names.append(None)
            continue
        wanted = _identifier(their)
        for name in (
            wanted,
            _identifier(f"{prefix}_{wanted}"),
            *(f"{wanted[:60]}_{n}" for n in range(2, 999)),
        ):
            if name not in taken:
                break
        taken.add(name)
        names.append(name)
    return names


# --- a tool -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Maker:
    connection: _Connection
    profile: Profile
    strict: bool
    timeout_s: float

    def tool(self, remote: "RemoteTool", name: str) -> Tool | None:
        """The tool of the loop that calls `remote`; None if no grammar can hold its arguments."""
        hints = remote.annotations
        idempotent = hints is not None and bool(hints.idempotent_hint or hints.read_only_hint)
        try:
            schema = self._holdable(name, _prepared(remote.input_schema))
            return Tool.from_schema(
                name,
                _cut(remote.description or remote.title or "", MAX_DESCRIPTION),
                schema,
                self._caller(remote.name, idempotent),
                idempotent=idempotent,
                timeout_s=self.timeout_s,
            )
        except (GrammarError, UsageError, RecursionError) as error:
            if self.strict:
                raise
            logger.warning(
                "MCP server %s: tool %s is left out: %s", self.connection.target, remote.name, error
            )
            return None

    def _holdable(self, name: str, schema: dict[str, Any]) -> dict[str, Any]:
        """The schema without the optional arguments that no grammar holds: the model then just can't give them."""
        while True:
            try:
                # Made for its checks: the same that registering the tool will do.
                cleaned = Tool.from_schema(name, "", schema, None).schema
                check_tool_schema(self.profile, name, cleaned)
                return schema
            except GrammarError as error:
                at_fault = _argument_of(error.path)
                if (
                    self.strict
                    or at_fault not in schema["properties"]
                    or at_fault in schema.get("required", ())
                ):
                    raise
                logger.warning(
                    "MCP server %s: argument %s is left out: %s", self.connection.target, at_fault, error
                )
                rest = {key: value for key, value in schema["properties"].items() if key != at_fault}
                schema = {**schema, "properties": rest}

    def _caller(self, their_name: str, idempotent: bool) -> Callable[..., Any]:
        async def call(**arguments: Any) -> str:
            return await _called(self.connection, their_name, arguments, idempotent)

        return call


async def _called(connection: _Connection, name: str, arguments: dict[str, Any], idempotent: bool) -> str:
    from mcp import MCPError
    from mcp.types import CONNECTION_CLOSED

    for attempt in (1, 2):
        client = await connection.client()
        try:
            result = await client.call_tool(name, arguments)
            break
        except MCPError as error:
            if connection.is_forgotten and attempt == 1:
                connection.lost()  # the server has begun anew and did nothing, so the call may simply be sent again
                continue
            if error.code == CONNECTION_CLOSED:
                connection.lost()
                raise ToolError(
                    "the connection to the MCP server was lost; whether the call took effect is unknown",
                    kind="connection_lost",
                    retryable=idempotent,
                ) from None
            raise ToolError(f"the MCP server refused the call: {error.message}", kind="refused") from None
    text = _text_of(result)
    if result.is_error:
        raise ToolError(text or "the tool failed and did not say why")
    return text


# --- results ----------------------------------------------------------------------------------------------------


def _text_of(result: "CallToolResult") -> str:
    """Texts as they are, other content named, and what is structured as JSON unless a text says the same."""
    parts = [_part(block) for block in result.content]
    structured = result.structured_content
    if structured is not None and not _says(parts, structured):
        parts.append(canonical_json(structured))
    return "\n".join(parts)


def _part(block: Any) -> str:
    if block.type == "text":
        return str(block.text)
    if block.type == "resource_link":
        return f"[link to {block.uri}]"
    if block.type == "resource":
        inside = block.resource
        if getattr(inside, "text", None) is not None:
            return str(inside.text)
        return f"[{inside.mime_type or 'resource'} {inside.uri}, {_size(inside.blob)}]"
    return f"[{block.type} {block.mime_type}, {_size(block.data)}]"


def _size(base64_text: str) -> str:
    return f"{len(base64_text) * 3 // 4 - base64_text[-2:].count('='):,} bytes"


def _says(parts: list[str], structured: Any) -> bool:
    """Whether the texts hold the structured content already, as they mostly do for clients that know only texts."""
    value = structured
    if isinstance(structured, dict) and set(structured) == {"result"}:
        value = structured["result"]  # how the official package wraps what is no object
    if value in parts or (isinstance(value, list) and value == parts):
        return True
    told = [_parsed(part) for part in parts]
    return structured in told or value in told or (isinstance(value, list) and value == told)


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


# --- schemas ----------------------------------------------------------------------------------------------------


def _argument_of(path: str) -> str:
    """`/properties/a~1b/items` -> `a/b`."""
    parts = path.split("/")
    return (
        parts[2].replace("~1", "/").replace("~0", "~") if parts[1:2] == ["properties"] and parts[2:] else ""
    )


def _prepared(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A schema as servers write it, in the words of this project. Only what forbids nothing is taken away."""
    prepared: dict[str, Any] = _reworded(dict(schema))
    prepared.setdefault("type", "object")
    prepared.setdefault("properties", {})
    return prepared


def _reworded(schema: Any, *, names: bool = False) -> Any:
    """`names`: the keys of this mapping are names of properties, not keywords."""
    if isinstance(schema, list):
        return [_reworded(item) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    if names:
        return {name: _reworded(value) for name, value in schema.items()}
    said: dict[str, Any] = {}
    for keyword, value in schema.items():
        if keyword in ("enum", "const", "required", "default", "examples"):
            said[keyword] = value
        elif keyword == "$ref" and isinstance(value, str):
            said[keyword] = value.replace("#/definitions/", "#/$defs/")
        elif keyword == "description" and isinstance(value, str):
            said[keyword] = _cut(value, MAX_PARAMETER_DESCRIPTION)
        elif keyword in ("properties", "$defs", "definitions"):
            said["$defs" if keyword == "definitions" else keyword] = _reworded(value, names=True)
        else:
            said[keyword] = _reworded(value)
    if "properties" in said and said.get("additionalProperties") in (True, {}):
        del said["additionalProperties"]  # what a model may add unasked, it need not
    bounded = {"pattern", "minLength", "maxLength"} & set(said)
    if "format" in said and (said.get("type") != "string" or bounded or said["format"] not in _FORMATS):
        del said["format"]
    return said


def _cut(text: str, most: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 1] + "…"
