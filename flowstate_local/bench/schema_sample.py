"""A sentence of a constraint, of a plausible length: what an oracle says where its words don't matter."""

import json
import re
from typing import Any

from flowstate_local.completion import Constraint

WORDS = "what was found in this request and may be of use in a later one, with its names and numbers "
CHARS = 120
"""Of a text, if the schema has room for them."""
ITEMS = 2
"""Of a list, likewise."""


def sample(constraint: Constraint) -> str:
    """A JSON text that a JSON Schema constraint allows.

    Raises:
        ValueError: the constraint is no JSON Schema, or uses what this doesn't know.
    """
    if constraint.kind != "json":
        raise ValueError("only JSON Schemas can be sampled")
    schema = json.loads(constraint.text)
    return json.dumps(_value(schema, schema.get("$defs", {})), separators=(",", ":"))


def _value(schema: dict[str, Any], defs: dict[str, Any]) -> Any:
    if "$ref" in schema:
        return _value(defs[schema["$ref"].rpartition("/")[2]], defs)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return schema["enum"][0]
    for several in ("anyOf", "oneOf"):
        if several in schema:
            return _value(schema[several][0], defs)
    kind = schema.get("type")
    if kind == "object":
        return {name: _value(one, defs) for name, one in schema.get("properties", {}).items()}
    if kind == "array":
        return _array(schema, defs)
    if kind == "string":
        return _text(schema)
    if kind in ("integer", "number"):
        return schema.get("minimum", 0)
    if kind == "boolean":
        return True
    raise ValueError(f"no sample of {schema}")


def _array(schema: dict[str, Any], defs: dict[str, Any]) -> list[Any]:
    first = schema.get("prefixItems", [])
    most = schema.get("maxItems", ITEMS)
    n_items = max(min(ITEMS, most), schema.get("minItems", 0))
    items = [_value(one, defs) for one in first[:n_items]]
    rest = schema.get("items")
    if isinstance(rest, dict):
        items += [_value(rest, defs) for _ in range(n_items - len(items))]
    return items


def _text(schema: dict[str, Any]) -> str:
    longest = min(CHARS, schema.get("maxLength", CHARS))
    for source in (WORDS * 2, "0123456789"):
        for length in range(longest, -1, -1):
            text = source[:length].strip()
            if re.search(schema.get("pattern", ""), text) and len(text) >= schema.get("minLength", 0):
                return text
    raise ValueError(f"no sample of {schema}")
