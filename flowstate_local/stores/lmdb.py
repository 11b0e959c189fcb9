"""The store on disk: many spaces in one LMDB environment, every commit synced before it is reported.

Keys are eight bytes of space number and then big-endian numbers or ids; values are
the envelopes of `codec`. Raw results lie in `blobs`, under their space and SHA-256: once in each space that has them,
so that no space can read another's, or find out by its own that it is there.

Local disks only: LMDB's locks don't work on network file systems.
"""

import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from flowstate_local.errors import (
    CorruptValue,
    StoreError,
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
from flowstate_local.stores.lmdb_environment import (
    Environment,
    Place,
    Plan,
    Txn,
    disk_error,
    open_environment,
    release,
)
from flowstate_local.task_events import TaskEvent, TaskId, TaskRecord

DEFAULT_MAP_SIZE = 64 * 2**30
"""Bytes of address space, not of disk."""
_BATCH_RECORDS = 256
_BATCH_BYTES = 2**20
LAST_KEY = b"\xff" * 400
"""Behind the prefix of a space: no key is as high."""


class LmdbStore:
    """Implements `stores.base.Store`. Safe to use from several threads and several processes, not across fork."""

    def __init__(self, environment: "Environment", *, readonly: bool) -> None:
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
        environment = open_environment(folder, map_size, create=create and not readonly, readonly=readonly)
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

        def plan(txn: Txn) -> tuple[Place, list[layout.Put]]:
            view = _View(self._env, txn, space, known)
            head = rules.plan_append(view, space, events, blobs, expected_seq=expected_seq)
            prefix, puts = view.prefix_or_new()
            last = batch.put(prefix, head)
            puts = [*puts, *view.blob_puts(prefix, packed_blobs), last] if events else []
            return Place(prefix, last.key, head), puts

        place: Place = self._commit(plan)
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

        def plan(txn: Txn) -> tuple[Place, list[layout.Put]]:
            view = _View(self._env, txn, space, known)
            end = rules.plan_persist(
                view, space, done, expected_version=expected_version, expected_seq=expected_seq
            )
            prefix, puts = view.prefix_or_new()
            puts += view.blob_puts(prefix, packed_blobs)
            last = batch.put(prefix, end.head)
            return Place(prefix, last.key, end.head), [*puts, last, *layout.request_puts(prefix, end)]

        place: Place = self._commit(plan)
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
            release(self._env)

    def size_bytes(self) -> int:
        """Size of the data file, free pages and the room behind them included."""
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
            raise disk_error(error.errno, f"can't copy the store to {target}: {error}", target) from error
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

    def __init__(self, environment: "Environment", txn: Txn, space: str, known: Place | None = None) -> None:
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
