"""Read back what `space_export` wrote, as a new space: request by request, through the same checks as when it was made."""

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from flowstate_local.errors import FlowStateError, UnknownVersion, UsageError
from flowstate_local.events import EVENT, SCHEMA_VERSION, Event, RequestFinished, ToolFinished
from flowstate_local.nodes import EvidenceId, Node, NodeId, RequestId
from flowstate_local.repository import EvidenceRecord, RequestRecord
from flowstate_local.space_export import FORMAT
from flowstate_local.stores.base import FinishedRequest, Head, Store, check_space_name, digest
from flowstate_local.task_events import TASK_EVENT, TaskEvent, TaskId, TaskRecord, digests_of


@dataclass(frozen=True)
class Imported:
    """What came of it."""

    space: str
    requests: int
    nodes: int
    events: int
    tasks: int
    skipped_tasks: tuple[TaskId, ...]
    """Compacted ones: their first events are gone, so they can't be told again."""


def imported(store: Store, space: str, lines: Iterable[str | bytes]) -> Imported:
    """Make a new space of exported lines. It is read whole before anything is written, so it must fit into memory.

    Args:
        store: where to.
        space: its name there; nothing may be in it.
        lines: JSON lines as `exported` gives them.

    Raises:
        UsageError: a line isn't one of an export, names its number; or lines don't fit together, or raw bytes are not
            those that their digest names; or the space is in use. Nothing is left of the space.
        UnknownVersion: a later release wrote the lines.
    """
    check_space_name(space)
    if store.head(space).seq:
        raise UsageError(
            f"there is a space {space!r} already", hint="Give another name, or erase that one first."
        )
    content = _Content()
    for number, line in enumerate(lines, start=1):
        if line.strip():
            content.take(line, f"line {number}")
    content.check()
    try:
        return _write(store, space, content)
    except FlowStateError:
        store.erase_space(space)
        raise


@dataclass
class _Content:
    """What the lines hold, parsed."""

    head: Head | None = None
    requests: dict[RequestId, RequestRecord] = field(default_factory=dict)
    evidence: dict[EvidenceId, EvidenceRecord] = field(default_factory=dict)
    nodes: dict[NodeId, Node] = field(default_factory=dict)
    blobs: dict[str, bytes] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    tasks: dict[TaskId, TaskRecord] = field(default_factory=dict)
    task_events: dict[TaskId, list[TaskEvent]] = field(default_factory=dict)
    compacted: set[TaskId] = field(default_factory=set)

    def take(self, line: str | bytes, where: str) -> None:
        """Read one line."""
        try:
            fields = json.loads(line)
            kind = fields.pop("kind")
            take = _KINDS[kind]
        except (ValueError, AttributeError, KeyError, TypeError, RecursionError) as error:
            raise UsageError(f"{where} is not of an exported space: {error!r}") from None
        try:
            take(self, fields)
        except (ValidationError, ValueError, TypeError, KeyError) as error:
            raise UsageError(f"{where} is no {kind} of an exported space: {_first(error)}") from None

    def check(self) -> None:
        """Raise UsageError unless it is a whole space."""
        if self.head is None:
            raise UsageError("there is no space in it", hint="Give what `flowstate memory export` wrote.")
        if self.head.seq != len(self.events):
            raise UsageError(f"the export is cut: it has {len(self.events)} of {self.head.seq} events")

    def _space(self, fields: dict[str, Any]) -> None:
        form = fields.pop("format", FORMAT)
        if form != FORMAT:
            raise UnknownVersion(f"an export of format {form}; this release knows format {FORMAT}")
        fields.pop("space")
        self.head = Head(**fields)

    def _request(self, fields: dict[str, Any]) -> None:
        record = RequestRecord.model_validate(fields)
        self.requests[record.id] = record

    def _evidence(self, fields: dict[str, Any]) -> None:
        raw = fields.pop("base64")
        record = EvidenceRecord.model_validate(fields)
        self.evidence[record.id] = record
        self._keep(record.digest, raw)

    def _blob(self, fields: dict[str, Any]) -> None:
        self._keep(fields["digest"], fields["base64"])

    def _keep(self, key: str, encoded: str) -> None:
        raw = base64.b64decode(encoded, validate=True)
        if digest(raw) != key:
            raise ValueError(f"the bytes are not those of digest {key!r}")
        self.blobs[key] = raw

    def _node(self, fields: dict[str, Any]) -> None:
        node = Node.model_validate(fields)
        self.nodes[node.id] = node

    def _event(self, fields: dict[str, Any]) -> None:
        _check_version(fields["event"])
        self.events.append(EVENT.validate_python(fields["event"]))

    def _task(self, fields: dict[str, Any]) -> None:
        record = TaskRecord.model_validate(fields)
        self.tasks[record.id] = record

    def _task_snapshot(self, fields: dict[str, Any]) -> None:
        self.compacted.add(TaskId(fields["task"]))

    def _task_event(self, fields: dict[str, Any]) -> None:
        _check_version(fields["event"])
        event = TASK_EVENT.validate_python(fields["event"])
        self.task_events.setdefault(event.task, []).append(event)


