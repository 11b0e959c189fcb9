"""tau2's tool schemas as a grammar can hold them.

tau2 declares every item of a list of objects as `anyOf [the type, any object]`. The second branch can't be held by a
grammar and means nothing to the domain: it is dropped. All else that must change (titles, open objects) is done for
every schema by `Tool.from_schema`.
"""

from collections.abc import Mapping
from typing import Any


def safe(schema: Any) -> Any:
    """A copy without the branches that admit any object at all."""
    if isinstance(schema, list):
        return [safe(item) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    kept = {key: safe(value) for key, value in schema.items()}
    options = kept.get("anyOf")
    if isinstance(options, list):
        named = [option for option in options if not _is_any_object(option)]
        if len(named) == 1 and len(options) > 1:
            return {key: value for key, value in kept.items() if key != "anyOf"} | named[0]
        if named:
            kept["anyOf"] = named
    return kept


def _is_any_object(schema: Any) -> bool:
    return (
        isinstance(schema, Mapping)
        and schema.get("type") == "object"
        and schema.get("additionalProperties") is True
        and "properties" not in schema
    )
