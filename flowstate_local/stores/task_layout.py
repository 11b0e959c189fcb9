"""Keys and values of tasks on disk: which table, which key, which bytes. Knows no LMDB.

tasks            space, task                          head and record
task_events      space, task, NUL, seq, count         the events of one commit: a batch, see `layout`
task_snapshots   space, task, NUL, seq                the state after that event
task_index       field, value, NUL, created, space, task   nothing: the key says it all
leases           space, task                          lease
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from flowstate_local.errors import CorruptValue
from flowstate_local.stores import codec
from flowstate_local.stores.base import Lease, TaskHead, TaskQuery
from flowstate_local.stores.layout import (
    LINE_END,
    Put,
    batch_key,
    last_number_of,
    parse_batch,
    seqs_of,
    seqs_text,
    u64,
)
from flowstate_local.task_events import TaskEvent, TaskId, TaskRecord

MAX_SEQ = 2**63 - 1
MAX_INDEXED_BYTES = 200
"""Of an owner's name in a key; a longer one is found by its beginning and then compared."""


def suffix(task: TaskId, seq: int) -> bytes:
    """What follows the space in the key of an event or a snapshot."""
    return task.encode() + b"\0" + u64(seq)


def span(prefix: bytes, task: TaskId, upto: int | None, *, first: int = 0) -> tuple[bytes, bytes]:
    """First and last key of events or snapshots from `first` to `upto`, both included."""
    last = MAX_SEQ if upto is None else max(0, min(upto, MAX_SEQ))
    return prefix + suffix(task, min(first, MAX_SEQ)), prefix + suffix(task, last) + b"\xff" * 4


class TaskBatch:
    """Events of a task as they are stored behind event number `after`. Raises UsageError."""

    def __init__(self, task: TaskId, events: Sequence[TaskEvent], after: int) -> None:
        self._key = task.encode() + b"\0" + batch_key(after, len(events))
        self._packed = codec.pack(codec.dump_events(events))

    def put(self, prefix: bytes) -> Put:
        """What adds them to the log of the task."""
        return Put("task_events", prefix + self._key, self._packed)


def snapshot_put(prefix: bytes, task: TaskId, seq: int, packed: tuple[int, bytes]) -> Put:
    """What adds a snapshot."""
    return Put("task_snapshots", prefix + suffix(task, seq), packed)


def lease_put(prefix: bytes, task: TaskId, lease: Lease | None) -> Put:
    """What sets or removes the lease of a task."""
    return Put("leases", prefix + task.encode(), None if lease is None else codec.pack(codec.dump(lease)))


def record_puts(prefix: bytes, head: TaskHead, before: "Entry | None", after: TaskRecord) -> list[Put]:
    """What sets head and record of a task, and moves it in the indices."""
    value = json.dumps(vars(head)).encode() + LINE_END + codec.dump(after)
    puts = [Put("tasks", prefix + after.id.encode(), codec.pack(value))]
    old = set() if before is None else set(_index_keys(prefix, before.fields()))
    new = set(_index_keys(prefix, vars(after)))
    puts += [Put("task_index", key, None) for key in sorted(old - new)]
    return puts + [Put("task_index", key, (codec.PLAIN, b"")) for key in sorted(new - old)]


def index_removals(prefix: bytes, entry: "Entry") -> list[Put]:
    """What takes a task out of the indices."""
    return [Put("task_index", key, None) for key in _index_keys(prefix, entry.fields())]


class Entry:
    """What the indices hold of a task, read as far as somebody asks.

    Raises:
        CorruptValue: from the constructor and from every method.
    """

    def __init__(self, key: bytes, value: bytes) -> None:
        self._subject = f"task {key[8:].decode(errors='replace')}"
        self._head, _, self._record = codec.unseal("tasks", key, value, self._subject).partition(LINE_END)

    def head(self) -> TaskHead:
        """Where its log stands."""
        try:
            return TaskHead(**json.loads(self._head))
        except (ValueError, TypeError) as error:
            raise CorruptValue(f"{self._subject}: not the head of a task: {error}") from error

    def record(self) -> TaskRecord:
        """The line about it."""
        return codec.load(TaskRecord, self._record, self._subject)

    def fields(self) -> dict[str, Any]:
        """The same unchecked, for its keys: this release wrote it, and its checksum is right."""
        fields: dict[str, Any] = json.loads(self._record)
        return fields


def open_batch(key: bytes, value: bytes) -> Iterator[TaskEvent]:
    """The events of a batch from its place."""
    seqs, task = seqs_of(key), key[8:-13].decode(errors="replace")
    subject = f"{seqs_text(seqs)} of task {task}"
    body = codec.unseal("task_events", key, value, subject)
    for seq, fields in parse_batch(body, seqs, subject):
        yield codec.load_task_event(fields, seq, f"event seq {seq} of task {task}")


def decode_snapshot(key: bytes, value: bytes) -> tuple[int, bytes]:
    """A snapshot from its place, with its seq."""
    seq = last_number_of(key)
    subject = f"snapshot {seq} of task {key[8:-9].decode(errors='replace')}"
    return seq, codec.unseal("task_snapshots", key, value, subject)


def decode_lease(key: bytes, value: bytes) -> Lease:
    """A lease from its place."""
    subject = f"lease of task {key[8:].decode(errors='replace')}"
    return codec.load(Lease, codec.unseal("leases", key, value, subject), subject)


# --- the indices --------------------------------------------------------------------------------------------------


def index_range(query: TaskQuery) -> tuple[bytes, bytes]:
    """Where in the index to begin for a query, and the prefix all its keys have: the most selective one it names."""
    if query.current_step is not None:
        prefix = _field(b"p", query.current_step)
    elif query.owner is not None:
        prefix = _field(b"o", query.owner)
    elif query.status is not None:
        prefix = _field(b"s", query.status)
    else:
        prefix = _field(b"c", "")
    if query.created_from is not None:
        return prefix + _micros(query.created_from), prefix
    return prefix, prefix


def is_past(key: bytes, prefix: bytes, query: TaskQuery) -> bool:
    """Is this key, and are all after it, of tasks created too late?"""
    limit = query.created_before
    return limit is not None and key[len(prefix) : len(prefix) + 8] >= _micros(limit)


def task_key(index_key: bytes) -> bytes:
    """The key of the task that an index key points to."""
    return index_key[index_key.index(b"\0") + 9 :]


def _index_keys(prefix: bytes, fields: Mapping[str, Any]) -> Iterator[bytes]:
    place = _micros(fields["created_at"]) + prefix + fields["id"].encode()
    yield _field(b"o", fields["owner"]) + place
    yield _field(b"s", fields["status"]) + place
    yield _field(b"p", fields["current_step"]) + place
    yield _field(b"c", "") + place


def _field(tag: bytes, value: str) -> bytes:
    # A NUL ends the value, so none may be inside.
    return tag + value.encode()[:MAX_INDEXED_BYTES].replace(b"\0", b"\x01") + b"\0"


def _micros(seconds: float) -> bytes:
    return u64(max(0, min(int(seconds * 1e6), MAX_SEQ)))
