"""The seam to disk: a Protocol, and the values that cross it. No store logic here.

A store holds many spaces. In each: the event log (the truth), the persisted nodes and index lines (views of
it, so that reading doesn't fold the whole log), evidence records, and content-addressed raw results.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from flowstate_local.errors import BadSpaceName, UsageError
from flowstate_local.events import Event
from flowstate_local.nodes import EvidenceId, Frozen, IndexLine, Node, RequestId
from flowstate_local.repository import EvidenceRecord, Reader, RequestRecord
from flowstate_local.task_events import TASK_ID, TaskEvent, TaskId, TaskRecord, TaskStatus

MAX_SPACE_BYTES = 200


def check_space_name(name: str) -> str:
    """Return `name` if every store accepts it.

    Raises:
        BadSpaceName: empty, over 200 bytes of UTF-8, not UTF-8, or with '/', NUL or a control character.
    """
    try:
        size_bytes = len(name.encode())
    except UnicodeEncodeError:
        raise BadSpaceName(f"space name {name!r} is not valid Unicode") from None
    if not 0 < size_bytes <= MAX_SPACE_BYTES:
        raise BadSpaceName(f"space name has {size_bytes} bytes; 1 to {MAX_SPACE_BYTES} are allowed")
    for character in name:
        if character == "/" or ord(character) < 32 or ord(character) == 127:
            raise BadSpaceName(f"space name {name!r} holds {character!r}")
    return name


def check_task_id(task: str) -> TaskId:
    """Return `task` if it can be the id of a task. Raises UsageError."""
    if not TASK_ID.fullmatch(task):
        raise UsageError(
            f"{task!r} can't be a task id",
            hint="Use 1 to 64 of a-z 0-9 _ . - and begin with a letter or digit.",
        )
    return TaskId(task)


def digest(raw: bytes) -> str:
    """The key of a blob: SHA-256, hex."""
    return hashlib.sha256(raw).hexdigest()


EMPTY = digest(b"")
"""The raw result that tombstones name."""


@dataclass(frozen=True)
class Head:
    """Where a space stands. An unknown space has the default head."""

    version: int = 0
    """Number of persisted requests; writers name the version they saw."""
    seq: int = 0
    """Sequence number of the last event."""
    nodes: int = 0
    """Highest node number handed out so far (`j7` -> 7), whatever its letter; ids are never reused."""
    evidence: int = 0
    """Highest evidence number handed out so far."""
    requests: int = 0
    """Highest request number handed out so far."""
    open_request: RequestId | None = None
    """The request that was started and not finished, if any."""
    open_seq: int = 0
    """Sequence number of its RequestStarted; 0 if there is none."""
    index_floor: int = 0
    """Requests up to this number are folded in the index (see `index.py`)."""


@dataclass(frozen=True)
class FinishedRequest:
    """All that persisting a request writes, in one transaction."""

    record: RequestRecord
    """`last_seq` is ignored: the store sets it to the seq of the last of `events`."""
    nodes: Sequence[Node]
    evidence: Sequence[EvidenceRecord]
    events: Sequence[Event]
    """The last events of the request, RequestFinished at the end."""
    index_floor: int
    """New value of `Head.index_floor`."""
    blobs: Mapping[str, bytes] = field(default_factory=dict)
    """Raw results that `events` bring, by digest; those of events appended before are stored already."""


@dataclass(frozen=True)
class Erasure:
    """What an erasure writes in the place of what was there, and what it deletes (`erasure.py` makes it)."""

    events: Mapping[int, Event]
    """By seq."""
    requests: Sequence[RequestRecord]
    nodes: Sequence[Node]
    lines: Mapping[RequestId, Sequence[IndexLine]]
    """All lines of a request that any of the nodes belongs to."""
    evidence: Sequence[EvidenceId]
    """Records to delete."""
    blobs: Sequence[str]
    """Raw results to delete."""


@dataclass(frozen=True)
class TaskHead:
    """Where the log of a task stands. An unknown task has the default head."""

    seq: int = 0
    """Sequence number of its last event: the version that writers name."""
    floor: int = 0
    """Events up to this number were compacted away; a snapshot of the same number stands for them."""
    snapshot: int = 0
    """Sequence number of the newest snapshot; 0 if there is none."""


class Lease(Frozen):
    """Who works on a task. Only advice: what keeps two workers apart in the end is the version of the task."""

    token: str
    """Unique per worker."""
    name: str = ""
    """For people."""
    pid: int = 0
    process_started: str = ""
    """Tells a process from a later one of the same number, where the system says it."""
    expires_at: float
    """Seconds since the epoch; renewed while the worker lives."""


@dataclass(frozen=True)
class TaskQuery:
    """Which tasks to list; None asks for any."""

    space: str | None = None
    owner: str | None = None
    status: TaskStatus | None = None
    current_step: str | None = None
    created_from: float | None = None
    """Seconds since the epoch; inclusive."""
    created_before: float | None = None


@dataclass(frozen=True)
class Fault:
    """Something that verification found. `subject` names it: an id, a digest, "seq 12"."""

    space: str
    subject: str
    problem: str


class Store(Protocol):
    """The repositories M of many spaces. Persisted nodes and events never change."""

    def spaces(self) -> list[str]:
        """Names of all spaces that hold at least one event, sorted."""

    def head(self, space: str) -> Head:
        """Where the space stands; the default head if it's unknown. Raises BadSpaceName."""

    def reader(self, space: str) -> Reader:
        """The read side of one space, always showing the newest committed state."""

    def append(
        self,
        space: str,
        events: Sequence[Event],
        blobs: Mapping[str, bytes] | None = None,
        *,
        expected_seq: int,
    ) -> Head:
        """Append events (and raw results, by digest) durably, all or nothing, and return the new head.

        RequestStarted sets `open_request` and raises `requests`; DeltaCommitted raises `nodes` to the highest
        number in its added ids; ToolStarted raises `evidence`. An unknown space begins with its first event.

        Raises:
            ConflictError: the last event's seq isn't `expected_seq`; or RequestStarted while a request is open.
            StoreFull: no room; nothing was written.
        """

    def persist(self, space: str, done: FinishedRequest, *, expected_version: int, expected_seq: int) -> Head:
        """Write all of it or nothing: last events, nodes, index lines, evidence, record; version + 1.

        Raises:
            ConflictError: another writer was first, or a node id exists already.
            StoreFull: no room; nothing was written.
        """

    def events(self, space: str, *, after: int = 0, upto: int | None = None) -> Iterator[Event]:
        """Events with after < seq <= upto, in order. Raises CorruptValue, UnknownVersion (naming the seq)."""

    def requests(self, space: str, *, first: int = 1, last: int | None = None) -> Iterator[RequestRecord]:
        """Persisted requests with first <= number <= last, in order."""

    def nodes(self, space: str) -> Iterator[Node]:
        """All persisted nodes, by request and order kept."""

    def append_task(
        self,
        space: str,
        events: Sequence[TaskEvent],
        blobs: Mapping[str, bytes] | None = None,
        *,
        expected_seq: int,
        record: TaskRecord,
        snapshot: bytes | None = None,
    ) -> TaskHead:
        """Append events to the log of one task durably, with what the indices say of it now, all or nothing.

        Args:
            space: where the task lives; an unknown one begins with it.
            events: of `record.id`, at least one; a TaskCreated or TaskForked first, and only there.
            blobs: raw values that the events name, by digest.
            expected_seq: the version the writer saw; 0 for a new task.
            record: the task after these events; its `seq` is ignored, the store sets it.
            snapshot: the whole state after these events, if it's time for one.

        Raises:
            ConflictError: the log doesn't end at `expected_seq`.
            StoreFull: no room; nothing was written.
        """

    def task_head(self, space: str, task: TaskId) -> TaskHead:
        """Where the log of a task stands; the default head if it's unknown."""

    def task_events(
        self, space: str, task: TaskId, *, after: int = 0, upto: int | None = None
    ) -> Iterator[TaskEvent]:
        """Events of a task with after < seq <= upto, in order. Raises CorruptValue, UnknownVersion.

        Raises:
            UsageError: events after `after` were compacted away.
        """

    def snapshot(self, space: str, task: TaskId, *, upto: int | None = None) -> tuple[int, bytes] | None:
        """The newest snapshot of a task that is not newer than `upto`, with its seq. Raises CorruptValue."""

    def task(self, space: str, task: TaskId) -> TaskRecord | None:
        """What the indices hold of one task."""

    def tasks(self, query: TaskQuery) -> Iterator[TaskRecord]:
        """Tasks by time of creation, the oldest first, by an index on what the query names."""

    def lease(self, space: str, task: TaskId) -> Lease | None:
        """Who works on a task, as last written."""

    def set_lease(self, space: str, task: TaskId, lease: Lease | None, *, replacing: str) -> None:
        """Put `lease` (or none) in the place of the one with the token `replacing` ("" for none).

        Raises:
            ConflictError: another lease is there.
        """

    def compact_task(self, space: str, task: TaskId, *, upto: int) -> TaskHead:
        """Delete the events up to `upto`, for which a snapshot of that number stands, and older snapshots.

        Raises:
            UsageError: there's no snapshot of that number.
        """

    def erase(self, space: str, erasure: Erasure, *, expected_seq: int) -> None:
        """Put tombstones in the place of what is there, all or nothing: the one exception to what never changes.

        The empty raw result is stored with it: tombstones of results name it.

        Raises:
            ConflictError: the last event's seq isn't `expected_seq`.
            UsageError: there is no such event, request or node to stand for.
        """

    def erase_space(self, space: str) -> bool:
        """Delete everything of a space, tasks too; whether there was anything. Its name can be used anew."""

    def size_bytes_of(self, space: str) -> int:
        """Bytes of all keys and values of a space, as they are stored."""

    def verify(self, space: str) -> list[Fault]:
        """Recompute every hash, resolve every ref and evidence id, check the log for gaps. [] means whole."""

    def close(self) -> None:
        """Release the files. Idempotent."""
