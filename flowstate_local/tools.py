"""Tools: typed Python functions that the model may call.

`@tool` reads a function's signature and docstring, `Tool.from_schema` takes a JSON Schema; `Toolbox` is the sorted set
that one request offers. A tool's own failing never raises out of `Toolbox.run`: it becomes a `ToolFailure`, which the
model reads and the log keeps.
"""

import asyncio
import contextvars
import dataclasses
import importlib
import inspect
import json
import math
import os
import re
import sys
import time
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from datetime import time as clock_time
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from typing import Any, Literal, cast, overload
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.errors import PydanticUserError
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import SchemaError

from flowstate_local.completion import Profile
from flowstate_local.errors import ToolError, UsageError
from flowstate_local.events import ToolFailure
from flowstate_local.nodes import EvidenceId, RequestId
from flowstate_local.protocol import ToolCall
from flowstate_local.schema_arguments import checker
from flowstate_local.schema_rules import MAX_TOOLS, check_tool_schema
from flowstate_local.tool_threads import THREADS

DEFAULT_TIMEOUT_S = 60.0
MAX_RESULT_DEPTH = 100
"""Levels of nesting in a result; deeper ones are cyclic or of no use to a reader."""

_NAME = re.compile(r"^[a-zA-Z_][a-zA-Z0-9_]{0,63}$")
_SECTION = re.compile(r"^(Args|Arguments|Returns|Raises|Yields|Example|Examples|Note|Notes):\s*$")
_ARGUMENT = re.compile(r"^\*{0,2}(\w+)\s*(?:\([^)]*\))?:\s*(.*)$")


@dataclass(frozen=True)
class ToolContext:
    """What a tool may want to know about the call; a parameter annotated with it is filled in by the runtime."""

    idempotency_key: str = ""
    """The same for every attempt of one call, so that a service can refuse to do it twice."""
    space: str = ""
    request: RequestId = RequestId("")
    evidence: EvidenceId = EvidenceId("")
    """The id under which the raw result will be kept, if a request called."""
    task: str = ""
    """The task that called, or on whose behalf the request runs."""
    step: str = ""
    """The step of that task."""


@dataclass(frozen=True)
class ToolResult:
    """What a call brought back. `raw` is kept byte for byte; on a failure it is the failure's text."""

    raw: bytes
    failure: ToolFailure | None
    duration_s: float
    form: Literal["json", "text", "bytes"] = "text"
    """What `raw` was made from: text and bytes are as the tool returned them, anything else became JSON."""


