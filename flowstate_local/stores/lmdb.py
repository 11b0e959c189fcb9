"""The store on disk: many spaces in one LMDB environment, every commit synced before it is reported.

The only importer of lmdb. Keys are eight bytes of space number and then big-endian numbers or ids; values are
the envelopes of `codec`. Raw results lie in `blobs`, under their space and SHA-256: once in each space that has them,
so that no space can read another's, or find out by its own that it is there.

Local disks only: LMDB's locks don't work on network file systems.
"""

import errno
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, cast

import lmdb

from flowstate_local.errors import (
    CorruptValue,
    FlowStateError,
    StoreError,
    StoreFull,
    UnknownVersion,
    UsageError,
)
from flowstate_local.events import Event
from flowstate_local.nodes import (
    EVIDENCE_ID,
    NODE_ID,
    REQUEST_ID,
    EvidenceId,
    IndexLine,
    Node,
    NodeId,
    RequestId,
)
from flowstate_local.repository import EvidenceRecord, Reader, RequestRecord
from flowstate_local.stores import codec, layout, rules, task_layout, task_rules, verification
from flowstate_local.stores.base import (
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
from flowstate_local.stores.gate import Gate
from flowstate_local.stores.group_commit import GroupCommit, Member
from flowstate_local.task_events import TaskEvent, TaskId, TaskRecord

SCHEMA_VERSION = 3
"""Of the tables and keys; values carry their own."""
DEFAULT_MAP_SIZE = 64 * 2**30
"""Bytes of address space, not of disk."""
_BATCH_RECORDS = 256
_BATCH_BYTES = 2**20
_DATA_FILE = "data.mdb"
_MAX_PLACES = 4096
LAST_KEY = b"\xff" * 400
"""Behind the prefix of a space: no key is as high."""
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

Txn: TypeAlias = Any
"""A transaction of py-lmdb, which has no types."""


Plan: TypeAlias = Callable[[Txn], tuple[Any, list[layout.Put]]]
"""What a commit returns to its caller, and what it writes."""


class _Place(NamedTuple):
    """Where a space stood after a commit of this process. It stands there yet if its log ends at the same key."""

    prefix: bytes
    last_key: bytes
    head: Head


@dataclass
class _Commit(Member[Any]):
    """One caller's part of a group commit."""

    plan: Plan
    """Reads and checks only, so that a refusal leaves nothing behind in the shared transaction."""
    size_bytes: int = 0


class LmdbStore:
    """Implements `stores.base.Store`. Safe to use from several threads and several processes, not across fork."""

    def __init__(self, environment: "_Environment", *, readonly: bool) -> None:
        """Use `open`."""
        self._env = environment
        self._readonly = readonly
        self._closed = False

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        map_size: int = DEFAULT_MAP_SIZE,
        create: bool = True,
        readonly: bool = False,
    ) -> "LmdbStore":
        """Open the store in the folder `path`. Opened twice in one process, both share one environment.

        Args:
            path: a folder on a local disk.
            map_size: bytes of address space to begin with; grown when a commit needs more.
            create: make the folder and the store if they aren't there.
            readonly: refuse writes, and never create.

        Raises:
            UsageError: `path` is a file, or holds no store and none may be created.
            UnknownVersion: a newer release wrote it; nothing was changed.
            StoreError: the folder can't be used, or holds something else.
        """
        folder = Path(path)
        environment = _open_environment(folder, map_size, create=create and not readonly, readonly=readonly)
        return cls(environment, readonly=readonly)

    def __enter__(self) -> "LmdbStore":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def spaces(self) -> list[str]:
        """See `Store.spaces`."""
        pairs = self._scan("spaces", b"", b"")
        return sorted(key.decode() for key, _ in pairs)

    def head(self, space: str) -> Head:
        """See `Store.head`."""
        with self._view(space) as view:
            return view.head()

    def reader(self, space: str) -> Reader:
        """See `Store.reader`."""
        return _SpaceReader(self, check_space_name(space))

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
        check_space_name(space)
        rules.check_blobs(blobs)
        # Dumping and compressing happen before the write lock, where nobody waits for them.
        batch = layout.Batch(events, expected_seq)
        packed_blobs = {key: codec.pack(raw) for key, raw in blobs.items()}
        known = self._env.places.get(space)

        def plan(txn: Txn) -> tuple[_Place, list[layout.Put]]:
            view = _View(self._env, txn, space, known)
            head = rules.plan_append(view, space, events, blobs, expected_seq=expected_seq)
            prefix, puts = view.prefix_or_new()
            last = batch.put(prefix, head)
            puts = [*puts, *view.blob_puts(prefix, packed_blobs), last] if events else []
            return _Place(prefix, last.key, head), puts

        place: _Place = self._commit(plan)
        if events:
            self._env.remember(space, place)
        return place.head

    def persist(self, space: str, done: FinishedRequest, *, expected_version: int, expected_seq: int) -> Head:
        """See `Store.persist`."""
        check_space_name(space)
        rules.check_blobs(done.blobs)
        batch = layout.Batch(done.events, expected_seq)
        packed_blobs = {key: codec.pack(raw) for key, raw in done.blobs.items()}
        known = self._env.places.get(space)

        def plan(txn: Txn) -> tuple[_Place, list[layout.Put]]:
            view = _View(self._env, txn, space, known)
            end = rules.plan_persist(
                view, space, done, expected_version=expected_version, expected_seq=expected_seq
            )
            prefix, puts = view.prefix_or_new()
            puts += view.blob_puts(prefix, packed_blobs)
            last = batch.put(prefix, end.head)
            return _Place(prefix, last.key, end.head), [*puts, last, *layout.request_puts(prefix, end)]

        place: _Place = self._commit(plan)
        self._env.remember(space, place)
        return place.head

    def events(self, space: str, *, after: int = 0, upto: int | None = None) -> Iterator[Event]:
        """See `Store.events`. A seq that is missing in between is a CorruptValue, too."""
        return self._read_events(self._prefix(space), max(after, 0), upto)

    def requests(self, space: str, *, first: int = 1, last: int | None = None) -> Iterator[RequestRecord]:
        """See `Store.requests`."""
        return self._read_requests(self._prefix(space), max(first, 0), last)

    def nodes(self, space: str) -> Iterator[Node]:
        """See `Store.nodes`."""
        reader = self.reader(space)
        return (
            _present(reader.node(node_id), node_id)
            for record in self.requests(space)
            for node_id in record.nodes
        )

    def erase(self, space: str, erasure: Erasure, *, expected_seq: int) -> None:
        """See `Store.erase`. The bytes stay in free pages of the file until something overwrites them; a copy made
        with `backup` hasn't got them.
        """
        check_space_name(space)

        def plan(txn: Txn) -> tuple[bool, list[layout.Put]]:
            view = _View(self._env, txn, space)
            rules.check_erasure(view, space, erasure, expected_seq=expected_seq)
            if view.prefix is None:
                return True, []
            batches = {pair[0]: pair[1] for pair in map(view.batch_of, erasure.events)}
            puts = [layout.rewritten_batch(key, value, erasure.events) for key, value in batches.items()]
            return True, [*puts, *layout.erasure_puts(view.prefix, erasure)]

        self._commit(plan)

    def erase_space(self, space: str) -> bool:
        """See `Store.erase_space`, and `erase` of the bytes."""
        check_space_name(space)

        def plan(txn: Txn) -> tuple[bool, list[layout.Put]]:
            view = _View(self._env, txn, space)
            if view.prefix is None:
                return False, []
            puts = [layout.Put("spaces", space.encode(), None)]
            for key in view.keys_of("tasks", view.prefix, view.prefix + LAST_KEY):
                entry = view.entry(TaskId(key[8:].decode()))
                puts += task_layout.index_removals(view.prefix, entry) if entry else []
            for table in layout.SPACE_TABLES:
                keys = view.keys_of(table, view.prefix, view.prefix + LAST_KEY)
                puts += [layout.Put(table, key, None) for key in keys]
            return True, puts

        return bool(self._commit(plan))

    def size_bytes_of(self, space: str) -> int:
        """See `Store.size_bytes_of`."""
        with self._view(space) as view:
            return 0 if view.prefix is None else sum(map(view.size_bytes_of, layout.SPACE_TABLES))

    def verify(self, space: str) -> list[Fault]:
        """See `Store.verify`."""
        return verification.verify(_SpaceReader(self, check_space_name(space)), space)

    def close(self) -> None:
        """See `Store.close`. The environment closes with the last store of this process that uses it."""
        if not self._closed:
            self._closed = True
            _release(self._env)

    def size_bytes(self) -> int:
        """Size of the data file, free pages included."""
        self._check_open()
        return self._env.data_file.stat().st_size

    def backup(self, path: str | os.PathLike[str]) -> None:
        """Copy the store as of now, without free pages, into the new folder `path`; others may go on writing.

        Raises:
            UsageError: something is at `path` already.
            StoreFull: the copy did not fit; nothing was left at `path`.
        """
        self._check_open()
        target = Path(path)
        if target.exists():
            raise UsageError(f"{target} exists already", hint="Name a folder that does not exist yet.")
        partial = target.with_name(f".{target.name}.partial-{os.getpid()}")
        try:
            partial.mkdir(parents=True, mode=0o700)
            self._env.copy(partial)
            partial.rename(target)
        except OSError as error:
            raise _disk_error(error.errno, f"can't copy the store to {target}: {error}", target) from error
        finally:
            shutil.rmtree(partial, ignore_errors=True)

    def _check_open(self) -> None:
        if self._closed:
            raise UsageError("the store is closed")
        self._env.check_process()

    def _commit(self, plan: Plan) -> Any:
        self._check_open()
        if self._readonly:
            raise UsageError("the store was opened read-only", hint="Open it with readonly=False.")
        return self._env.commit(plan)

    # --- tasks --------------------------------------------------------------------------------------------

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
        check_space_name(space)
        rules.check_blobs(blobs)
        batch = task_layout.TaskBatch(record.id, events, expected_seq)
        packed_blobs = {key: codec.pack(raw) for key, raw in blobs.items()}
        packed_snapshot = None if snapshot is None else codec.pack(snapshot)

        def plan(txn: Txn) -> tuple[TaskHead, list[layout.Put]]:
            view = _View(self._env, txn, space)
            head, after = task_rules.plan_append(
                view,
                events,
                blobs,
                expected_seq=expected_seq,
                record=record,
                with_snapshot=snapshot is not None,
            )
            prefix, puts = view.prefix_or_new()
            puts += view.blob_puts(prefix, packed_blobs)
            puts.append(batch.put(prefix))
            puts += task_layout.record_puts(prefix, head, view.entry(record.id), after)
            if packed_snapshot is not None:
                puts.append(task_layout.snapshot_put(prefix, record.id, head.seq, packed_snapshot))
            return head, puts

        return cast(TaskHead, self._commit(plan))

    def task_head(self, space: str, task: TaskId) -> TaskHead:
        """See `Store.task_head`."""
        with self._view(space) as view:
            return view.task_head(check_task_id(task))

    def task_events(
        self, space: str, task: TaskId, *, after: int = 0, upto: int | None = None
    ) -> Iterator[TaskEvent]:
        """See `Store.task_events`."""
        with self._view(space) as view:
            prefix, head = view.prefix, view.task_head(check_task_id(task))
        task_rules.check_not_compacted(task, head, after)
        return self._read_task_events(prefix, task, max(after, 0), upto)

    def snapshot(self, space: str, task: TaskId, *, upto: int | None = None) -> tuple[int, bytes] | None:
        """See `Store.snapshot`."""
        check_task_id(task)
        with self._view(space) as view:
            if view.prefix is None:
                return None
            found = view.last_of("task_snapshots", *task_layout.span(view.prefix, task, upto))
        return None if found is None else task_layout.decode_snapshot(*found)

    def task(self, space: str, task: TaskId) -> TaskRecord | None:
        """See `Store.task`."""
        with self._view(space) as view:
            entry = view.entry(check_task_id(task))
        return None if entry is None else entry.record()

    def tasks(self, query: TaskQuery) -> Iterator[TaskRecord]:
        """See `Store.tasks`."""
        start, prefix = task_layout.index_range(query)
        for key, _ in self._scan("task_index", start, prefix):
            if task_layout.is_past(key, prefix, query):
                return
            with self._env.reading() as txn:
                found = txn.get(task_layout.task_key(key), db=self._env.tables["tasks"])
            if found is not None:
                record = task_layout.Entry(task_layout.task_key(key), found).record()
                if task_rules.fits(record, query):
                    yield record

    def lease(self, space: str, task: TaskId) -> Lease | None:
        """See `Store.lease`."""
        with self._view(space) as view:
            return view.lease(check_task_id(task))

    def set_lease(self, space: str, task: TaskId, lease: Lease | None, *, replacing: str) -> None:
        """See `Store.set_lease`."""

        def plan(txn: Txn) -> tuple[bool, list[layout.Put]]:
            view = _View(self._env, txn, space)
            task_rules.check_lease(task, view.lease(check_task_id(task)), replacing)
            prefix, puts = view.prefix_or_new()
            return True, [*puts, task_layout.lease_put(prefix, task, lease)]

        check_space_name(space)
        self._commit(plan)

    def compact_task(self, space: str, task: TaskId, *, upto: int) -> TaskHead:
        """See `Store.compact_task`."""

        def plan(txn: Txn) -> tuple[TaskHead, list[layout.Put]]:
            view = _View(self._env, txn, space)
            head = task_rules.plan_compaction(view, task, upto)
            entry = view.entry(task)
            assert view.prefix is not None  # or it had no snapshot
            assert entry is not None
            puts = [
                layout.Put(table, key, None)
                for table, last in (("task_events", upto), ("task_snapshots", upto - 1))
                for key in view.keys_of(table, *task_layout.span(view.prefix, task, last))
            ]
            after = entry.record().model_copy(update={"archived": True})
            return head, [*puts, *task_layout.record_puts(view.prefix, head, entry, after)]

        check_space_name(space)
        check_task_id(task)
        return cast(TaskHead, self._commit(plan))

    def _read_task_events(
        self, prefix: bytes | None, task: TaskId, after: int, upto: int | None
    ) -> Iterator[TaskEvent]:
        if prefix is None:
            return
        start, _ = task_layout.span(prefix, task, upto, first=after + 1)
        expected = after + 1
        for key, value in self._scan("task_events", start, start[:-8]):
            if upto is not None and expected > upto:
                return
            seqs = layout.seqs_of(key)
            layout.check_no_gap(seqs, expected, f" of task {task}")
            for event in task_layout.open_batch(key, value):
                if after < event.seq and (upto is None or event.seq <= upto):
                    yield event
            expected = seqs.stop

    @contextmanager
    def _view(self, space: str) -> Iterator["_View"]:
        check_space_name(space)
        self._check_open()
        with self._env.reading() as txn:
            yield _View(self._env, txn, space)

    def _prefix(self, space: str) -> bytes | None:
        with self._view(space) as view:
            return view.prefix

    def _scan(self, table: str, start: bytes, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Keys and envelopes from `start` on while keys begin with `prefix`, a batch per transaction."""
        while True:
            self._check_open()
            with self._env.reading() as txn:
                batch, more = _batch(txn.cursor(self._env.tables[table]), start, prefix)
            yield from batch
            if not more:
                return
            start = batch[-1][0] + b"\0"

    def _read_events(self, prefix: bytes | None, after: int, upto: int | None) -> Iterator[Event]:
        if prefix is None or after > rules.MAX_NUMBER:
            return
        expected = after + 1
        for key, value in self._scan("events", prefix + layout.u64(expected), prefix):
            if upto is not None and expected > upto:
                return
            seqs = layout.seqs_of(key)
            layout.check_no_gap(seqs, expected, "")
            for seq, fields in layout.open_batch(key, value):
                if after < seq and (upto is None or seq <= upto):
                    yield layout.load_event(seq, fields)
            expected = seqs.stop

    def _read_requests(self, prefix: bytes | None, first: int, last: int | None) -> Iterator[RequestRecord]:
        if prefix is None or first > rules.MAX_NUMBER:
            return
        for key, value in self._scan("requests", prefix + layout.u64(first), prefix):
            if last is not None and layout.number_of(key) > last:
                return
            yield layout.decode_request(key, value)


class _SpaceReader:
    """One space of a store: `Reader` for the pure verbs, and `verification.Records`."""

    def __init__(self, store: LmdbStore, space: str) -> None:
        self._store = store
        self._space = space

    def node(self, node_id: NodeId) -> Node | None:
        if not NODE_ID.fullmatch(node_id):
            return None
        return self._load("nodes", node_id.encode(), layout.decode_node)

    def evidence(self, evidence_id: EvidenceId) -> EvidenceRecord | None:
        number = rules.numbered(evidence_id, EVIDENCE_ID)
        return None if number is None else self._load("evidence", layout.u64(number), layout.decode_evidence)

    def blob(self, key: str) -> bytes:
        raw_key = layout.digest_bytes(key)
        with self._store._view(self._space) as view:
            value = view.get("blobs", raw_key) if raw_key else None
            prefix = view.prefix
        if raw_key is None or value is None or prefix is None:
            raise CorruptValue(f"raw result {key}: not in this space")
        raw = codec.unseal("blobs", prefix + raw_key, value, f"raw result {key}")
        if digest(raw) != key:
            raise CorruptValue(f"raw result {key}: its bytes have digest {digest(raw)}")
        return raw

    def request(self, request_id: RequestId) -> RequestRecord | None:
        number = rules.numbered(request_id, REQUEST_ID)
        return None if number is None else self._load("requests", layout.u64(number), layout.decode_request)

    def lines(self, request_id: RequestId) -> Sequence[IndexLine]:
        number = rules.numbered(request_id, REQUEST_ID)
        if number is None:
            return []
        return [layout.decode_line(key, value) for key, value in self._pairs("lines", layout.u64(number))]

    def head(self) -> Head:
        return self._store.head(self._space)

    def scan_events(self, upto: int) -> Iterator[tuple[int, Event | StoreError]]:
        for key, value in self._pairs("events"):
            seqs = layout.seqs_of(key)
            if seqs.start > upto:
                return
            batch = codec.outcome(layout.open_batch, key, value)
            if isinstance(batch, StoreError):
                yield from ((seq, batch) for seq in seqs)
            else:
                yield from ((seq, codec.outcome(layout.load_event, seq, fields)) for seq, fields in batch)

    def scan_requests(self) -> Iterator[tuple[RequestId, RequestRecord | StoreError]]:
        for key, value in self._pairs("requests"):
            yield RequestId(f"r{layout.number_of(key)}"), codec.outcome(layout.decode_request, key, value)

    def scan_nodes(self) -> Iterator[tuple[NodeId, Node | StoreError]]:
        for key, value in self._pairs("nodes"):
            yield NodeId(key[8:].decode(errors="replace")), codec.outcome(layout.decode_node, key, value)

    def scan_lines(self) -> Iterator[tuple[RequestId, IndexLine | StoreError]]:
        for key, value in self._pairs("lines"):
            yield RequestId(f"r{layout.number_of(key)}"), codec.outcome(layout.decode_line, key, value)

    def scan_evidence(self) -> Iterator[tuple[EvidenceId, EvidenceRecord | StoreError]]:
        for key, value in self._pairs("evidence"):
            yield EvidenceId(f"t{layout.number_of(key)}"), codec.outcome(layout.decode_evidence, key, value)

    def _load(self, table: str, suffix: bytes, decode: Callable[[bytes, bytes], codec.T]) -> codec.T | None:
        with self._store._view(self._space) as view:
            value = view.get(table, suffix)
            prefix = view.prefix
        return None if value is None or prefix is None else decode(prefix + suffix, value)

    def _pairs(self, table: str, suffix: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        prefix = self._store._prefix(self._space)
        if prefix is not None:
            yield from self._store._scan(table, prefix + suffix, prefix + suffix)


class _View:
    """One space in one transaction; implements `rules.View`."""

    def __init__(
        self, environment: "_Environment", txn: Txn, space: str, known: _Place | None = None
    ) -> None:
        self._tables = environment.tables
        self._txn = txn
        self._name = space.encode()
        # Where it stood is forgotten with the space, which anybody may have erased and begun anew.
        self._known = known if known and txn.get(known.last_key, db=self._tables["events"]) else None
        self.prefix = self._known.prefix if self._known else self._read_prefix()
        """The number of the space as eight bytes; None while it is unknown."""

    def _read_prefix(self) -> bytes | None:
        value = self._txn.get(self._name, db=self._tables["spaces"])
        if value is None:
            return None
        return codec.unseal("spaces", self._name, value, f"space {self._name.decode()!r}")

    def get(self, table: str, suffix: bytes) -> bytes | None:
        if self.prefix is None:
            return None
        value: bytes | None = self._txn.get(self.prefix + suffix, db=self._tables[table])
        return value

    def head(self) -> Head:
        if self.prefix is None:
            return Head()
        last = self.last_of("events", self.prefix, self.prefix + layout.LAST)
        if last is None:
            return Head()
        if self._known is not None and self._known.last_key == last[0]:
            return self._known.head
        return layout.decode_head(*last)

    def has_node(self, node_id: NodeId) -> bool:
        return self.get("nodes", node_id.encode()) is not None

    def has_evidence(self, evidence_id: EvidenceId) -> bool:
        number = rules.numbered(evidence_id, EVIDENCE_ID)
        return number is not None and self.get("evidence", layout.u64(number)) is not None

    def has_blob(self, key: str) -> bool:
        raw_key = layout.digest_bytes(key)
        return raw_key is not None and self.get("blobs", raw_key) is not None

    def entry(self, task: TaskId) -> task_layout.Entry | None:
        value = self.get("tasks", task.encode())
        if value is None or self.prefix is None:
            return None
        return task_layout.Entry(self.prefix + task.encode(), value)

    def task_head(self, task: TaskId) -> TaskHead:
        entry = self.entry(task)
        return TaskHead() if entry is None else entry.head()

    def has_snapshot(self, task: TaskId, seq: int) -> bool:
        return self.get("task_snapshots", task_layout.suffix(task, seq)) is not None

    def lease(self, task: TaskId) -> Lease | None:
        value = self.get("leases", task.encode())
        if value is None or self.prefix is None:
            return None
        return task_layout.decode_lease(self.prefix + task.encode(), value)

    def batch_of(self, seq: int) -> tuple[bytes, bytes]:
        """The batch that holds an event. Raises CorruptValue."""
        cursor = self._txn.cursor(self._tables["events"])
        there = cursor.set_range((self.prefix or b"") + layout.u64(seq))
        key = cursor.key() if there else b""
        if not there or not key.startswith(self.prefix or b"") or seq not in layout.seqs_of(key):
            raise CorruptValue(f"event seq {seq}: missing from the log")
        return cursor.item()  # type: ignore[no-any-return]

    def size_bytes_of(self, table: str) -> int:
        """Of the keys and values of the space in a table."""
        assert self.prefix is not None
        cursor, size_bytes = self._txn.cursor(self._tables[table]), 0
        there = cursor.set_range(self.prefix)
        while there and cursor.key().startswith(self.prefix):
            size_bytes += len(cursor.key()) + len(cursor.value())
            there = cursor.next()
        return size_bytes

    def last_of(self, table: str, start: bytes, stop: bytes) -> tuple[bytes, bytes] | None:
        """The pair with the highest key from `start` to `stop`, both included."""
        cursor = self._txn.cursor(self._tables[table])
        there = cursor.set_range(stop)
        if not (there and cursor.key() == stop):
            there = cursor.prev() if there else cursor.last()
        return cursor.item() if there and start <= cursor.key() <= stop else None

    def keys_of(self, table: str, start: bytes, stop: bytes) -> list[bytes]:
        """The keys from `start` to `stop`, both included."""
        cursor = self._txn.cursor(self._tables[table])
        keys = []
        there = cursor.set_range(start)
        while there and cursor.key() <= stop:
            keys.append(cursor.key())
            there = cursor.next()
        return keys

    def prefix_or_new(self) -> tuple[bytes, list[layout.Put]]:
        """The number of the space, and what enters it into the store if it is new."""
        if self.prefix is not None:
            return self.prefix, []
        value = self._txn.get(b"spaces", db=self._tables["meta"])
        taken = codec.unseal("meta", b"spaces", value, "number of spaces") if value else layout.u64(0)
        number = layout.u64(int.from_bytes(taken, "big") + 1)
        return number, [
            layout.Put("meta", b"spaces", (codec.PLAIN, number)),
            layout.Put("spaces", self._name, (codec.PLAIN, number)),
        ]

    def blob_puts(self, prefix: bytes, packed: Mapping[str, tuple[int, bytes]]) -> list[layout.Put]:
        """What adds the raw results that the space has not yet."""
        keys = {bytes.fromhex(key): body for key, body in packed.items()}
        return [
            layout.Put("blobs", prefix + raw_key, body)
            for raw_key, body in keys.items()
            if self._txn.get(prefix + raw_key, db=self._tables["blobs"]) is None
        ]


# One environment per process and file


@dataclass
class _Environment:
    """An open LMDB environment: transactions, growing, and group commit."""

    lmdb_env: Any
    folder: Path
    readonly: bool
    tables: dict[str, Any] = field(default_factory=dict)
    n_users: int = 0
    pid: int = field(default_factory=os.getpid)
    places: dict[str, _Place] = field(default_factory=dict)
    """By space. What was committed only: its number and the head of a log that ends at some key never change."""

    def __post_init__(self) -> None:
        self._gate = Gate()
        self._group = GroupCommit(self._write)

    @property
    def data_file(self) -> Path:
        return self.folder / _DATA_FILE

    def check_process(self) -> None:
        """Raise UsageError in a child: the locks and reader slots of LMDB belong to the process that opened it."""
        if os.getpid() != self.pid:
            raise UsageError(
                f"the store in {self.folder} was opened by process {self.pid} before it forked",
                hint="Open stores after the fork, or start processes with the 'spawn' method.",
            )

    def remember(self, space: str, place: _Place) -> None:
        """So that the next commit of the space needn't read its head."""
        if len(self.places) >= _MAX_PLACES:
            self.places.clear()
        self.places[space] = place

    @contextmanager
    def reading(self) -> Iterator[Txn]:
        """A read transaction. Never yield to a caller inside: an open reader keeps LMDB from reusing pages."""
        with _translated(self.folder), self._transaction(write=False) as txn:
            yield txn

    @contextmanager
    def _transaction(self, *, write: bool) -> Iterator[Txn]:
        self.check_process()
        txn = self._begin(write)
        try:
            yield txn
        finally:
            txn.abort()  # no effect after a commit
            self._gate.leave()

    def _begin(self, write: bool) -> Txn:
        try:
            return self._enter(write)
        except lmdb.MapResizedError:
            # Another process has grown the map; 0 adopts its size.
            with self._gate.alone():
                self.lmdb_env.set_mapsize(0)
        except lmdb.ReadersFullError:
            # Killed readers keep their slots until somebody looks.
            self.lmdb_env.reader_check()
        return self._enter(write)

    def _enter(self, write: bool) -> Txn:
        self._gate.enter()
        try:
            return self.lmdb_env.begin(write=write)
        except BaseException:
            self._gate.leave()
            raise

    def copy(self, folder: Path) -> None:
        """Write a compacted copy of the data file into an empty folder."""
        with _translated(folder), self._transaction(write=False) as txn:
            self.lmdb_env.copy(str(folder), compact=True, txn=txn)
            (folder / _DATA_FILE).chmod(0o600)

    def close(self) -> None:
        """Wait for the transactions that run, and close."""
        with self._gate.alone():
            self.lmdb_env.close()

    def commit(self, plan: Plan) -> Any:
        """Commit with all that wait at the same time: one transaction, one sync; each fails for itself."""
        self.check_process()
        return self._group.commit(_Commit(plan))

    def _write(self, group: Sequence[_Commit]) -> None:
        with _translated(self.folder):
            self._transact_or_grow(group)

    def _transact_or_grow(self, group: Sequence[_Commit]) -> None:
        try:
            self._transact(group)
        except lmdb.MapFullError:
            self._grow(sum(member.size_bytes for member in group))
            self._transact(group)

    def _transact(self, group: Sequence[_Commit]) -> None:
        with self._transaction(write=True) as txn:
            for member in group:
                self._apply(txn, member)
            txn.commit()

    def _apply(self, txn: Txn, member: _Commit) -> None:
        member.result, member.error = None, None
        try:
            head, puts = member.plan(txn)
        except FlowStateError as error:
            member.error = error
            return
        member.size_bytes = sum(put.size_bytes for put in puts)
        for put in puts:
            table = self.tables[put.table]
            if put.packed is None:
                txn.delete(put.key, db=table)
                continue
            value = codec.seal(put.table, put.key, put.packed)
            # What goes to the end of a table leaves full pages behind it; elsewhere they are split in halves.
            if not txn.put(put.key, value, db=table, append=True):
                txn.put(put.key, value, db=table)
        member.result = head

    def _grow(self, size_bytes: int) -> None:
        """Make room for twice what is there, and for a commit of this size with the pages it touches."""
        with self._gate.alone():
            now = self.lmdb_env.info()["map_size"]
            try:
                self.lmdb_env.set_mapsize(max(2 * now, now + 4 * size_bytes + 2**20))
            except (lmdb.Error, OverflowError) as error:
                raise StoreFull(
                    f"the map of {self.folder} has {now} bytes and can't grow: {error}; nothing was written"
                ) from error


_environments: dict[tuple[int, int], _Environment] = {}
"""By device and inode of the data file: LMDB allows one environment per file and process."""
_environments_lock = threading.Lock()


def _renew_lock() -> None:
    """In a forked child the lock may be held by a thread that isn't there."""
    global _environments_lock
    _environments_lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)


