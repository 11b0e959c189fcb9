"""Erasure: what nodes or requests said is gone, from the log too; tombstones stay, so that refs lead somewhere.

The log is the truth, so a tombstone is an event like the one it stands for, without what it said; all other tables
follow from it as always. Verification finds nothing missing, and time travel finds the same tombstones.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from flowstate_local.errors import ConflictError, StoreBusy, UsageError
from flowstate_local.events import (
    DeltaCommitted,
    Disclosed,
    Event,
    ModelReplied,
    RequestFinished,
    RequestStarted,
    ToolFinished,
    ToolStarted,
)
from flowstate_local.nodes import EvidenceId, IndexLine, Node, NodeId, RequestId
from flowstate_local.repository import Reader, RequestRecord
from flowstate_local.stores.base import EMPTY, Erasure, Head, Store, TaskQuery
from flowstate_local.task_events import digests_of

ERASED = "[erased]"
ATTEMPTS = 5
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Erased:
    """What an erasure removed."""

    nodes: tuple[NodeId, ...]
    requests: tuple[RequestId, ...]
    evidence: tuple[EvidenceId, ...]
    """Raw results that no other node rests on."""


def erase(store: Store, space: str, *, nodes: Collection[str] = (), requests: Collection[str] = ()) -> Erased:
    """Erase nodes, or whole requests.

    Of a node goes what it says, wherever it is kept, with what the model wrote in the steps that made it, and the raw
    results that only it cites. Of a request go also its text, its reply, all it wrote, and all its raw results but
    those that nodes of other requests cite. What other requests repeat in words of their own stays: erase those too.

    Args:
        store: where.
        space: whose.
        nodes: ids of persisted nodes.
        requests: ids of persisted requests.

    Raises:
        UsageError: nothing is named, or something that isn't there.
        StoreBusy: a request that has not ended.
        ConflictError: the space is written to all the time; nothing was erased.
    """
    if not nodes and not requests:
        raise UsageError("nothing is named to be erased", hint="Name nodes or requests.")
    for _ in range(ATTEMPTS):
        head = store.head(space)
        work = _Work(store, space, head)
        work.choose({NodeId(one) for one in nodes}, {RequestId(one) for one in requests})
        try:
            store.erase(space, work.erasure(), expected_seq=head.seq)
        except ConflictError:
            continue
        return Erased(tuple(sorted(work.nodes)), tuple(sorted(work.requests)), tuple(sorted(work.evidence)))
    raise ConflictError(f"space {space!r} changes too fast; nothing was erased", hint="Try again.")


def tombstone(node: Node) -> Node:
    """What stays of a node: that it was there."""
    return Node(
        id=node.id,
        type=node.type,
        summary=ERASED,
        request=node.request,
        step=node.step,
        created_at=node.created_at,
        erased=True,
    )


@dataclass
class _Work:
    """One attempt at an erasure, against a space as it stands at `head`."""

    store: Store
    space: str
    head: Head
    nodes: set[NodeId] = field(default_factory=set)
    requests: set[RequestId] = field(default_factory=set)
    """Those that go whole."""
    evidence: set[EvidenceId] = field(default_factory=set)
    touched: dict[RequestId, RequestRecord] = field(default_factory=dict)
    """Requests of which anything changes."""

    @property
    def reader(self) -> Reader:
        """The space."""
        return self.store.reader(self.space)

    def choose(self, nodes: set[NodeId], requests: set[RequestId]) -> None:
        """Find out what goes."""
        if self.head.open_request in requests:
            raise StoreBusy(
                f"request {self.head.open_request} has not ended", hint="Let it end or abandon it first."
            )
        self.requests = requests
        self.nodes = nodes | {node for request in requests for node in self._record(request).nodes}
        found = [self._node(node) for node in self.nodes]
        self.touched = {
            request: self._record(request) for request in (*requests, *(n.request for n in found))
        }
        candidates = {one for node in found for one in node.evidence} | {
            event.evidence
            for request in requests
            for event in self._events(request)
            if isinstance(event, ToolFinished)
        }
        self.evidence = candidates - self._cited_elsewhere()
        for evidence in self.evidence:
            record = self.reader.evidence(evidence)
            if record is not None:
                self.touched[record.request] = self._record(record.request)

    def erasure(self) -> Erasure:
        """What takes the place of it."""
        stones = {node: tombstone(self._node(node)) for node in self.nodes}
        changed = [
            event
            for request in self.touched
            for event in self._tombstones(request, list(self._events(request)), stones)
        ]
        of_nodes = {stone.request for stone in stones.values()}
        return Erasure(
            events={event.seq: event for event in changed},
            requests=[self._record_without(record) for record in self.touched.values()],
            nodes=list(stones.values()),
            lines={request: self._lines(self.touched[request], stones) for request in of_nodes},
            evidence=sorted(self.evidence),
            blobs=sorted(self._blobs_gone()),
        )

    # --- looking ------------------------------------------------------------------------------------------

    def _node(self, node_id: NodeId) -> Node:
        node = self.reader.node(node_id)
        if node is None:
            raise UsageError(f"there is no node {node_id!r} in space {self.space!r}")
        return node

    def _record(self, request: RequestId) -> RequestRecord:
        record = self.reader.request(request)
        if record is None:
            raise UsageError(f"there is no request {request!r} in space {self.space!r}")
        return record

    def _events(self, request: RequestId) -> Iterator[Event]:
        record = self._record(request)
        return self.store.events(self.space, after=record.first_seq - 1, upto=record.last_seq)

    def _cited_elsewhere(self) -> set[EvidenceId]:
        """Raw results that a node rests on which stays, or one of the request that runs."""
        cited = {
            one for node in self.store.nodes(self.space) if node.id not in self.nodes for one in node.evidence
        }
        if self.head.open_request is not None:
            for event in self.store.events(self.space, after=self.head.open_seq - 1, upto=self.head.seq):
                if isinstance(event, DeltaCommitted):
                    cited |= {one for node in (*event.added, *event.updated) for one in node.evidence}
        return cited

    def _blobs_gone(self) -> set[str]:
        """Raw bytes that only erased results name."""
        gone: set[str] = set()
        kept: set[str] = {EMPTY}
        for event in self.store.events(self.space, upto=self.head.seq):
            if isinstance(event, ToolFinished):
                (gone if event.evidence in self.evidence else kept).add(event.digest)
        return gone - kept - self._named_by_tasks() if gone - kept else set()

    def _named_by_tasks(self) -> set[str]:
        named: set[str] = set()
        for record in self.store.tasks(TaskQuery(space=self.space)):
            floor = self.store.task_head(self.space, record.id).floor
            snapshot = self.store.snapshot(self.space, record.id, upto=floor) if floor else None
            named.update(_DIGEST.findall(snapshot[1].decode()) if snapshot else ())
            for event in self.store.task_events(self.space, record.id, after=floor):
                named.update(digests_of(event))
        return named

    # --- tombstones ---------------------------------------------------------------------------------------

    def _record_without(self, record: RequestRecord) -> RequestRecord:
        evidence = tuple(one for one in record.evidence if one not in self.evidence)
        said = {"text": ERASED, "message": ERASED} if record.id in self.requests else {}
        return record.model_copy(update={"evidence": evidence, **said})

    def _lines(self, record: RequestRecord, stones: dict[NodeId, Node]) -> list[IndexLine]:
        return [IndexLine.of(stones.get(node) or self._node(node)) for node in record.nodes]

    def _tombstones(
        self, request: RequestId, events: Sequence[Event], stones: dict[NodeId, Node]
    ) -> Iterable[Event]:
        """The events of a request that change, as they will be."""
        whole = request in self.requests
        steps = {event.step for event in events if self._is_about(event)}
        for event in events:
            new = self._without(event, stones, whole=whole, wrote=event.step in steps)
            if new != event:
                yield new

    def _is_about(self, event: Event) -> bool:
        """Did the model write in this step what goes?"""
        if isinstance(event, DeltaCommitted):
            return any(node.id in self.nodes for node in (*event.added, *event.updated))
        return isinstance(event, ToolStarted) and event.evidence in self.evidence

    def _without(self, event: Event, stones: dict[NodeId, Node], *, whole: bool, wrote: bool) -> Event:
        if isinstance(event, RequestStarted):
            return event.model_copy(update={"text": ERASED}) if whole else event
        if isinstance(event, ModelReplied):
            return event.model_copy(update={"text": ""}) if whole or wrote else event
        if isinstance(event, DeltaCommitted):
            return self._delta_without(event, stones, whole=whole, wrote=wrote)
        if isinstance(event, Disclosed):
            return event.model_copy(update={"refused": ()}) if whole or wrote else event
        if isinstance(event, ToolStarted) and event.evidence in self.evidence:
            return event.model_copy(update={"arguments": {}})
        if isinstance(event, ToolFinished) and event.evidence in self.evidence:
            failure = event.failure and event.failure.model_copy(update={"message": ERASED})
            empty = {"digest": EMPTY, "size_bytes": 0, "size_chars": 0, "failure": failure}
            return event.model_copy(update=empty)
        if isinstance(event, RequestFinished):
            evidence = tuple(one for one in event.evidence if one not in self.evidence)
            said = {"message": ERASED} if whole else {}
            return event.model_copy(update={"evidence": evidence, **said})
        return event

    def _delta_without(
        self, event: DeltaCommitted, stones: dict[NodeId, Node], *, whole: bool, wrote: bool
    ) -> DeltaCommitted:
        """Of a whole request also nodes go that were removed before its end, and were never kept."""

        def stone(node: Node) -> Node:
            return stones.get(node.id) or (tombstone(node) if whole else node)

        return event.model_copy(
            update={
                "added": tuple(map(stone, event.added)),
                "updated": tuple(map(stone, event.updated)),
                "refused": () if whole or wrote else event.refused,
            }
        )