@dataclass(frozen=True, eq=False)
class Tool:
    """A function the model may call. Still callable from Python as before."""

    name: str
    description: str
    """The first paragraph of the docstring, on one line."""
    schema: dict[str, Any]
    """JSON Schema of the arguments: closed objects, titles removed, references kept in $defs."""
    idempotent: bool
    """May be run again with the same key after a crash; any other tool then reports an unknown outcome."""
    timeout_s: float
    function: Callable[..., Any] = field(repr=False)
    for_model: bool = field(repr=False)
    """Whether a model may call it; one that only tasks call may take any JSON."""
    _parse: Callable[[Mapping[str, Any]], dict[str, Any]] = field(repr=False)
    """Arguments as the model wrote them -> those of `function`; raises ToolError "bad_arguments"."""
    _context: str | None = field(repr=False, default=None)
    external: bool = False
    """Whether whoever asked runs it: a call of it lets the request wait for `Agent.supply`."""

    @classmethod
    def from_schema(
        cls,
        name: str,
        description: str,
        schema: Mapping[str, Any],
        function: Callable[..., Any] | None,
        *,
        idempotent: bool = False,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        for_model: bool = True,
    ) -> "Tool":
        """Make a tool of a JSON Schema, where no Python signature says what its arguments are.

        Args:
            name: what the model calls it.
            description: for the model; line breaks become blanks.
            schema: of the arguments, an object with its references in $defs. Objects that don't say what else they
                may hold are closed.
            function: called with the arguments by name, checked against the schema and otherwise as the model wrote
                them; sync or async. None: the tool is external, and whoever asks the agent runs it.
            idempotent: see `tool`.
            timeout_s: see `tool`.
            for_model: see `tool`.

        Raises:
            UsageError: a name no tool can have, or a schema that is none of an object.
            GrammarError: parameters that no grammar can hold; names tool, path and keyword.
        """
        _check_header(name, timeout_s)
        cleaned: dict[str, Any] = _clean(dict(schema))
        parse = checker(name, cleaned)
        if for_model:
            check_tool_schema("guidance", name, cleaned)
        return cls(
            name=name,
            description=_line(description),
            schema=cleaned,
            idempotent=idempotent,
            timeout_s=float(timeout_s),
            function=function or _never,
            for_model=for_model,
            _parse=parse,
            external=function is None,
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function itself, without validation or timeout."""
        return self.function(*args, **kwargs)

    @property
    def signature(self) -> str:
        """One line for the prompt: name, parameters with their types and bounds, description."""
        text = f"{self.name}({', '.join(_parameters(self.schema))})"
        about = [self.description.rstrip(".")] if self.description else []
        properties: dict[str, Any] = self.schema.get("properties", {})
        notes = [
            f"{name}: {_line(p['description'])}" for name, p in properties.items() if p.get("description")
        ]
        if notes:
            about.append("; ".join(notes))
        return f"{text} - {'. '.join(about)}" if about else text

    def bind(self, arguments: Mapping[str, Any], context: ToolContext | None = None) -> dict[str, Any]:
        """Validate and convert `arguments` as the model wrote them; omitted ones are left to the defaults.

        Raises:
            ToolError: kind "bad_arguments", naming every field that is wrong.
        """
        bound = self._parse(arguments)
        if self._context is not None:
            bound[self._context] = context or ToolContext()
        return bound


@overload
def tool(function: Callable[..., Any], /) -> Tool: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    idempotent: bool = False,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    for_model: bool = True,
) -> Callable[[Callable[..., Any]], Tool]: ...
def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    idempotent: bool = False,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    for_model: bool = True,
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Make a tool of a typed function, sync or async.

    Parameters may be str, int, float, bool, Literal, Enum, list, dict[str, T], Optional, pydantic models,
    dataclasses, `typing_extensions.TypedDict`, and `Annotated[..., Field(ge=..., max_length=...)]`. A default makes a parameter
    optional. The docstring's first paragraph and its `Args:` section tell the model what they are for.

    Args:
        function: the function, when used without parentheses.
        name: what the model calls it; the function's name if not given.
        description: one line for the model; the docstring's first paragraph if not given.
        idempotent: whether a call interrupted by a crash may simply be run again with the same key.
        timeout_s: seconds after which the call counts as failed. An async function is cancelled then. A sync
            function runs in a thread, and a thread can't be stopped: it goes on in the background, unheard.
        for_model: False for a tool that only the steps of tasks call: no agent is offered it, and its parameters may
            be of types that no grammar can hold, such as `Any` or `dict[str, Any]`.

    Raises:
        UsageError: a parameter without annotation, `*args`, `**kwargs`, or a name no tool can have.
        GrammarError: a parameter type that no grammar can hold; names tool, path and keyword.
    """

    def make(function: Callable[..., Any]) -> Tool:
        return _make(
            function,
            name=name,
            description=description,
            idempotent=idempotent,
            timeout_s=float(timeout_s),
            for_model=for_model,
        )

    return make if function is None else make(function)


def _make(
    function: Callable[..., Any],
    *,
    name: str | None,
    description: str | None,
    idempotent: bool,
    timeout_s: float,
    for_model: bool,
) -> Tool:
    name = name or str(getattr(function, "__name__", ""))
    _check_header(name, timeout_s)
    doc, arguments = _docstring(function)
    fields: dict[str, Any] = {}
    parameters: dict[str, str] = {}
    context = None
    for parameter, annotation in _annotations(name, function):
        if annotation is ToolContext:
            context = parameter.name
            continue
        key = f"p{len(fields)}"  # aliases keep names such as `schema` or `copy` from meeting pydantic's own
        default = ... if parameter.default is inspect.Parameter.empty else None
        fields[key] = (
            annotation,
            Field(default, alias=parameter.name, description=arguments.get(parameter.name)),
        )
        parameters[key] = parameter.name
    try:
        model = create_model(name, __config__=ConfigDict(extra="forbid"), **fields)
        schema = _clean(model.model_json_schema(schema_generator=_Schema))
    except (PydanticUserError, SchemaError, ValueError, TypeError, NameError) as error:
        raise UsageError(f"tool {name}: no JSON Schema for its parameters: {_line(str(error))}") from error
    if for_model:
        check_tool_schema("guidance", name, schema)
    return Tool(
        name=name,
        description=_line(description if description is not None else doc),
        schema=schema,
        idempotent=idempotent,
        timeout_s=timeout_s,
        function=function,
        for_model=for_model,
        _parse=_by_model(model, parameters),
        _context=context,
    )


def _never(**arguments: Any) -> Any:
    """In place of the function that an external tool has not got here."""
    raise ToolError("this tool is run by whoever asked, and nobody brings its result here", kind="external")


def _check_header(name: str, timeout_s: float) -> None:
    if not _NAME.match(name):
        raise UsageError(
            f"a tool can't be called {name!r}",
            hint="Use letters, digits and underscores, 64 at most; pass name=... for a lambda or a partial.",
        )
    if not timeout_s > 0:
        raise UsageError(f"tool {name}: timeout_s must be positive, not {timeout_s}")


def _by_model(
    model: type[BaseModel], parameters: Mapping[str, str]
) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """Parse with a pydantic model; `parameters`: its field -> the parameter of the function."""

    def parse(arguments: Mapping[str, Any]) -> dict[str, Any]:
        try:
            parsed = model.model_validate(dict(arguments))
        except ValidationError as error:
            raise ToolError(_explain(error), kind="bad_arguments") from None
        return {p: getattr(parsed, f) for f, p in parameters.items() if f in parsed.model_fields_set}

    return parse


class _Schema(GenerateJsonSchema):
    """pydantic's schema without defaults: an optional argument is one the model may leave out."""

    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}

    def default_schema(self, schema: Any) -> Any:
        return self.generate_inner(schema["schema"])