def _open_environment(folder: Path, map_size: int, *, create: bool, readonly: bool) -> _Environment:
    _check_folder(folder, create)
    with _environments_lock, _translated(folder):
        environment = _environments.get(_identity(folder))
        if environment is None:
            environment = _new_environment(folder, map_size, readonly)
            _environments[_identity(folder)] = environment
        environment.check_process()
        if environment.readonly and not readonly:
            raise UsageError(
                f"the store in {folder} is open read-only in this process",
                hint="Close it first, or open it for writing from the start.",
            )
        environment.n_users += 1
        return environment


def _release(environment: _Environment) -> None:
    environment.check_process()
    with _environments_lock:
        environment.n_users -= 1
        if environment.n_users == 0:
            for identity in [key for key, value in _environments.items() if value is environment]:
                del _environments[identity]
            environment.close()


def _identity(folder: Path) -> tuple[int, int]:
    with suppress(FileNotFoundError):
        status = (folder / _DATA_FILE).stat()
        return status.st_dev, status.st_ino
    return 0, 0


def _check_folder(folder: Path, create: bool) -> None:
    try:
        if folder.exists() and not folder.is_dir():
            raise UsageError(
                f"{folder} is not a folder", hint="Name a folder; the store puts its files inside."
            )
        if create:
            # Memory is private: only its owner may look.
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        elif not (folder / _DATA_FILE).exists():
            raise UsageError(
                f"there is no store in {folder}", hint="Check the path, or open with create=True."
            )
    except OSError as error:
        raise _disk_error(error.errno, f"can't use {folder}: {error.strerror}", folder) from error


