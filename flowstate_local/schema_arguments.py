"""Checks the arguments of a call against a JSON Schema, for tools that have no Python signature."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jsonschema

from flowstate_local.errors import ToolError, UsageError

MAX_SHOWN = 8
"""Faults that one message names."""
MAX_CHARS = 200
"""Of one fault: the message quotes the argument, which may be long."""

_QUOTED_NUMBER = re.compile(r"^-[0-9]+(\.[0-9]+)?$")


def checker(tool: str, schema: Mapping[str, Any]) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """A function that returns the arguments of a call as the schema wants them.

    It raises a ToolError of kind "bad_arguments" that names every field that is wrong.

    Raises:
        UsageError: `schema` is no JSON Schema, or not one of an object.
    """
    try:
        jsonschema.Draft202012Validator.check_schema(schema)
    except jsonschema.exceptions.SchemaError as error:
        raise UsageError(f"tool {tool}: its parameters are no JSON Schema: {error.message}") from error
    if schema.get("type") != "object":
        raise UsageError(
            f"tool {tool}: its parameters must be an object, not {schema.get('type', 'anything')}"
        )
    validator = jsonschema.Draft202012Validator(schema)

    def check(arguments: Mapping[str, Any]) -> dict[str, Any]:
        meant: dict[str, Any] = _unquoted(dict(arguments), schema, schema.get("$defs", {}))
        faults = sorted(validator.iter_errors(meant), key=lambda e: [str(p) for p in e.absolute_path])
        if faults:
            raise ToolError(_explain(faults), kind="bad_arguments")
        return meant

    return check


def _explain(faults: list[Any]) -> str:
    told = []
    for fault in faults[:MAX_SHOWN]:
        where = ".".join(str(part) for part in fault.absolute_path) or "arguments"
        text = fault.message if len(fault.message) <= MAX_CHARS else fault.message[:MAX_CHARS] + "…"
        told.append(f"{where}: {text}")
    more = len(faults) - len(told)
    return "; ".join(told) + (f"; and {more} more" if more else "")


def _unquoted(value: Any, schema: Any, defs: Mapping[str, Any]) -> Any:
    """Numbers out of the quotes that the guidance profile puts around those below zero (see `schema_rules`)."""
    options = list(_options(schema, defs))
    if isinstance(value, str):
        kinds = {kind for option in options for kind in _kinds(option)}
        numeric = "number" in kinds and "string" not in kinds
        return json.loads(value) if numeric and _QUOTED_NUMBER.match(value) else value
    for option in options:
        if isinstance(value, list):
            value = [_unquoted(item, option.get("items", {}), defs) for item in value]
        elif isinstance(value, dict):
            known, other = option.get("properties", {}), option.get("additionalProperties", {})
            value = {name: _unquoted(item, known.get(name, other), defs) for name, item in value.items()}
    return value


def _options(schema: Any, defs: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The schemas that a value may follow, without references and choices."""
    if not isinstance(schema, Mapping):
        return
    if "$ref" in schema:
        yield from _options(defs.get(str(schema["$ref"]).rpartition("/")[2]), defs)
        return
    choices = [option for keyword in ("anyOf", "oneOf", "allOf") for option in schema.get(keyword, ())]
    if not choices:
        yield schema
    for choice in choices:
        yield from _options(choice, defs)


def _kinds(schema: Mapping[str, Any]) -> list[str]:
    kind = schema.get("type", [])
    return [kind] if isinstance(kind, str) else list(kind)
