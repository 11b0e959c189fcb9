"""Values as bytes: canonical JSON in a checked envelope, and the migrations of older ones.

An envelope is one byte of format, 16 bytes of checksum, and the body. The checksum covers the format, the
table, the key and the body, so that a value that was flipped, cut, or moved to another key is found.
"""

import hashlib
import json
import zlib
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar

from pydantic import ValidationError
from pydantic_core import PydanticSerializationError, to_json

from flowstate_local.errors import CorruptValue, StoreError, UnknownVersion, UsageError
from flowstate_local.events import EVENT, SCHEMA_VERSION, Event
from flowstate_local.nodes import Frozen, Node
from flowstate_local.task_events import TASK_EVENT, TaskEvent

PLAIN, ZLIB = 1, 2
CHECKSUM_BYTES = 16
FAST = 1
"""Level of compression: of a 2 kB result, level 6 takes three times as long for a few bytes less."""
COMPRESS_FROM_BYTES = 4000
"""About a page of LMDB with key, header and envelope. Compressing less saves part of a page at most, for a fifth of the
time of a whole commit."""

P = ParamSpec("P")
T = TypeVar("T")
V = TypeVar("V", bound=Frozen)

Migration = Callable[[dict[str, Any]], dict[str, Any]]

EVENT_MIGRATIONS: dict[int, Migration] = {}
"""Version n -> the function that turns a dict of version n into one of version n + 1. Events of tasks, too."""
NODE_MIGRATIONS: dict[int, Migration] = {}
NODE_VERSION: int = Node.model_fields["schema_version"].default


def pack(body: bytes) -> tuple[int, bytes]:
    """Format and body as stored: compressed when that saves at least a tenth."""
    if len(body) >= COMPRESS_FROM_BYTES:
        small = zlib.compress(body, FAST)
        if len(small) * 10 <= len(body) * 9:
            return ZLIB, small
    return PLAIN, body


def seal(table: str, key: bytes, packed: tuple[int, bytes]) -> bytes:
    """The envelope around a packed body, bound to its place."""
    form, body = packed
    return bytes([form]) + _checksum(table, key, form, body) + body


def unseal(table: str, key: bytes, value: bytes, subject: str) -> bytes:
    """The body of an envelope.

    Args:
        table: where the value was found, as given to `seal`.
        key: under which it was found.
        value: the envelope.
        subject: how messages name the value.

    Raises:
        CorruptValue: the checksum doesn't match.
        UnknownVersion: a whole envelope of a format this release doesn't know.
    """
    body = value[1 + CHECKSUM_BYTES :]
    if len(value) <= CHECKSUM_BYTES or value[1 : 1 + CHECKSUM_BYTES] != _checksum(table, key, value[0], body):
        raise CorruptValue(f"{subject}: the stored bytes do not match their checksum")
    return unpack(value[0], body, subject)


def unpack(form: int, body: bytes, subject: str) -> bytes:
    """What `pack` was given. Raises UnknownVersion: a format this release doesn't know."""
    if form == PLAIN:
        return body
    if form == ZLIB:
        return zlib.decompress(body)
    raise UnknownVersion(f"{subject}: stored in format {form}; this release knows formats up to {ZLIB}")


def dump(value: Frozen) -> bytes:
    """Canonical JSON: the fields in their order, UTF-8, no escapes beyond what JSON needs.

    Raises:
        UsageError: the value holds something JSON can't, such as half a surrogate pair in tool arguments.
    """
    try:
        return value.model_dump_json().encode()
    except PydanticSerializationError as error:
        raise UsageError(f"{type(value).__name__} can't be written as JSON: {error}") from error


def dump_events(events: Sequence[Event] | Sequence[TaskEvent]) -> bytes:
    """The events as one JSON array on one line. The seq in it says nothing: the place does. Raises UsageError."""
    try:
        return to_json(list(events))
    except PydanticSerializationError as error:
        raise UsageError(f"an event can't be written as JSON: {error}") from error


