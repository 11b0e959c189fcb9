"""The file format of workflows: its models, its JSON Schema, and YAML that remembers its lines."""

import json
import math
import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import yaml
from pydantic import BeforeValidator, ConfigDict, Field, JsonValue, ValidationError

from flowstate_local.errors import WorkflowError
from flowstate_local.nodes import Frozen

MAX_FILE_BYTES = 1_000_000
MAX_VALUES = 100_000
"""Values in a file, counted as often as they are used: a few lines of aliases can stand for billions."""

_DURATION = re.compile(r"^(\d+(?:\.\d+)?)(ms|s|m|h|d)$")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}


def duration_s(text: Any) -> Any:
    """Seconds of "500ms", "10s", "2m", "1h", "30d"; numbers are seconds already. Raises ValueError."""
    if not isinstance(text, str):
        return text
    found = _DURATION.match(text)
    if found is None:
        raise ValueError(f"{text!r} is no duration; write a number of seconds, or 500ms, 10s, 2m, 1h, 30d")
    seconds = float(found[1]) * _UNITS[found[2]]
    if not math.isfinite(seconds):
        raise ValueError(f"{text[:20]}… is too long a duration")
    return seconds


Seconds = Annotated[
    float,
    Field(
        ge=0,
        json_schema_extra={
            "anyOf": [{"type": "number"}, {"type": "string", "pattern": _DURATION.pattern}],
            "type": None,
        },
    ),
    BeforeValidator(duration_s),
]


class _File(Frozen):
    model_config = ConfigDict(populate_by_name=True)


class Param(_File):
    """A parameter of a workflow."""

    type: Literal["string", "integer", "number", "boolean", "object", "array", "any"] = "any"
    default: JsonValue = None
    """Without one, and without `required: false`, the parameter has to be given."""
    required: bool | None = None
    description: str = ""


class Retry(_File):
    """What to do about errors of some kinds."""

    kinds: tuple[str, ...] | str = "*"
    """Kinds of error; "retryable" for those that say so of themselves, "*" for all."""
    then: Literal["now", "later", "fallback", "give_up", "ask"] = "later"
    times: Annotated[int, Field(ge=1)] = 3
    """Tries in all, the first included."""
    delay: Seconds = 1.0
    factor: Annotated[float, Field(ge=1)] = 2.0
    max_delay: Seconds = 60.0
    jitter: Annotated[float, Field(ge=0, le=1)] = 0.1


class Use(_File):
    """A tool call beside the step's own."""

    tool: str
    arguments: Annotated[dict[str, JsonValue], Field(alias="with")] = {}


class Step(_File):
    """One step: exactly one of tool, agent and task."""

    title: str = ""
    tool: str | None = None
    agent: str | None = None
    """A request to the FlowState agent."""
    task: "str | Workflow | None" = None
    """Another workflow: its file, relative to this one, or the workflow itself."""
    arguments: Annotated[dict[str, JsonValue], Field(alias="with")] = {}
    """Of the tool, or parameters of the sub-task."""
    space: str = ""
    date: str | None = None
    needs: tuple[str, ...] = ()
    """Steps that come before; those it refers to need not be listed."""
    timeout: Seconds | None = None
    optional: bool = False
    retry: tuple[Retry, ...] | Retry = ()
    fallback: str | None = None
    undo: Use | None = None
    probe: Use | None = None


class Workflow(_File):
    """A workflow template."""

    name: Annotated[str, Field(min_length=1, max_length=100)]
    goal: str = ""
    params: dict[str, Param] = {}
    planner: Literal["graph", "model"] = "graph"
    parallel: Annotated[int, Field(ge=1, le=64)] = 4
    steps: Annotated[dict[str, Step], Field(min_length=1)]
    result: JsonValue = None


def json_schema() -> dict[str, Any]:
    """JSON Schema of the file format."""
    schema = Workflow.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **_without_null_types(schema)}


def _without_null_types(schema: Any) -> Any:
    if isinstance(schema, dict):
        return {k: _without_null_types(v) for k, v in schema.items() if not (k == "type" and v is None)}
    return [_without_null_types(item) for item in schema] if isinstance(schema, list) else schema


Path_ = tuple[str | int, ...]


