"""Verification: re-derive from the event log what the rest of a space should say, and list where it doesn't.

Works on any store through `Records`. Memory use is bounded by the largest request, not by the space.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar

from flowstate_local.errors import StoreError
from flowstate_local.events import DeltaCommitted, Event, RequestFinished, RequestStarted, ToolFinished
from flowstate_local.nodes import EvidenceId, IndexLine, Node, NodeId, RequestId, request_number
from flowstate_local.repository import EvidenceRecord, Reader, RequestRecord
from flowstate_local.stores.base import Fault, Head
from flowstate_local.stores.rules import advance

T = TypeVar("T")
K = TypeVar("K", bound=str)


class Records(Reader, Protocol):
    """A space as verification reads it. A scan puts the error in the place of a value it can't read."""

    def head(self) -> Head:
        """The stored head. Raises StoreError."""

    def scan_events(self, upto: int) -> Iterator[tuple[int, Event | StoreError]]:
        """All events up to this seq, by seq."""

    def scan_requests(self) -> Iterator[tuple[RequestId, RequestRecord | StoreError]]:
        """All records of persisted requests."""

    def scan_nodes(self) -> Iterator[tuple[NodeId, Node | StoreError]]:
        """All nodes, in any order."""

    def scan_lines(self) -> Iterator[tuple[RequestId, IndexLine | StoreError]]:
        """All index lines, by request."""

    def scan_evidence(self) -> Iterator[tuple[EvidenceId, EvidenceRecord | StoreError]]:
        """All evidence records, in any order."""


def verify(records: Records, space: str) -> list[Fault]:
    """Everything in the space that isn't as the log, the refs or the checksums say; [] means whole.

    What other writers commit meanwhile is left out, so a space in use doesn't look broken.
    """
    return _Verification(records, space).run()


@dataclass
class _Request:
    """The fold of one request's events."""

    started: int = 0
    active: dict[NodeId, Node] = field(default_factory=dict)
    results: dict[EvidenceId, ToolFinished] = field(default_factory=dict)
    readable: bool = True
    """False once an event of it couldn't be read: then its nodes can't be derived."""