_KINDS = {
    "space": _Content._space,
    "request": _Content._request,
    "evidence": _Content._evidence,
    "blob": _Content._blob,
    "node": _Content._node,
    "event": _Content._event,
    "task": _Content._task,
    "task_snapshot": _Content._task_snapshot,
    "task_event": _Content._task_event,
}


def _check_version(fields: Mapping[str, Any]) -> None:
    version = fields.get("schema_version", SCHEMA_VERSION)
    if version > SCHEMA_VERSION:
        raise UnknownVersion(
            f"an event of schema version {version}; this release knows up to {SCHEMA_VERSION}"
        )


def _write(store: Store, space: str, content: _Content) -> Imported:
    assert content.head is not None
    pending: list[Event] = []
    for event in content.events:
        pending.append(event)
        if isinstance(event, RequestFinished):
            _write_request(store, space, content, pending, event)
            pending = []
    if pending:
        head = store.head(space)
        store.append(space, pending, _blobs(content, pending), expected_seq=head.seq)
    for task in content.tasks.keys() - content.compacted:
        _write_task(store, space, content, task)
    return Imported(
        space=space,
        requests=len(content.requests),
        nodes=len(content.nodes),
        events=len(content.events),
        tasks=len(content.tasks.keys() - content.compacted),
        skipped_tasks=tuple(sorted(content.compacted)),
    )


def _write_request(
    store: Store, space: str, content: _Content, events: Sequence[Event], finished: RequestFinished
) -> None:
    head = store.head(space)
    if len(events) > 1:
        head = store.append(space, events[:-1], _blobs(content, events), expected_seq=head.seq)
    try:
        done = FinishedRequest(
            record=content.requests[finished.request],
            nodes=[content.nodes[node] for node in finished.nodes],
            evidence=[content.evidence[evidence] for evidence in finished.evidence],
            events=[finished],
            index_floor=content.head.index_floor if content.head else 0,
        )
    except KeyError as error:
        raise UsageError(f"{error.args[0]} is missing, which request {finished.request} left") from None
    store.persist(space, done, expected_version=head.version, expected_seq=head.seq)


def _blobs(content: _Content, events: Sequence[Event]) -> dict[str, bytes]:
    return {
        event.digest: content.blobs[event.digest]
        for event in events
        if isinstance(event, ToolFinished) and event.digest in content.blobs
    }


def _write_task(store: Store, space: str, content: _Content, task: TaskId) -> None:
    record = content.tasks[task].model_copy(update={"space": space})
    events = content.task_events.get(task, [])
    keys = {key for event in events for key in digests_of(event)}
    blobs = {key: content.blobs[key] for key in keys if key in content.blobs}
    store.append_task(space, events, blobs, expected_seq=0, record=record)


def _first(error: Exception) -> str:
    if isinstance(error, ValidationError):
        problem = error.errors(include_url=False, include_context=False, include_input=False)[0]
        return f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}"
    return str(error) or repr(error)
