"""What a store may write: the next head, and the checks that come before any change. Pure, for every store.

A store looks things up through `View`, asks `plan_append` or `plan_persist` what to write, and writes it in
one transaction. A plan that raises has changed nothing.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from flowstate_local.errors import ConflictError, UsageError
from flowstate_local.events import (
    Event,
    RequestFinished,
    RequestStarted,
)
from flowstate_local.nodes import (
    EVIDENCE_ID,
    NODE_ID,
    REQUEST_ID,
    EvidenceId,
    IndexLine,
    Node,
    NodeId,
    RequestId,
    node_number,
    request_number,
)
from flowstate_local.repository import EvidenceRecord, RequestRecord
from flowstate_local.stores.base import Erasure, FinishedRequest, Head, digest

MAX_NUMBER = 2**63 - 1
"""Highest number of a request or evidence id: keys hold eight bytes."""


class View(Protocol):
    """What the rules look up in one space, inside the transaction that will write."""

    def head(self) -> Head:
        """Where the space stands."""

    def has_node(self, node_id: NodeId) -> bool:
        """Is a node of this id persisted?"""

    def has_evidence(self, evidence_id: EvidenceId) -> bool:
        """Is a raw result of this id persisted?"""

    def has_blob(self, key: str) -> bool:
        """Has this space stored these raw bytes?"""


@dataclass(frozen=True)
class PersistPlan:
    """What persisting a request writes, beside its last events."""

    head: Head
    record: RequestRecord
    nodes: Sequence[Node]
    lines: Sequence[IndexLine]
    evidence: Sequence[EvidenceRecord]


def numbered(text: str, pattern: re.Pattern[str]) -> int | None:
    """`t12` -> 12, if `text` is an id of this pattern that a store can hold."""
    if not pattern.fullmatch(text) or len(text) > 20 or int(text[1:]) > MAX_NUMBER:
        return None
    return int(text[1:])


def advance(head: Head, event: Event) -> Head:
    """The head after one more event; what `Head` says of the log is the fold of this."""
    seq = head.seq + 1
    # By kind: isinstance takes many times as long with models.
    if event.kind == "RequestStarted":
        requests = max(head.requests, request_number(event.request))
        return _with(head, seq=seq, open_request=event.request, open_seq=seq, requests=requests)
    if event.kind == "DeltaCommitted":
        highest = max((node_number(node.id) for node in event.added), default=0)
        return _with(head, seq=seq, nodes=max(head.nodes, highest))
    if event.kind == "ToolStarted":
        return _with(head, seq=seq, evidence=max(head.evidence, int(event.evidence[1:])))
    if event.kind == "RequestFinished":
        return _with(head, seq=seq, open_request=None, open_seq=0, version=head.version + 1)
    return _with(head, seq=seq)


def _with(head: Head, **changes: Any) -> Head:
    # Five times a step; dataclasses.replace takes five times as long.
    new = object.__new__(Head)
    vars(new).update(vars(head), **changes)
    return new


def check_blobs(blobs: Mapping[str, bytes]) -> None:
    """Raise UsageError if a raw result is filed under a digest that isn't its own."""
    for key, raw in blobs.items():
        if digest(raw) != key:
            raise UsageError(f"raw result of {len(raw)} bytes is not the one its digest {key!r} names")


def plan_append(
    view: View, space: str, events: Sequence[Event], blobs: Mapping[str, bytes], *, expected_seq: int
) -> Head:
    """Check an append against the space, and return the head it leads to.

    Raises:
        ConflictError: as `Store.append` says.
        UsageError: the events can't follow each other, or name a raw result that nobody stored.
    """
    head = view.head()
    _check_seq(space, head, expected_seq)
    if blobs and not events:
        raise UsageError("raw results are stored with the events that name them; there are none")
    if any(event.kind == "RequestFinished" for event in events):
        raise UsageError("RequestFinished is written by persist, together with what the request leaves")
    for event in events:
        head = _follow(view, space, head, event, blobs)
    return head