def _new_environment(folder: Path, map_size: int, readonly: bool) -> _Environment:
    lmdb_env = lmdb.open(
        str(folder),
        lib_version=0,  # data that other programs read, too: the format of LMDB 0.9
        map_size=map_size,
        max_dbs=24,
        max_readers=2048,
        mode=0o600,
        readonly=readonly,
        sync=True,
        metasync=True,
        writemap=False,
    )
    try:
        lmdb_env.reader_check()
        _restore_length(lmdb_env, folder / _DATA_FILE)
        environment = _Environment(lmdb_env, folder.resolve(), readonly)
        is_new = _check_schema(lmdb_env, folder)
        if is_new and readonly:
            raise UsageError(
                f"there is no store in {folder}", hint="Check the path, or open with create=True."
            )
        environment.tables = _open_tables(lmdb_env, readonly)
    except BaseException:
        lmdb_env.close()
        raise
    return environment


def _check_schema(lmdb_env: Any, folder: Path) -> bool:
    """Is the file new? Reads only, so that a store of a newer release stays as it is."""
    with lmdb_env.begin() as txn:
        names = [bytes(key) for key in txn.cursor().iternext(keys=True, values=False)]
        if not names:
            return True
    if b"meta" not in names:
        raise _foreign(folder)
    # Not within the transaction: a handle opened in a read transaction is lost at its end.
    meta = lmdb_env.open_db(b"meta", create=False)
    with lmdb_env.begin() as txn:
        value = txn.get(b"schema_version", db=meta)
    if value is None:
        raise _foreign(folder)
    version = int(codec.unseal("meta", b"schema_version", value, "schema version of the store"))
    if version > SCHEMA_VERSION:
        raise UnknownVersion(
            f"the store in {folder} has schema version {version}; this release knows up to {SCHEMA_VERSION}"
        )
    if version < SCHEMA_VERSION:
        raise StoreError(
            f"the store in {folder} was made by a version that was never released (schema version {version})",
            hint="Export it with that version (`flowstate memory export`), and begin a new store.",
        )
    return False


