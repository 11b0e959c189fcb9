"""What can be said of tools and types before a workflow runs. Only what is certain is an error."""

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, get_type_hints

import jsonschema
from pydantic import TypeAdapter
from pydantic.errors import PydanticUserError
from pydantic_core import SchemaError

from flowstate_local.errors import WorkflowError
from flowstate_local.task_events import AgentAction, StepSpec, TaskAction, ToolAction, ToolUse, WorkflowSpec
from flowstate_local.tasks.references import Reference, references
from flowstate_local.tasks.workflow_file import Param, Path_, dumps
from flowstate_local.tools import Tool, Toolbox

Schema = Mapping[str, Any]
Fault = Callable[[str, Path_, str], WorkflowError]
UNKNOWN: Schema = {}


def check(spec: WorkflowSpec, params: Mapping[str, Param], toolbox: Toolbox, fault: Fault) -> None:
    """Check every tool that a workflow calls: that it's there, and that its arguments can fit.

    Raises:
        WorkflowError: a tool or an argument that is unknown or missing, or a type that can't fit.
    """
    types = _Types(spec, params, toolbox)
    for step in spec.steps:
        place: Path_ = ("steps", step.name)
        if isinstance(step.action, ToolAction):
            own = ToolUse(tool=step.action.tool, arguments=step.action.arguments)
            _check_use(step, own, place, types, toolbox, fault)
        for field, use in (("undo", step.undo), ("probe", step.probe)):
            if use is not None:
                _check_use(step, use, (*place, field), types, toolbox, fault)


def _check_use(
    step: StepSpec, use: ToolUse, place: Path_, types: "_Types", toolbox: Toolbox, fault: Fault
) -> None:
    tool = toolbox.get(use.tool)
    if tool is None:
        known = ", ".join(toolbox.names) or "none"
        raise fault(
            f"step {step.name}: there is no tool {use.tool!r}; tools: {known}", (*place, "tool"), step.name
        )
    properties: Mapping[str, Schema] = tool.schema.get("properties", {})
    for name, value in use.arguments.items():
        here = (*place, "with", name)
        if name not in properties:
            takes = ", ".join(properties) or "none"
            raise fault(
                f"step {step.name}: {tool.name} takes no argument {name!r}; it takes {takes}", here, step.name
            )
        wanted = {**properties[name], "$defs": tool.schema.get("$defs", {})}
        problem = _problem(value, wanted, step, types)
        if problem:
            raise fault(f"step {step.name}: argument {name} of {tool.name}: {problem}", here, step.name)
    missing = [name for name in tool.schema.get("required", ()) if name not in use.arguments]
    if missing:
        raise fault(
            f"step {step.name}: {tool.name} needs the argument {missing[0]!r}", (*place, "with"), step.name
        )


def _problem(value: Any, wanted: Schema, step: StepSpec, types: "_Types") -> str:
    """Why a value can't be right; "" if it may be."""
    found = list(references(value))
    if not found:
        error = jsonschema.exceptions.best_match(jsonschema.Draft202012Validator(wanted).iter_errors(value))
        return f"{dumps(value)}: {error.message[:200]}" if error is not None else ""
    if not isinstance(value, str):
        return ""
    whole = value == "${" + found[0].text + "}"
    given = types.of(found[0], step) if whole else {"type": "string"}
    mine, theirs = _types_of(given, given), _types_of(wanted, wanted)
    if mine and theirs and not any(_fits(a, b) for a in mine for b in theirs):
        source = f"${{{found[0].text}}} is" if whole else f"{value!r} is"
        return f"{source} {' or '.join(sorted(mine))}, and {' or '.join(sorted(theirs))} is wanted"
    return ""


def _fits(given: str, wanted: str) -> bool:
    # null: what an optional step that failed leaves; pydantic reads integers from numbers without a fraction.
    return given == wanted or {given, wanted} == {"integer", "number"}


def _types_of(schema: Schema, root: Schema) -> set[str]:
    """The JSON types a schema allows; empty if it doesn't say."""
    schema = _resolved(schema, root)
    for keyword in ("anyOf", "oneOf"):
        if keyword in schema:
            options = [_types_of(option, root) for option in schema[keyword]]
            return set().union(*options) if all(options) else set()
    if "const" in schema or "enum" in schema:
        values = schema.get("enum", [schema.get("const")])
        return {_NAMES.get(type(value), "object") for value in values}
    kind = schema.get("type")
    return {kind} if isinstance(kind, str) else set(kind or ())


_NAMES = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null", list: "array"}


def _resolved(schema: Schema, root: Schema) -> Schema:
    for _ in range(20):
        if "$ref" not in schema:
            return schema
        schema = root.get("$defs", {}).get(str(schema["$ref"]).rpartition("/")[2], UNKNOWN)
    return UNKNOWN


class _Types:
    """What references lead to, as far as annotations say."""

    def __init__(self, spec: WorkflowSpec, params: Mapping[str, Param], toolbox: Toolbox) -> None:
        self._steps = {step.name: step for step in spec.steps}
        self._params = params
        self._toolbox = toolbox

    def of(self, reference: Reference, step: StepSpec) -> Schema:
        """The schema of what a reference leads to; empty if nobody knows."""
        root, path = reference.root, reference.path
        if root == "params" and path[0] in self._params:
            kind = self._params[path[0]].type
            return {"type": kind} if kind != "any" and len(path) == 1 else UNKNOWN
        if root == "output":
            return _inside(self._output(step), path)
        if root in ("key", "task", "evidence"):
            return {"type": "string"}
        if root == "steps" and path[1] == "output":
            origin = next((s for name, s in self._steps.items() if name == path[0]), None)
            # A fallback may return something else, an optional step nothing at all.
            if origin is not None and origin.fallback is None and not origin.optional:
                return _inside(self._output(origin), path[2:])
        return UNKNOWN

    def _output(self, step: StepSpec) -> Schema:
        action = step.action
        if isinstance(action, AgentAction):
            return {"type": "string"}
        if isinstance(action, TaskAction):
            return UNKNOWN
        tool = self._toolbox.get(action.tool)
        return UNKNOWN if tool is None else returned(tool)


def _inside(schema: Schema, path: tuple[str, ...]) -> Schema:
    root = schema
    for part in path:
        schema = _resolved(schema, root)
        if part.isdigit() and isinstance(schema.get("items"), Mapping):
            schema = schema["items"]
        else:
            schema = schema.get("properties", {}).get(part, UNKNOWN)
    return {**schema, "$defs": root.get("$defs", {})} if schema else UNKNOWN


@lru_cache(maxsize=1_024)
def returned(tool: Tool) -> Schema:
    """JSON Schema of what a tool returns, from its annotation; empty if it has none that says anything."""
    try:
        annotation = get_type_hints(tool.function).get("return", Any)
        return {} if annotation is Any else TypeAdapter(annotation).json_schema(mode="serialization")
    except (NameError, TypeError, ValueError, PydanticUserError, SchemaError):
        return UNKNOWN