class _Verification:
    def __init__(self, records: Records, space: str) -> None:
        self._records = records
        self._space = space
        self._faults: dict[Fault, None] = {}  # ordered, and each fault once
        self._request = _Request()
        self._finished_nodes = 0
        self._finished_evidence = 0
        self._finished_requests = 0
        self._whole_log = True
        self._unlogged: set[RequestId] = set()
        """Requests that something is kept of, and that had not ended when verification began."""

    def run(self) -> list[Fault]:
        try:
            self._head = self._records.head()
        except StoreError as error:
            self._report("head", error)
            return list(self._faults)
        self._check_part("log", self._check_log)
        self._check_part("nodes", self._check_nodes)
        self._check_part("evidence", self._check_evidence)
        self._check_part("requests", self._check_requests)
        self._check_part("index lines", self._check_lines)
        self._check_part("requests", self._check_unlogged)
        return list(self._faults)

    def _report(self, subject: str, problem: StoreError | str) -> None:
        self._faults[Fault(self._space, subject, str(problem))] = None

    def _check_part(self, what: str, check: Callable[[], None]) -> None:
        """One part at a time: damage that ends a scan leaves the other parts to be checked."""
        try:
            check()
        except StoreError as error:
            self._report(what, error)
            self._whole_log = self._whole_log and what != "log"

    def _find(self, subject: str, read: Callable[[K], T | None], key: K) -> T | None:
        """What the log says must be there; its absence is a fault."""
        try:
            found = read(key)
        except StoreError as error:
            self._report(subject, error)
            return None
        if found is None:
            self._report(subject, "the log says it was kept, but it is not there")
        return found

    def _settled(self, request: RequestId) -> bool:
        """Was the request persisted when verification began?"""
        settled = request_number(request) <= self._head.requests and request != self._head.open_request
        if not settled:
            self._unlogged.add(request)
        return settled

    # the log

    def _check_log(self) -> None:
        derived = Head()
        for seq, event in self._records.scan_events(self._head.seq):
            self._check_gap(derived.seq, seq)
            derived = replace(derived, seq=seq - 1)
            if isinstance(event, StoreError):
                self._report(f"seq {seq}", event)
                self._whole_log = self._request.readable = False
                derived = replace(derived, seq=seq)
                continue
            derived = advance(derived, event)
            self._fold(seq, event)
        self._check_gap(derived.seq, self._head.seq + 1)
        derived = replace(derived, index_floor=self._head.index_floor)
        if self._whole_log and derived != self._head:
            self._report("head", f"stored as {self._head}, but the log leads to {derived}")

    def _check_gap(self, last: int, seq: int) -> None:
        if seq != last + 1:
            missing = f"seq {last + 1}" if seq == last + 2 else f"seq {last + 1} to {seq - 1}"
            self._report(missing, "missing from the log")
            self._whole_log = self._request.readable = False

    def _fold(self, seq: int, event: Event) -> None:
        if isinstance(event, RequestStarted):
            self._request = _Request(started=seq)
        elif isinstance(event, DeltaCommitted):
            for node in (*event.added, *event.updated):
                self._request.active[node.id] = node
            for node_id in event.removed:
                self._request.active.pop(node_id, None)
        elif isinstance(event, ToolFinished):
            self._request.results[event.evidence] = event
            self._check_blob(event)
        elif isinstance(event, RequestFinished):
            self._check_finished(seq, event)

    def _check_blob(self, event: ToolFinished) -> None:
        raw = self._find(f"blob {event.digest}", self._records.blob, event.digest)
        if raw is not None and len(raw) != event.size_bytes:
            self._report(event.evidence, f"raw result has {len(raw)} bytes, recorded as {event.size_bytes}")

    # what a finished request left

    def _check_finished(self, seq: int, event: RequestFinished) -> None:
        self._finished_requests += 1
        self._finished_nodes += len(event.nodes)
        self._finished_evidence += len(event.evidence)
        record = self._find(event.request, self._records.request, event.request)
        if record is not None:
            self._check_record(seq, event, record)
        if self._request.readable:
            self._check_kept(event)

    def _check_record(self, seq: int, event: RequestFinished, record: RequestRecord) -> None:
        stored = (record.outcome, record.message, record.nodes, record.evidence, record.last_seq)
        logged = (event.outcome, event.message, event.nodes, event.evidence, seq)
        names = ("outcome", "message", "nodes", "evidence", "last_seq")
        for name, left, right in zip(names, stored, logged, strict=True):
            if left != right:
                self._report(event.request, f"{name} of the record differs from the log")
        if self._request.readable and record.first_seq != self._request.started:
            self._report(
                event.request, f"first_seq is {record.first_seq}, the log says {self._request.started}"
            )

    def _check_kept(self, event: RequestFinished) -> None:
        kept = [self._check_kept_node(node_id) for node_id in event.nodes]
        lines = self._find(f"index of {event.request}", self._records.lines, event.request)
        if lines is not None and None not in kept:
            expected = [IndexLine.of(node) for node in kept if node]
            if list(lines) != expected:
                self._report(f"index of {event.request}", "the lines differ from the nodes they stand for")
        for evidence_id in event.evidence:
            self._check_kept_evidence(evidence_id)

    def _check_kept_node(self, node_id: NodeId) -> Node | None:
        node = self._find(node_id, self._records.node, node_id)
        if node is not None and node != self._request.active.get(node_id):
            self._report(node_id, "differs from the node the log leads to")
        return node

    def _check_kept_evidence(self, evidence_id: EvidenceId) -> None:
        record = self._find(evidence_id, self._records.evidence, evidence_id)
        event = self._request.results.get(evidence_id)
        if event is None:
            self._report(evidence_id, "kept, but the log has no result of this id")
        elif record is not None and _origin(record, record.tool) != _origin(event, event.name):
            self._report(evidence_id, "the record differs from the log")

    # what no request accounts for

    def _check_nodes(self) -> None:
        n_nodes = 0
        for node_id, node in self._records.scan_nodes():
            if isinstance(node, StoreError):
                self._report(node_id, node)
                n_nodes += 1
            elif self._settled(node.request):
                self._check_links(node)
                n_nodes += 1
        self._check_count("nodes", n_nodes, self._finished_nodes)

    def _check_links(self, node: Node) -> None:
        for ref in node.refs:
            if self._absent(self._records.node, ref.target):
                self._report(node.id, f"{ref.relation} {ref.target}, which does not exist")
        for evidence_id in node.evidence:
            if self._absent(self._records.evidence, evidence_id):
                self._report(node.id, f"rests on {evidence_id}, which does not exist")

    @staticmethod
    def _absent(read: Callable[[K], object], key: K) -> bool:
        try:
            return read(key) is None
        except StoreError:
            return False  # there, though unreadable: its own scan lists it

    def _check_evidence(self) -> None:
        n_evidence = 0
        for evidence_id, record in self._records.scan_evidence():
            if isinstance(record, StoreError):
                self._report(evidence_id, record)
                n_evidence += 1
            else:
                n_evidence += self._settled(record.request)
        self._check_count("evidence", n_evidence, self._finished_evidence)

    def _check_requests(self) -> None:
        n_requests = 0
        for request, record in self._records.scan_requests():
            if isinstance(record, StoreError):
                self._report(request, record)
            n_requests += self._settled(request)
        self._check_count("requests", n_requests, self._finished_requests)

    def _check_lines(self) -> None:
        n_lines = 0
        for request, line in self._records.scan_lines():
            if isinstance(line, StoreError):
                self._report(f"index of {request}", line)
            n_lines += self._settled(request)
        self._check_count("index lines", n_lines, self._finished_nodes)

    def _check_unlogged(self) -> None:
        """Either another writer has just ended these requests, or the log has lost its end."""
        if self._records.head() == self._head:
            for request in sorted(self._unlogged, key=request_number):
                self._report(request, "kept, but the log does not say that it ended")

    def _check_count(self, what: str, stored: int, logged: int) -> None:
        if self._whole_log and stored != logged:
            self._report(what, f"{stored} stored, but the log accounts for {logged}")


def _origin(result: EvidenceRecord | ToolFinished, tool: str) -> tuple[str, str, int, int, int]:
    return tool, result.digest, result.size_bytes, result.size_chars, result.step