def _annotations(name: str, function: Callable[..., Any]) -> Iterator[tuple[inspect.Parameter, Any]]:
    try:
        signature = inspect.signature(function)
        hints = typing.get_type_hints(inspect.unwrap(function), include_extras=True)
    except (TypeError, ValueError, NameError) as error:
        raise UsageError(f"tool {name}: its signature can't be read: {error}") from error
    for parameter in signature.parameters.values():
        if parameter.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
            raise UsageError(f"tool {name}: parameter {parameter} can't be described to a model")
        if parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
            raise UsageError(
                f"tool {name}: parameter {parameter.name} is positional-only; tools are called by name"
            )
        if parameter.name not in hints:
            raise UsageError(f"tool {name}: parameter {parameter.name} has no type annotation")
        yield parameter, hints[parameter.name]


def _clean(schema: Any, *, names: bool = False) -> Any:
    """Drop titles and close every object. `names`: the keys of this mapping are property names, not keywords."""
    if isinstance(schema, list):
        return [_clean(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    cleaned = {
        key: value
        if key in ("enum", "const", "required", "discriminator")
        else _clean(value, names=not names and key in ("properties", "$defs"))
        for key, value in schema.items()
        if names or key not in ("title", "default")
    }
    if not names and (cleaned.get("type") == "object" or "properties" in cleaned):
        cleaned.setdefault("additionalProperties", False)
    return cleaned


def _docstring(function: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """First paragraph, and the text of each entry of a Google-style `Args:` section."""
    lines = (inspect.getdoc(function) or "").splitlines()
    first = " ".join(lines).strip() if "" not in lines else " ".join(lines[: lines.index("")])
    arguments: dict[str, str] = {}
    section, indent, current = "", 0, ""
    for line in lines:
        text = line.strip()
        depth = len(line) - len(line.lstrip())
        if heading := _SECTION.match(line):
            section, indent, current = heading[1], 0, ""
        elif section in ("Args", "Arguments") and text:
            indent = indent or depth
            entry = _ARGUMENT.match(text) if depth == indent else None
            if entry:
                current = entry[1]
                arguments[current] = entry[2]
            elif current:
                arguments[current] += " " + text
    return first, {name: _line(text) for name, text in arguments.items() if text}


def _line(text: str) -> str:
    return " ".join(text.split())


def _explain(error: ValidationError) -> str:
    wrong = []
    for entry in error.errors(include_url=False, include_context=False, include_input=False):
        where = ".".join(str(part) for part in entry["loc"]) or "arguments"
        wrong.append(f"{where}: {entry['msg'][:1].lower()}{entry['msg'][1:]}")
    return "; ".join(wrong[:8]) + (f"; and {len(wrong) - 8} more" if len(wrong) > 8 else "")


# --- the line of a tool in the prompt -----------------------------------------------------------------------------


def _parameters(schema: Mapping[str, Any]) -> Iterator[str]:
    required = schema.get("required", ())
    for name, value in schema.get("properties", {}).items():
        yield f"{name}{'' if name in required else '?'}: {_notation(value, schema.get('$defs', {}))}"


def _notation(schema: Mapping[str, Any], defs: Mapping[str, Any]) -> str:
    """A type as a reader of code expects it: `"a"|"b"`, `list[string]`, `integer 1..5`, `{city: string}`."""
    if "$ref" in schema:
        return _notation(defs[str(schema["$ref"]).rpartition("/")[2]], defs)
    if "const" in schema:
        return canonical_json(schema["const"])
    if "enum" in schema:
        return "|".join(canonical_json(value) for value in schema["enum"])
    for keyword in ("anyOf", "oneOf", "allOf"):
        if keyword in schema:
            return "|".join(_notation(option, defs) for option in schema[keyword])
    kind = schema.get("type", "any")
    if isinstance(kind, list):
        return "|".join(kind)
    if kind == "array":
        return _array_notation(schema, defs)
    if kind == "object":
        if isinstance(schema.get("additionalProperties"), Mapping):
            return f"map[string, {_notation(schema['additionalProperties'], defs)}]"
        return "{" + ", ".join(_parameters({**schema, "$defs": defs})) + "}"
    return f"{kind}{_bounds(schema)}"


def _array_notation(schema: Mapping[str, Any], defs: Mapping[str, Any]) -> str:
    if "prefixItems" in schema:
        return "[" + ", ".join(_notation(item, defs) for item in schema["prefixItems"]) + "]"
    items = schema.get("items")
    inner = _notation(items, defs) if isinstance(items, Mapping) else "any"
    return f"list[{inner}]" + _range(schema.get("minItems"), schema.get("maxItems"), " items")


def _bounds(schema: Mapping[str, Any]) -> str:
    if schema["type"] == "string":
        if "format" in schema:
            return f" ({schema['format']})"
        if "pattern" in schema:
            return f" matching /{schema['pattern']}/"
        return _range(schema.get("minLength"), schema.get("maxLength"), " characters")
    low, high = schema.get("minimum"), schema.get("maximum")
    text = _range(low, high, "")
    if "exclusiveMinimum" in schema:
        text += f" >{canonical_json(schema['exclusiveMinimum'])}"
    if "exclusiveMaximum" in schema:
        text += f" <{canonical_json(schema['exclusiveMaximum'])}"
    if "multipleOf" in schema:
        text += f" in steps of {canonical_json(schema['multipleOf'])}"
    return text


def _range(low: Any, high: Any, unit: str) -> str:
    if low is None and high is None:
        return ""
    if low is None:
        return f" <={canonical_json(high)}{unit}"
    if high is None:
        return f" >={canonical_json(low)}{unit}"
    return f" {canonical_json(low)}..{canonical_json(high)}{unit}"


# --- the set of tools ---------------------------------------------------------------------------------------------


class Toolbox(Sequence[Tool]):
    """The tools of one request, sorted by name, so that the order of registration never reaches the prompt."""

    def __init__(
        self, tools: Iterable[Tool | Callable[..., Any]] = (), *, profile: Profile = "guidance"
    ) -> None:
        """Plain functions are taken as `@tool` without options.

        Raises:
            UsageError: two tools have the same name, or there are too many.
            GrammarError: a tool's parameters can't be held by the grammar of `profile`.
        """
        made = [t if isinstance(t, Tool) else tool(t) for t in tools]
        self._tools: dict[str, Tool] = {}
        for one in sorted(made, key=lambda t: t.name):
            if one.name in self._tools:
                first, second = _where(self._tools[one.name].function), _where(one.function)
                raise UsageError(f"two tools are called {one.name!r}: {first} and {second}")
            self._tools[one.name] = one
            if profile != "guidance" and one.for_model:  # `tool` has checked it for guidance already
                check_tool_schema(profile, one.name, one.schema)
        if len(self._tools) > MAX_TOOLS:
            raise UsageError(
                f"{len(self._tools)} tools are more than the {MAX_TOOLS} that one request may offer"
            )

    @overload
    def __getitem__(self, index: int) -> Tool: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Tool]: ...
    def __getitem__(self, index: int | slice) -> Tool | Sequence[Tool]:
        """The tool at this place of the order by name."""
        return list(self._tools.values())[index]

    def __len__(self) -> int:
        return len(self._tools)

    def for_model(self) -> "Toolbox":
        """Those of the tools that a model may call; the toolbox itself if it may call them all."""
        return self if all(one.for_model for one in self) else Toolbox([one for one in self if one.for_model])

    @property
    def names(self) -> tuple[str, ...]:
        """Names in order."""
        return tuple(self._tools)

    def get(self, name: str) -> Tool | None:
        """The tool of that name, if there is one."""
        return self._tools.get(name)

    @property
    def canonical(self) -> str:
        """Segment [2] of the prompt: one line per tool, the same text for the same tools in any order."""
        return "\n".join(one.signature for one in self)

    async def run(self, call: ToolCall, context: ToolContext | None = None) -> ToolResult:
        """Run one call. What goes wrong inside the tool comes back as a failure; only cancellation passes through.

        A str result is kept as it is, bytes too, anything else becomes canonical JSON.
        """
        started = time.monotonic()
        try:
            value = await self._outcome(call, context)
            return ToolResult(serialise(value), None, time.monotonic() - started, form_of(value))
        except ToolError as error:
            raw = str(error).encode("utf-8", "backslashreplace")
            failure = ToolFailure(kind=error.kind, message=raw.decode(), retryable=error.retryable)
            return ToolResult(raw, failure, time.monotonic() - started)

    async def _outcome(self, call: ToolCall, context: ToolContext | None) -> Any:
        chosen = self._tools.get(call.name)
        if chosen is None:
            known = ", ".join(self._tools) or "none"
            raise ToolError(f"there is no tool {call.name!r}; tools: {known}", kind="unknown_tool")
        arguments = chosen.bind(call.arguments, context)
        work: asyncio.Future[Any]
        if inspect.iscoroutinefunction(inspect.unwrap(chosen.function)):
            work = asyncio.ensure_future(_guarded(chosen.function, arguments))
        else:
            work = _in_thread(chosen.function, arguments)
        return await _within(work, chosen)


def _where(function: Callable[..., Any]) -> str:
    return f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', repr(function))}"


async def _guarded(function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    try:
        return await function(**arguments)
    except SystemExit as error:  # would otherwise end the event loop and every other request with it
        raise ToolError(
            f"SystemExit: the tool tried to end the process ({error.code})", kind="raised"
        ) from error


def _in_thread(function: Callable[..., Any], arguments: Mapping[str, Any]) -> asyncio.Future[Any]:
    """Run in a daemon thread: one that hangs blocks neither other tools nor the end of the process."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()
    context = contextvars.copy_context()

    def settle(result: Any, error: BaseException | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)

    def work() -> None:
        result, error = None, None
        try:
            result = context.run(function, **arguments)
        except BaseException as raised:  # nobody else would hear of it
            error = raised
            if not isinstance(raised, Exception) or isinstance(raised, StopIteration):
                # A future can't carry these; their name is what matters.
                error = ToolError(f"{type(raised).__name__}: {raised}", kind="raised")
        try:
            loop.call_soon_threadsafe(settle, result, error)
        except RuntimeError:
            return  # the loop closed long ago: the call had timed out

    THREADS.run(work, f"tool-{function.__name__}")
    return future


async def _within(work: asyncio.Future[Any], chosen: Tool) -> Any:
    try:
        done, _ = await asyncio.wait({work}, timeout=chosen.timeout_s)
    except asyncio.CancelledError:
        work.cancel()
        raise
    if not done:
        work.cancel()
        work.add_done_callback(_forget)
        message = f"no result after {chosen.timeout_s:g} s; whether it took effect is unknown"
        raise ToolError(message, kind="timeout", retryable=chosen.idempotent)
    if work.cancelled():
        raise ToolError("CancelledError: the tool cancelled itself", kind="raised")
    error = work.exception()
    if error is None:
        return work.result()
    if isinstance(error, ToolError):
        raise error
    raise ToolError(f"{type(error).__name__}: {error}", kind="raised") from error


def _forget(work: asyncio.Future[Any]) -> None:
    if not work.cancelled():
        work.exception()  # read once, or asyncio complains that nobody did


# --- results ------------------------------------------------------------------------------------------------------


def canonical_json(value: Any) -> str:
    """One text per value: sorted keys, no blanks, characters as themselves."""
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"), allow_nan=False)


def form_of(value: Any) -> Literal["json", "text", "bytes"]:
    """What `serialise` makes of a value."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return "bytes"
    return "text" if isinstance(value, str) else "json"


def serialise(value: Any) -> bytes:
    """The bytes that are kept of a tool's result: text and bytes as they are, all else as canonical JSON.

    Raises:
        ToolError: kind "bad_result", naming the field that JSON can't hold.
    """
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    plain = _plain(value, "result", 0)
    try:
        return (plain if isinstance(plain, str) else canonical_json(plain)).encode()
    except ValueError as error:  # an integer of more digits than Python prints
        raise ToolError(f"result: {error}", kind="bad_result") from error


def _plain(value: Any, path: str, depth: int) -> Any:
    if depth > MAX_RESULT_DEPTH:
        raise ToolError(f"{path}: nested deeper than {MAX_RESULT_DEPTH} levels, or cyclic", kind="bad_result")
    if isinstance(value, Enum):
        return _plain(value.value, path, depth + 1)
    if isinstance(value, str):
        return _plain_text(value, path)
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ToolError(f"{path}: {value} is no JSON number", kind="bad_result")
        return value
    if isinstance(value, BaseModel):
        return {name: _plain(item, f"{path}.{name}", depth + 1) for name, item in value}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [f.name for f in dataclasses.fields(value)]
        return {name: _plain(getattr(value, name), f"{path}.{name}", depth + 1) for name in names}
    if isinstance(value, (datetime, date, clock_time)):
        return value.isoformat()
    if isinstance(value, (Decimal, UUID, PurePath)):
        return str(value)
    return _plain_collection(value, path, depth)


def _plain_text(value: str, path: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ToolError(f"{path}: text with a lone surrogate is no Unicode", kind="bad_result") from None
    return str(value)


def _plain_collection(value: Any, path: str, depth: int) -> Any:
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise ToolError(
                    f"{path}: key {key!r} is a {type(key).__name__}, not a str", kind="bad_result"
                )
            _plain_text(key, f"{path}.{key!a}")
        return {str(key): _plain(item, f"{path}.{key}", depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, f"{path}[{i}]", depth + 1) for i, item in enumerate(value)]
    if isinstance(value, (set, frozenset)):
        return sorted((_plain(item, f"{path}{{}}", depth + 1) for item in value), key=canonical_json)
    raise ToolError(f"{path}: a {type(value).__name__} is not JSON", kind="bad_result")


# --- tools named on a command line --------------------------------------------------------------------------------


def load_tools(target: str) -> Toolbox:
    """Import `module:attr`; `attr` is a tool, a list of tools, a Toolbox, or a callable that returns one of them.

    The current directory is searched first, as with `python -m`.

    Raises:
        UsageError: the text has no colon, the import fails, or `attr` is something else.
        GrammarError: a tool's parameters can't be held by a grammar.
    """
    module_name, colon, attribute = target.partition(":")
    if not (module_name and colon and attribute):
        raise UsageError(
            f"{target!r} is not of the form module:attribute", hint="For example: my_tools:toolbox"
        )
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(module_name)
    except ImportError as error:
        raise UsageError(f"module {module_name!r} can't be imported: {error}") from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise UsageError(f"module {module_name!r} has no {attribute!r}")
        found = getattr(found, part)
    return _toolbox(target, found)


def _toolbox(target: str, found: Any) -> Toolbox:
    if callable(found) and not isinstance(found, (Tool, Toolbox)):
        found = found()
    if isinstance(found, Toolbox):
        return found
    if isinstance(found, Tool):
        return Toolbox([found])
    if isinstance(found, (list, tuple)) and all(isinstance(one, Tool) for one in found):
        return Toolbox(cast("list[Tool]", found))
    raise UsageError(f"{target} is a {type(found).__name__}, not a tool, a list of tools or a Toolbox")
