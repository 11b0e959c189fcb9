"""A store that lives and dies with its process: for tests, demos and throw-away spaces.

It keeps every promise of `Store` but durability. Values are held as the bytes the other stores write, so what
can't be written to disk can't be put here either.
"""

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from flowstate_local.errors import CorruptValue, StoreError, UsageError
from flowstate_local.events import Event
from flowstate_local.nodes import EvidenceId, IndexLine, Node, NodeId, RequestId, request_number
from flowstate_local.repository import EvidenceRecord, Reader, RequestRecord
from flowstate_local.stores import codec, rules, task_rules, verification
from flowstate_local.stores.base import (
    EMPTY,
    Erasure,
    Fault,
    FinishedRequest,
    Head,
    Lease,
    TaskHead,
    TaskQuery,
    check_space_name,
    check_task_id,
    digest,
)
from flowstate_local.task_events import TaskEvent, TaskId, TaskRecord


class MemoryStore:
    """Implements `stores.base.Store`. Safe to use from several threads."""

    def __init__(self) -> None:
        self._spaces: dict[str, _Space] = {}
        self._lock = threading.Lock()
        self._closed = False

    def spaces(self) -> list[str]:
        """See `Store.spaces`."""
        self._check_open()
        return sorted(name for name, space in list(self._spaces.items()) if space.events or space.tasks)

    def head(self, space: str) -> Head:
        """See `Store.head`."""
        return self._space(space).head()

    def reader(self, space: str) -> Reader:
        """See `Store.reader`."""
        self._space(space)
        return _LiveReader(self, space)

    def append(
        self,
        space: str,
        events: Sequence[Event],
        blobs: Mapping[str, bytes] | None = None,
        *,
        expected_seq: int,
    ) -> Head:
        """See `Store.append`."""
        blobs = blobs or {}
        rules.check_blobs(blobs)
        with self._lock:
            current = self._space(space)
            head = rules.plan_append(current, space, events, blobs, expected_seq=expected_seq)
            written = [codec.dump(event) for event in events]
            # Nothing below can fail, so the append is whole or absent.
            current.blobs.update(blobs)
            current.events.extend(written)
            current.stored_head = head
            if written:
                self._spaces[space] = current
        return head

    def persist(self, space: str, done: FinishedRequest, *, expected_version: int, expected_seq: int) -> Head:
        """See `Store.persist`."""
        rules.check_blobs(done.blobs)
        with self._lock:
            current = self._space(space)
            plan = rules.plan_persist(
                current, space, done, expected_version=expected_version, expected_seq=expected_seq
            )
            events = [codec.dump(event) for event in done.events]
            nodes = {node.id: codec.dump(node) for node in plan.nodes}
            lines = [codec.dump(line) for line in plan.lines]
            evidence = {record.id: codec.dump(record) for record in plan.evidence}
            record = codec.dump(plan.record)
            current.blobs.update(done.blobs)
            current.events.extend(events)
            current.nodes.update(nodes)
            current.index[plan.record.id] = lines
            current.records.update(evidence)
            current.requests[plan.record.id] = record
            current.stored_head = plan.head
            self._spaces[space] = current
        return plan.head

    def events(self, space: str, *, after: int = 0, upto: int | None = None) -> Iterator[Event]:
        """See `Store.events`."""
        return self._space(space).read_events(after, upto)

    def requests(self, space: str, *, first: int = 1, last: int | None = None) -> Iterator[RequestRecord]:
        """See `Store.requests`."""
        return self._space(space).read_requests(first, last)

    def nodes(self, space: str) -> Iterator[Node]:
        """See `Store.nodes`."""
        return self._space(space).read_nodes()

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
        """See `Store.append_task`."""
        blobs = blobs or {}
        rules.check_blobs(blobs)
        with self._lock:
            current = self._space(space)
            head, after = task_rules.plan_append(
                current,
                events,
                blobs,
                expected_seq=expected_seq,
                record=record,
                with_snapshot=snapshot is not None,
            )
            written = [codec.dump(event) for event in events]
            body = codec.dump(after)
            # Nothing below can fail, so the append is whole or absent.
            task = current.tasks.setdefault(record.id, _Task())
            current.blobs.update(blobs)
            task.events.update(enumerate(written, start=expected_seq + 1))
            task.head, task.record = head, body
            if snapshot is not None:
                task.snapshots[head.seq] = snapshot
            self._spaces[space] = current
        return head

    def task_head(self, space: str, task: TaskId) -> TaskHead:
        """See `Store.task_head`."""
        return self._space(space).task_head(check_task_id(task))

    def task_events(
        self, space: str, task: TaskId, *, after: int = 0, upto: int | None = None
    ) -> Iterator[TaskEvent]:
        """See `Store.task_events`."""
        found = self._space(space).tasks.get(check_task_id(task)) or _Task()
        task_rules.check_not_compacted(task, found.head, after)
        return found.read_events(task, max(after, 0), upto)

    def snapshot(self, space: str, task: TaskId, *, upto: int | None = None) -> tuple[int, bytes] | None:
        """See `Store.snapshot`."""
        found = self._space(space).tasks.get(check_task_id(task)) or _Task()
        seqs = [seq for seq in list(found.snapshots) if upto is None or seq <= upto]
        return (max(seqs), found.snapshots[max(seqs)]) if seqs else None

    def task(self, space: str, task: TaskId) -> TaskRecord | None:
        """See `Store.task`."""
        return self._space(space).task(check_task_id(task))

    def tasks(self, query: TaskQuery) -> Iterator[TaskRecord]:
        """See `Store.tasks`."""
        self._check_open()
        records = [r for space in list(self._spaces.values()) for r in space.read_tasks()]
        records.sort(key=lambda record: (record.created_at, record.space, record.id))
        return (record for record in records if task_rules.fits(record, query))

    def lease(self, space: str, task: TaskId) -> Lease | None:
        """See `Store.lease`."""
        return self._space(space).leases.get(check_task_id(task))

    def set_lease(self, space: str, task: TaskId, lease: Lease | None, *, replacing: str) -> None:
        """See `Store.set_lease`."""
        with self._lock:
            current = self._space(space)
            task_rules.check_lease(task, current.leases.get(check_task_id(task)), replacing)
            if lease is None:
                current.leases.pop(task, None)
            else:
                current.leases[task] = lease
                self._spaces[space] = current

    def compact_task(self, space: str, task: TaskId, *, upto: int) -> TaskHead:
        """See `Store.compact_task`."""
        with self._lock:
            current = self._space(space)
            head = task_rules.plan_compaction(current, check_task_id(task), upto)
            found = current.tasks[task]
            found.events = {seq: body for seq, body in found.events.items() if seq > upto}
            found.snapshots = {seq: body for seq, body in found.snapshots.items() if seq >= upto}
            record = codec.load(TaskRecord, found.record, f"task {task}")
            found.head, found.record = head, codec.dump(record.model_copy(update={"archived": True}))
        return head

    def erase(self, space: str, erasure: Erasure, *, expected_seq: int) -> None:
        """See `Store.erase`."""
        with self._lock:
            current = self._space(space)
            rules.check_erasure(current, space, erasure, expected_seq=expected_seq)
            for seq, event in erasure.events.items():
                current.events[seq - 1] = codec.dump(event)
            current.requests.update({record.id: codec.dump(record) for record in erasure.requests})
            current.nodes.update({node.id: codec.dump(node) for node in erasure.nodes})
            for request, lines in erasure.lines.items():
                current.index[request] = [codec.dump(line) for line in lines]
            for evidence in erasure.evidence:
                current.records.pop(evidence, None)
            for key in erasure.blobs:
                current.blobs.pop(key, None)
            current.blobs[EMPTY] = b""

    def erase_space(self, space: str) -> bool:
        """See `Store.erase_space`."""
        with self._lock:
            self._space(space)
            return self._spaces.pop(space, None) is not None

    def size_bytes_of(self, space: str) -> int:
        """See `Store.size_bytes_of`."""
        return self._space(space).size_bytes()

    def verify(self, space: str) -> list[Fault]:
        """See `Store.verify`."""
        return verification.verify(self._space(space), space)

    def close(self) -> None:
        """Forget everything. Idempotent; any later call is a UsageError."""
        self._closed = True
        self._spaces = {}

    def _check_open(self) -> None:
        if self._closed:
            raise UsageError("the store is closed")

    def _space(self, name: str) -> "_Space":
        """The space, or an empty one that the first event will enter into the store."""
        self._check_open()
        return self._spaces.get(check_space_name(name)) or _Space()