def _foreign(folder: Path) -> StoreError:
    return StoreError(
        f"{folder / _DATA_FILE} belongs to another program",
        hint="Name another folder; nothing was changed in this one.",
    )


def _open_tables(lmdb_env: Any, readonly: bool) -> dict[str, Any]:
    if readonly:
        return {name: lmdb_env.open_db(name.encode(), create=False) for name in layout.TABLES}
    with lmdb_env.begin(write=True) as txn:
        tables = {name: lmdb_env.open_db(name.encode(), txn=txn) for name in layout.TABLES}
        version = codec.seal("meta", b"schema_version", codec.pack(str(SCHEMA_VERSION).encode()))
        txn.put(b"schema_version", version, db=tables["meta"])
    return tables


def _restore_length(lmdb_env: Any, data_file: Path) -> None:
    """Give a data file that is shorter than it says its length back, if only free pages are missing.

    LMDB doesn't write free pages at the end, so whole files can be short. But if pages in use were lost, reading them
    kills the process (SIGBUS), and so do the zeros that would take their place (LMDB's own assertions).
    """
    needed = (lmdb_env.info()["last_pgno"] + 1) * lmdb_env.stat()["psize"]
    if data_file.stat().st_size >= needed:
        return
    if not _readable_by_another(data_file):
        raise CorruptValue(
            f"{data_file} has lost its end, which should be at byte {needed}",
            hint="Restore it from a backup; nothing was changed.",
        )
    try:
        file = os.open(data_file, os.O_RDWR)
        try:
            # Unlike truncate, this can't cut off what another process appends at this moment.
            os.posix_fallocate(file, needed - 1, 1)
        finally:
            os.close(file)
    except OSError as error:
        raise CorruptValue(
            f"{data_file} ends before byte {needed}, and can't be extended: {error}"
        ) from error