def plan_persist(
    view: View, space: str, done: FinishedRequest, *, expected_version: int, expected_seq: int
) -> PersistPlan:
    """Check the persisting of a request against the space.

    Raises:
        ConflictError: as `Store.persist` says.
        UsageError: the parts of `done` don't belong together.
    """
    head = view.head()
    if head.version != expected_version:
        raise ConflictError(f"space {space!r} is at version {head.version}, not {expected_version}")
    _check_seq(space, head, expected_seq)
    _check_parts(done)
    _check_unused(view, done)
    for event in done.events:
        head = _follow(view, space, head, event, done.blobs)
    return PersistPlan(
        head=replace(head, index_floor=done.index_floor),
        record=done.record.model_copy(update={"last_seq": head.seq}),
        nodes=done.nodes,
        lines=[IndexLine.of(node) for node in done.nodes],
        evidence=done.evidence,
    )


def check_erasure(view: View, space: str, erasure: Erasure, *, expected_seq: int) -> None:
    """Check an erasure against the space. Raises as `Store.erase` says."""
    _check_seq(space, view.head(), expected_seq)
    strangers: list[str] = [node.id for node in erasure.nodes if not view.has_node(node.id)]
    strangers += [str(seq) for seq in erasure.events if not 0 < seq <= expected_seq]
    if strangers:
        raise UsageError(f"nothing is there to be erased: {', '.join(strangers)}")


def _check_seq(space: str, head: Head, expected_seq: int) -> None:
    if head.seq != expected_seq:
        raise ConflictError(f"the log of space {space!r} ends at seq {head.seq}, not {expected_seq}")


def _follow(view: View, space: str, head: Head, event: Event, blobs: Mapping[str, bytes]) -> Head:
    """The head after `event`, if the event may come here."""
    if event.kind == "RequestStarted":
        _check_start(space, head, event)
    elif event.request != head.open_request:
        raise UsageError(
            f"{event.kind} of request {event.request} in space {space!r}, where "
            f"{head.open_request or 'no request'} is open"
        )
    if event.kind == "ToolStarted" or event.kind == "ToolFinished":
        _number(event.evidence, EVIDENCE_ID)
    if event.kind == "ToolFinished" and event.digest not in blobs and not view.has_blob(event.digest):
        raise UsageError(
            f"ToolFinished {event.evidence} names raw result {event.digest!r}, which isn't stored"
        )
    return advance(head, event)


def _check_start(space: str, head: Head, event: RequestStarted) -> None:
    if head.open_request is not None:
        raise ConflictError(f"request {head.open_request} is still open in space {space!r}")
    if _number(event.request, REQUEST_ID) <= head.requests:
        raise ConflictError(
            f"request {event.request} of space {space!r} was taken; the last is r{head.requests}"
        )


def _check_parts(done: FinishedRequest) -> None:
    """Raise UsageError unless record, nodes, evidence and events are of one request and say the same."""
    record = done.record
    last = done.events[-1] if done.events else None
    if not isinstance(last, RequestFinished) or sum(e.kind == last.kind for e in done.events) > 1:
        raise UsageError(f"the events of {record.id} must end with its only RequestFinished")
    nodes, evidence = tuple(n.id for n in done.nodes), tuple(e.id for e in done.evidence)
    strangers = {part.request for part in (*done.nodes, *done.evidence, *done.events)} - {record.id}
    if strangers:
        raise UsageError(f"request {record.id} can't persist what belongs to {', '.join(sorted(strangers))}")
    if not nodes == record.nodes == last.nodes or not evidence == record.evidence == last.evidence:
        raise UsageError(
            f"the record, the RequestFinished and the contents of {record.id} list different ids"
        )
    _check_distinct((*nodes, *evidence))


def _check_distinct(ids: Iterable[str]) -> None:
    seen: set[str] = set()
    for each in ids:
        if each in seen:
            raise UsageError(f"{each} is listed twice")
        seen.add(each)


def _check_unused(view: View, done: FinishedRequest) -> None:
    for node in done.nodes:
        if not NODE_ID.fullmatch(node.id):
            raise UsageError(f"{node.id!r} is not a node id")
        if view.has_node(node.id):
            raise ConflictError(f"node {node.id} exists already")
    for record in done.evidence:
        _number(record.id, EVIDENCE_ID)
        if view.has_evidence(record.id):
            raise ConflictError(f"evidence {record.id} exists already")
        if record.digest not in done.blobs and not view.has_blob(record.digest):
            raise UsageError(f"evidence {record.id} names raw result {record.digest!r}, which isn't stored")


def _number(text: EvidenceId | RequestId, pattern: re.Pattern[str]) -> int:
    number = numbered(text, pattern)
    if number is None:
        raise UsageError(f"{text!r} does not match {pattern.pattern} or is too long")
    return number
