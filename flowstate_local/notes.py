"""Notes from outside: how another agent, or a person, writes to a memory without a model.

A note is a request of its own. It goes through the event log and the validator like everything that a model writes,
so that whatever reads a space (the index, resume, time travel, verification) needs to know nothing of notes.
"""

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import Field

from flowstate_local import isu
from flowstate_local.errors import ConflictError, StoreBusy, UsageError
from flowstate_local.events import (
    DeltaCommitted,
    Disclosed,
    Event,
    Refusal,
    RequestFinished,
    RequestStarted,
    StepStarted,
    ToolFinished,
    ToolStarted,
)
from flowstate_local.nodes import EvidenceId, Frozen, Node, NodeId, NodeType, Ref, RequestId, Slot, Text
from flowstate_local.protocol import Add
from flowstate_local.repository import EvidenceRecord, Reader, RequestRecord
from flowstate_local.state import fold
from flowstate_local.stores.base import FinishedRequest, Head, Store, check_space_name, digest

MAX_SOURCE = 1_000_000
"""Characters of a source."""
SOURCE_TOOL = "source"
"""Name of the call under which the log keeps the source of a note."""
ATTEMPTS = 8
"""Times that a note is judged and written anew because another writer was first."""
WRITER_CHARS = 60


class Note(Frozen):
    """What somebody wants remembered."""

    type: NodeType
    summary: Annotated[str, Field(min_length=1, max_length=1_000)]
    """One line that says what the note holds; all that the index shows of it."""
    content: Text = ""
    """The whole of it, if a line is not enough."""
    slots: tuple[Slot, ...] = ()
    """Key attributes shown in the index, such as price = 200."""
    refs: tuple[Ref, ...] = ()
    """Links to older nodes. A correction supersedes what it corrects."""
    evidence: tuple[EvidenceId, ...] = ()
    """Ids of stored raw results that the note rests on, such as t12."""
    source: Annotated[str, Field(max_length=MAX_SOURCE)] = ""
    """The raw text that the note was taken from; kept word for word as evidence."""
    valid_until: Annotated[str, Field(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$")] | None = None
    """ISO date after which the note should not be trusted."""
    confidence: Annotated[float, Field(ge=0, le=1)] | None = None


@dataclass(frozen=True)
class Added:
    """What a note became."""

    request: RequestId
    node: Node
    source: EvidenceId | None
    """Id of its source, if it brought one."""


def add_note(
    store: Store, space: str, note: Note, *, writer: str, clock: Callable[[], float] = time.time
) -> Added:
    """Write a note to a space as a request of its own, in one transaction.

    Args:
        store: the repositories.
        space: the memory; a new name begins a new one.
        note: what to remember.
        writer: who adds it and how, such as "planner over MCP"; the index names it.
        clock: seconds since the epoch.

    Raises:
        UsageError: the validator refuses the note; the message says why and what to do.
        BadSpaceName: no space can be called that.
        StoreBusy: a request is open in the space.
        ConflictError: other writers were first, time and again.
        StoreFull: no room; nothing was written.
    """
    check_space_name(space)
    for _ in range(ATTEMPTS):
        head = store.head(space)
        if head.open_request is not None:
            raise StoreBusy(
                f"request {head.open_request} is under way in this memory, and nothing is added in between",
                hint="Try again when it has ended; one that was interrupted must be resumed or given up first.",
            )
        draft = _Draft(head, store.reader(space), note, _said(writer), clock())
        try:
            done = draft.finished()
            store.persist(space, done, expected_version=head.version, expected_seq=head.seq)
        except ConflictError:
            continue
        except UsageError:
            if store.head(space) == head:
                raise
            continue  # the reader saw what another writer had just added, such as a node of the same id
        return Added(done.record.id, done.nodes[0], draft.source_id)
    raise ConflictError("other writers were first, time and again; nothing was added")


@dataclass
class _Draft:
    """The request that a note becomes, on top of one head of the space."""

    head: Head
    reader: Reader
    note: Note
    writer: str
    at: float
    source: bytes = field(init=False)

    def __post_init__(self) -> None:
        self.source = self.note.source.encode()
        self.request = RequestId(f"r{self.head.requests + 1}")
        self.source_id = EvidenceId(f"t{self.head.evidence + 1}") if self.source else None
        self.node_id = NodeId(f"n{self.head.nodes + 1}")

    def finished(self) -> FinishedRequest:
        """All that is to be written. Raises UsageError with the validator's reason."""
        read = [self._started(), self._step(), *self._opened(), *self._brought()]
        committed = self._committed(read)
        node = committed.added[0]
        results = [e for e in read if isinstance(e, ToolFinished)]
        kept = tuple(result.evidence for result in results)
        end = self._event(
            RequestFinished,
            step=1,
            outcome="replied",
            message=f"Added {node.id}.",
            nodes=(node.id,),
            evidence=kept,
        )
        record = RequestRecord(
            id=self.request,
            text=self._text,
            outcome=end.outcome,
            message=end.message,
            nodes=end.nodes,
            evidence=end.evidence,
            first_seq=self.head.seq + 1,
            last_seq=0,
            steps=1,
            at=self.at,
        )
        return FinishedRequest(
            record=record,
            nodes=[node],
            evidence=[_record(result) for result in results],
            events=[*read, committed, end],
            index_floor=self.head.index_floor,
            blobs={digest(self.source): self.source} if self.source else {},
        )

    @property
    def _text(self) -> str:
        return f"Added by {self.writer}"

    def _event(self, kind: type[Any], **fields: Any) -> Any:
        return kind(request=self.request, at=self.at, **fields)

    def _started(self) -> Event:
        event: RequestStarted = self._event(
            RequestStarted,
            step=0,
            text=self._text,
            space_version=self.head.version,
            first_node=self.head.nodes + 1,
            first_evidence=self.head.evidence + 1,
        )
        return event

    def _step(self) -> Event:
        event: StepStarted = self._event(StepStarted, step=1)
        return event

    def _opened(self) -> list[Event]:
        """Whoever names what a note replaces has read it, elsewhere; here it counts as opened by this request."""
        replaced = tuple(ref.target for ref in self.note.refs if ref.relation == "supersedes")
        return [self._event(Disclosed, step=1, granted=tuple(dict.fromkeys(replaced)))] if replaced else []

    def _brought(self) -> list[Event]:
        """The source, as the result of a call: raw results come into a space no other way."""
        if self.source_id is None:
            return []
        call = {"step": 1, "evidence": self.source_id, "name": SOURCE_TOOL}
        key = uuid.uuid4().hex
        return [
            self._event(
                ToolStarted, **call, arguments={"from": self.writer}, idempotency_key=key, idempotent=True
            ),
            self._event(
                ToolFinished,
                **call,
                digest=digest(self.source),
                size_bytes=len(self.source),
                size_chars=len(self.note.source),
            ),
        ]

    def _committed(self, read: list[Event]) -> DeltaCommitted:
        fields = {name: getattr(self.note, name) for name in Add.model_fields if name in Note.model_fields}
        fields["slots"] = tuple(
            Slot(name=_line(s.name) or "-", value=_line(s.value)) for s in self.note.slots
        )
        if self.source_id is not None:
            fields["evidence"] = (*self.note.evidence, self.source_id)
        add = Add(id=self.node_id, **fields)
        # Whether its numbers were read somewhere is the writer's own affair: what it read is not here.
        committed = isu.commit([add], fold(read), self.reader, at=self.at, grounded=False)
        if committed.refused:
            raise UsageError(f"not added: {_reason(committed.refused[0], self.reader, self.note)}")
        return committed


def _reason(refusal: Refusal, reader: Reader, note: Note) -> str:
    unknown = [ref.target for ref in note.refs if reader.node(ref.target) is None]
    if unknown:  # the rule on opening first would hide this
        return f"refs: there is no node {unknown[0]}; search or the index shows the ids there are"
    return f"{refusal.rule}: {refusal.advice}"


def _record(result: ToolFinished) -> EvidenceRecord:
    return EvidenceRecord(
        id=result.evidence,
        digest=result.digest,
        size_bytes=result.size_bytes,
        size_chars=result.size_chars,
        tool=result.name,
        request=result.request,
        step=result.step,
    )


def _said(writer: str) -> str:
    return _line(writer)[:WRITER_CHARS] or "somebody"


def _line(text: str) -> str:
    """One line: what stands in the index must not look like several of its lines."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())