def load(kind: type[V], body: bytes, subject: str) -> V:
    """Read back a value that has no version of its own. Raises CorruptValue."""
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        raise CorruptValue(f"{subject}: not a {kind.__name__}: {_first(error)}") from error


def load_node(body: bytes, subject: str) -> Node:
    """Read back a node, migrated to the current version. Raises CorruptValue, UnknownVersion."""
    fields = _checked(_parse(body, subject), subject)
    try:
        return Node.model_validate(_migrate(fields, NODE_MIGRATIONS, NODE_VERSION, subject))
    except ValidationError as error:
        raise CorruptValue(f"{subject}: not a node: {_first(error)}") from error


def parse_events(body: bytes, subject: str) -> list[Any]:
    """What `dump_events` wrote, each event still to be loaded. Raises CorruptValue."""
    events = _parse(body, subject)
    if not isinstance(events, list):
        raise CorruptValue(f"{subject}: not a list of events")
    return events


def load_event(fields: Any, seq: int, subject: str) -> Event:
    """Read back a parsed event and the nodes in it, migrated. Raises CorruptValue, UnknownVersion."""
    fields = _migrate(_checked(fields, subject), EVENT_MIGRATIONS, SCHEMA_VERSION, subject) | {"seq": seq}
    if fields.get("kind") == "DeltaCommitted":
        for part in ("added", "updated"):
            fields[part] = [_migrate_nested(node, subject) for node in fields.get(part, ())]
    try:
        return EVENT.validate_python(fields)
    except ValidationError as error:
        raise CorruptValue(f"{subject}: not an event: {_first(error)}") from error


def load_task_event(fields: Any, seq: int, subject: str) -> TaskEvent:
    """Read back a parsed event of a task, migrated. Raises CorruptValue, UnknownVersion."""
    fields = _migrate(_checked(fields, subject), EVENT_MIGRATIONS, SCHEMA_VERSION, subject) | {"seq": seq}
    try:
        return TASK_EVENT.validate_python(fields)
    except ValidationError as error:
        raise CorruptValue(f"{subject}: not an event of a task: {_first(error)}") from error


def outcome(read: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | StoreError:
    """What `read` returns, or the StoreError it raises: verification goes on past a value it can't read."""
    try:
        return read(*args, **kwargs)
    except StoreError as error:
        return error


def _checksum(table: str, key: bytes, form: int, body: bytes) -> bytes:
    # The key's length is hashed too, or a byte could wander between key and body unseen.
    place = table.encode() + bytes([0, form]) + len(key).to_bytes(2, "big") + key
    return hashlib.blake2b(place + body, digest_size=CHECKSUM_BYTES).digest()


def _parse(body: bytes, subject: str) -> Any:
    try:
        return json.loads(body)
    except ValueError as error:
        raise CorruptValue(f"{subject}: not JSON: {error}") from error


def _checked(fields: Any, subject: str) -> dict[str, Any]:
    if not isinstance(fields, dict):
        raise CorruptValue(f"{subject}: not a JSON object")
    return fields


def _migrate(
    fields: dict[str, Any], migrations: dict[int, Migration], current: int, subject: str
) -> dict[str, Any]:
    version = fields.get("schema_version")
    if not isinstance(version, int):
        raise CorruptValue(f"{subject}: has no schema_version")
    if version > current:
        raise UnknownVersion(f"{subject}: has schema_version {version}; this release knows up to {current}")
    for older in range(version, current):
        if older not in migrations:
            raise UnknownVersion(f"{subject}: no migration from schema_version {older} to {older + 1}")
        fields = {**migrations[older](fields), "schema_version": older + 1}
    return fields


def _migrate_nested(node: Any, subject: str) -> Any:
    if not isinstance(node, dict):
        return node
    return _migrate(node, NODE_MIGRATIONS, NODE_VERSION, f"{subject}, node {node.get('id')}")


def _first(error: ValidationError) -> str:
    problem = error.errors(include_url=False, include_context=False, include_input=False)[0]
    place = ".".join(str(part) for part in problem["loc"])
    return f"{place}: {problem['msg']}"