class _Task:
    """One task of a space."""

    def __init__(self) -> None:
        self.head = TaskHead()
        self.record = b""
        self.events: dict[int, bytes] = {}
        self.snapshots: dict[int, bytes] = {}

    def size_bytes(self) -> int:
        return len(self.record) + sum(
            len(body) for table in (self.events, self.snapshots) for body in table.values()
        )

    def read_events(self, task: TaskId, after: int, upto: int | None) -> Iterator[TaskEvent]:
        last = self.head.seq if upto is None else min(upto, self.head.seq)
        for seq in range(after + 1, last + 1):
            yield codec.load_task_event(json.loads(self.events[seq]), seq, f"event seq {seq} of task {task}")


class _Space:
    """One space; what `rules.View`, `Reader` and `verification.Records` ask of it."""

    def __init__(self) -> None:
        self.stored_head = Head()
        self.events: list[bytes] = []
        self.nodes: dict[NodeId, bytes] = {}
        self.index: dict[RequestId, list[bytes]] = {}
        self.records: dict[EvidenceId, bytes] = {}
        self.requests: dict[RequestId, bytes] = {}
        self.blobs: dict[str, bytes] = {}
        self.tasks: dict[TaskId, _Task] = {}
        self.leases: dict[TaskId, Lease] = {}

    def size_bytes(self) -> int:
        tables: tuple[Mapping[Any, bytes], ...] = (self.nodes, self.records, self.requests, self.blobs)
        named = sum(len(key) + len(body) for table in tables for key, body in list(table.items()))
        lines = sum(len(body) for bodies in list(self.index.values()) for body in bodies)
        return named + lines + sum(map(len, self.events)) + sum(t.size_bytes() for t in self.tasks.values())

    def task_head(self, task: TaskId) -> TaskHead:
        found = self.tasks.get(task)
        return found.head if found else TaskHead()

    def has_snapshot(self, task: TaskId, seq: int) -> bool:
        found = self.tasks.get(task)
        return found is not None and seq in found.snapshots

    def task(self, task: TaskId) -> TaskRecord | None:
        found = self.tasks.get(task)
        return codec.load(TaskRecord, found.record, f"task {task}") if found else None

    def read_tasks(self) -> Iterator[TaskRecord]:
        for task, found in list(self.tasks.items()):
            yield codec.load(TaskRecord, found.record, f"task {task}")

    def head(self) -> Head:
        return self.stored_head

    def has_node(self, node_id: NodeId) -> bool:
        return node_id in self.nodes

    def has_evidence(self, evidence_id: EvidenceId) -> bool:
        return evidence_id in self.records

    def has_blob(self, key: str) -> bool:
        return key in self.blobs

    def node(self, node_id: NodeId) -> Node | None:
        body = self.nodes.get(node_id)
        return None if body is None else codec.load_node(body, f"node {node_id}")

    def evidence(self, evidence_id: EvidenceId) -> EvidenceRecord | None:
        body = self.records.get(evidence_id)
        return None if body is None else codec.load(EvidenceRecord, body, f"evidence {evidence_id}")

    def blob(self, key: str) -> bytes:
        raw = self.blobs.get(key)
        if raw is None:
            raise CorruptValue(f"raw result {key}: not in this space")
        if digest(raw) != key:
            raise CorruptValue(f"raw result {key}: its bytes have digest {digest(raw)}")
        return raw

    def request(self, request_id: RequestId) -> RequestRecord | None:
        body = self.requests.get(request_id)
        return None if body is None else codec.load(RequestRecord, body, f"request {request_id}")

    def lines(self, request_id: RequestId) -> Sequence[IndexLine]:
        subject = f"index of {request_id}"
        return [codec.load(IndexLine, body, subject) for body in self.index.get(request_id, ())]

    def read_events(self, after: int, upto: int | None) -> Iterator[Event]:
        last = len(self.events) if upto is None else min(upto, len(self.events))
        for seq in range(max(after, 0) + 1, last + 1):
            yield _load_event(seq, self.events[seq - 1])

    def read_requests(self, first: int, last: int | None) -> Iterator[RequestRecord]:
        for request_id, body in list(self.requests.items()):
            if first <= request_number(request_id) and (last is None or request_number(request_id) <= last):
                yield codec.load(RequestRecord, body, f"request {request_id}")

    def read_nodes(self) -> Iterator[Node]:
        for node_id, body in list(self.nodes.items()):
            yield codec.load_node(body, f"node {node_id}")

    def scan_events(self, upto: int) -> Iterator[tuple[int, Event | StoreError]]:
        for seq, body in enumerate(self.events[:upto], start=1):
            yield seq, codec.outcome(_load_event, seq, body)

    def scan_requests(self) -> Iterator[tuple[RequestId, RequestRecord | StoreError]]:
        for request_id, body in list(self.requests.items()):
            yield request_id, codec.outcome(codec.load, RequestRecord, body, f"request {request_id}")

    def scan_nodes(self) -> Iterator[tuple[NodeId, Node | StoreError]]:
        for node_id, body in list(self.nodes.items()):
            yield node_id, codec.outcome(codec.load_node, body, f"node {node_id}")

    def scan_lines(self) -> Iterator[tuple[RequestId, IndexLine | StoreError]]:
        for request_id, bodies in list(self.index.items()):
            for body in bodies:
                yield request_id, codec.outcome(codec.load, IndexLine, body, f"index of {request_id}")

    def scan_evidence(self) -> Iterator[tuple[EvidenceId, EvidenceRecord | StoreError]]:
        for evidence_id, body in list(self.records.items()):
            yield evidence_id, codec.outcome(codec.load, EvidenceRecord, body, f"evidence {evidence_id}")


def _load_event(seq: int, body: bytes) -> Event:
    return codec.load_event(json.loads(body), seq, f"event seq {seq}")


class _LiveReader:
    """Looks its space up at each call, so that it shows the newest state even of a space begun later."""

    def __init__(self, store: MemoryStore, space: str) -> None:
        self._store = store
        self._name = space

    def node(self, node_id: NodeId) -> Node | None:
        return self._store._space(self._name).node(node_id)

    def evidence(self, evidence_id: EvidenceId) -> EvidenceRecord | None:
        return self._store._space(self._name).evidence(evidence_id)

    def blob(self, key: str) -> bytes:
        return self._store._space(self._name).blob(key)

    def request(self, request_id: RequestId) -> RequestRecord | None:
        return self._store._space(self._name).request(request_id)

    def lines(self, request_id: RequestId) -> Sequence[IndexLine]:
        return self._store._space(self._name).lines(request_id)