_READ_ALL = """
import os, sys, lmdb
env = lmdb.open(sys.argv[1], readonly=True, lock=os.access(sys.argv[1], os.W_OK), max_dbs=64, lib_version=0)
with env.begin(buffers=True) as txn:
    names = [bytes(name) for name in txn.cursor().iternext(values=False)]
tables = [env.open_db(name, create=False) for name in names]
with env.begin(buffers=True) as txn:
    for table in tables:
        for _, value in txn.cursor(table):
            bytes(value[-1:])
"""
"""Touches every page in use: all keys, and the last page of each value. Run by a process of its own."""


def _readable_by_another(data_file: Path) -> bool:
    """Does a process that reads everything survive?"""
    command = [sys.executable, "-c", _READ_ALL, str(data_file.parent)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


# Foreign errors become ours


@contextmanager
def _translated(folder: Path) -> Iterator[None]:
    try:
        yield
    except lmdb.MapFullError as error:
        raise StoreFull(f"the commit did not fit into the map of {folder}; nothing was written") from error
    except (lmdb.InvalidError, lmdb.IncompatibleError) as error:
        raise StoreError(
            f"{folder / _DATA_FILE} is not a store: {error}",
            hint="Name another folder, or restore this one from a backup.",
        ) from error
    except lmdb.VersionMismatchError as error:
        raise UnknownVersion(f"{folder / _DATA_FILE} has another LMDB format: {error}") from error
    except (lmdb.CorruptedError, lmdb.PageNotFoundError, lmdb.PanicError) as error:
        raise CorruptValue(f"{folder / _DATA_FILE} is damaged: {error}") from error
    except lmdb.ReadersFullError as error:
        raise StoreError(f"too many processes read {folder}", hint="Close some of them.") from error
    except lmdb.DiskError as error:
        raise _disk_error(errno.ENOSPC, str(error), folder) from error
    except lmdb.Error as error:
        raise _disk_error(getattr(error, "code", None), str(error), folder) from error


def _disk_error(code: int | None, message: str, folder: Path) -> FlowStateError:
    if code in _FULL or (code == errno.EIO and _is_full(folder)):
        return StoreFull(f"{message}; nothing was written")
    if "already open in this process" in message:
        return UsageError(
            f"the store in {folder} was opened before this process was forked",
            hint="Open stores after the fork, or start processes with the 'spawn' method.",
        )
    if code in (errno.EACCES, errno.EPERM, errno.EROFS):
        return StoreError(message, hint="Name a folder that you may write, or change its permissions.")
    return StoreError(message, hint="Check the folder and its disk; stores need a local file system.")


def _is_full(folder: Path) -> bool:
    """LMDB reports a write that was cut short as an I/O error; on a full disk that is what happens first."""
    with suppress(OSError):
        return shutil.disk_usage(folder).free < _BATCH_BYTES
    return False


def _batch(cursor: Any, start: bytes, prefix: bytes) -> tuple[list[tuple[bytes, bytes]], bool]:
    """Some pairs from `start` on, and whether more may follow."""
    batch: list[tuple[bytes, bytes]] = []
    size_bytes = 0
    # An empty key is illegal in LMDB; a table is read from its start with first().
    there = cursor.set_range(start) if start else cursor.first()
    while there:
        key, value = cursor.item()
        if not key.startswith(prefix):
            return batch, False
        batch.append((key, value))
        size_bytes += len(value)
        if len(batch) == _BATCH_RECORDS or size_bytes >= _BATCH_BYTES:
            return batch, True
        there = cursor.next()
    return batch, False


def _present(node: Node | None, node_id: NodeId) -> Node:
    if node is None:
        raise CorruptValue(f"node {node_id}: a request lists it, but it is not there")
    return node