class Source:
    """A file as it was read: its content, and the line of every value.

    Args:
        text: YAML.
        name: for messages.

    Raises:
        WorkflowError: it is not YAML, not JSON-like, or too big; names file and line.
    """

    def __init__(self, text: str, name: str) -> None:
        self.name = name
        self._lines: dict[Path_, int] = {(): 1}
        self._n_values = 0
        if len(text.encode("utf-8", "replace")) > MAX_FILE_BYTES:
            raise self.error(f"the file is larger than {MAX_FILE_BYTES:,} bytes", ())
        try:
            node = yaml.compose(text, Loader=yaml.SafeLoader)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            self._lines[()] = mark.line + 1 if mark else 1
            raise self.error(f"not YAML: {error.problem or error.context}", ()) from error
        except (yaml.YAMLError, RecursionError) as error:
            raise self.error(f"not YAML: {' '.join(str(error).split())[:200]}", ()) from error
        try:
            self.content = None if node is None else self._value(node, ())
        except RecursionError as error:
            raise self.error("nested too deeply, or a value that holds itself", ()) from error

    def line(self, path: Path_) -> int:
        """The line of a value, or of the nearest one around it."""
        while path not in self._lines:
            path = path[:-1]
        return self._lines[path]

    def error(self, message: str, path: Path_, *, step: str = "") -> WorkflowError:
        """A WorkflowError that begins with file and line."""
        line = self.line(path)
        return WorkflowError(f"{self.name}:{line}: {message}", line=line, step=step)

    def workflow(self) -> Workflow:
        """The content as a workflow. Raises WorkflowError."""
        if not isinstance(self.content, dict):
            raise self.error("a workflow is a mapping with a name and steps", ())
        try:
            return Workflow.model_validate(self.content)
        except ValidationError as error:
            # Of a union every branch complains; the one that got furthest is the one that was meant.
            errors = error.errors(include_url=False, include_input=False)
            first = max(errors, key=lambda e: len(self._place(e["loc"])))
            path = self._place(first["loc"])
            where = ".".join(map(str, path))
            step = str(path[1]) if len(path) > 1 and path[0] == "steps" else ""
            raise self.error(f"{where}: {_words(first)}", self._known(path), step=step) from error

    def _place(self, loc: Path_) -> Path_:
        """A location of pydantic's without the branches of unions in it."""
        path: Path_ = ()
        for part in loc:
            if (*path, part) in self._lines or not _is_branch(part):
                path = (*path, part)
        return path

    def _known(self, path: Path_) -> Path_:
        """As much of a location as is in the file."""
        for end in range(len(path), 0, -1):
            if path[:end] in self._lines:
                return path[:end]
        return ()

    def _value(self, node: yaml.Node, path: Path_) -> Any:
        self._n_values += 1
        if self._n_values > MAX_VALUES:
            raise self.error(f"more than {MAX_VALUES:,} values, aliases counted each time", ())
        self._lines.setdefault(path, node.start_mark.line + 1)
        if node.tag.rpartition(":")[2] not in _TAGS or not node.tag.startswith("tag:yaml.org,2002:"):
            raise self.error(f"the tag {node.tag} has no place in a workflow", path)
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self._value(item, (*path, i)) for i, item in enumerate(node.value)]
        return self._scalar(node, path)

    def _mapping(self, node: yaml.MappingNode, path: Path_) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key_node, value_node in node.value:
            # `on` and `no` are words as keys, whatever YAML 1.1 says.
            key = key_node.value if isinstance(key_node, yaml.ScalarNode) else None
            here = (*path, str(key))
            self._lines[here] = key_node.start_mark.line + 1
            if not isinstance(key, str):
                raise self.error("a key has to be a text", here)
            self._check_text(key, here)
            if key == "<<":
                raise self.error("merge keys (<<) are not supported; write the fields out", here)
            if key in found:
                raise self.error(f"{key!r} stands here twice", here)
            found[key] = self._value(value_node, here)
        return found

    def _scalar(self, node: yaml.Node, path: Path_) -> Any:
        if node.tag.endswith(":timestamp"):
            return node.value  # a date is a text in JSON
        try:
            value = yaml.SafeLoader("").construct_object(node)
        except (yaml.YAMLError, ValueError) as error:
            raise self.error(f"{node.value[:60]!r} can't be read: {str(error)[:200]}", path) from error
        if isinstance(value, float) and not math.isfinite(value):
            raise self.error(f"{node.value} is no JSON number", path)
        if isinstance(value, str):
            self._check_text(value, path)
        return value

    def _check_text(self, text: str, path: Path_) -> None:
        try:
            text.encode()
        except UnicodeEncodeError:
            raise self.error(f"{text[:60]!a}: a text with a lone surrogate is no Unicode", path) from None


_TAGS = frozenset({"map", "seq", "str", "int", "float", "bool", "null", "timestamp"})


def _is_branch(part: str | int) -> bool:
    """Does it name the branch of a union, rather than a place in the file?"""
    return isinstance(part, str) and (part in ("Workflow", "Retry", "str") or "[" in part or "(" in part)


def _words(error: Any) -> str:
    message = str(error["msg"]).removeprefix("Value error, ")
    if error["type"] == "extra_forbidden":
        return "there is no such field"
    return message[:1].lower() + message[1:]


def walk(value: JsonValue, path: Path_) -> Iterator[tuple[str, Path_]]:
    """Every text inside a value, with its place."""
    if isinstance(value, str):
        yield value, path
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from walk(item, (*path, key))
    elif isinstance(value, list):
        for i, item in enumerate(value):
            yield from walk(item, (*path, i))


def dumps(value: JsonValue) -> str:
    """A value in a message."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:60]}…"
