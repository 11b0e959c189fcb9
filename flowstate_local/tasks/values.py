"""Values between steps: small ones in the event, big ones as blobs that are read when somebody asks."""

import json
from typing import Any, Protocol

from flowstate_local.errors import ToolError, UsageError
from flowstate_local.stores.base import digest
from flowstate_local.task_events import MAX_INLINE_BYTES, Value
from flowstate_local.tools import form_of, serialise


class BlobReader(Protocol):
    """Where blobs are read."""

    def blob(self, key: str) -> bytes:
        """Raw bytes by digest, checked against it. Raises CorruptValue."""


def to_value(content: Any, blobs: dict[str, bytes], *, what: str = "the value") -> Value:
    """Content as an event carries it; what is too big for that is added to `blobs`.

    Raises:
        UsageError: JSON can't hold it; the message names the field.
    """
    try:
        raw = serialise(content)
    except ToolError as error:
        raise UsageError(f"{what} can't be kept: {error}") from error
    return raw_value(raw, form_of(content), blobs)


def raw_value(raw: bytes, form: str, blobs: dict[str, bytes]) -> Value:
    """The same, of bytes that are serialised already."""
    if form != "bytes" and len(raw) <= MAX_INLINE_BYTES:
        inline = json.loads(raw) if form == "json" else raw.decode()
        return Value.model_validate({"form": form, "inline": inline, "size_bytes": len(raw)})
    key = digest(raw)
    blobs[key] = raw
    return Value.model_validate({"form": form, "digest": key, "size_bytes": len(raw)})


def from_value(value: Value, reader: BlobReader) -> Any:
    """The content again: parsed JSON, text, or bytes. Raises CorruptValue."""
    if not value.digest:
        return value.inline
    raw = reader.blob(value.digest)
    if value.form == "bytes":
        return raw
    return json.loads(raw) if value.form == "json" else raw.decode()
