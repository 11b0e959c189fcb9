"""Builds legal histories of a space, for tests of any store."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from flowstate_local.events import (
    DeltaCommitted,
    Event,
    ModelReplied,
    RequestFinished,
    RequestStarted,
    ToolFinished,
    ToolStarted,
)
from flowstate_local.nodes import EvidenceId, Node, NodeId, Ref, RequestId, Slot
from flowstate_local.repository import EvidenceRecord, RequestRecord
from flowstate_local.stores.base import FinishedRequest, Head, Store, digest


def started(number: int = 1, text: str = "book a hotel") -> RequestStarted:
    return RequestStarted(
        request=RequestId(f"r{number}"), step=0, at=float(number), text=text, date="2026-05-01"
    )


def replied(number: int = 1, step: int = 1, text: str = "{}") -> ModelReplied:
    return ModelReplied(
        request=RequestId(f"r{number}"),
        step=step,
        at=1.5,
        text=text,
        finish_reason="stop",
        prompt_tokens=100,
        cached_tokens=90,
        generated_tokens=10,
    )


def node(
    name: str, number: int = 1, *, content: str = "", refs: Sequence[Ref] = (), cites: Sequence[str] = ()
) -> Node:
    return Node(
        id=NodeId(name),
        type="knowledge",
        summary=f"Grüße from {name} 日本",
        content=content,
        slots=(Slot(name="price", value="200 €"),),
        refs=tuple(refs),
        evidence=tuple(EvidenceId(c) for c in cites),
        request=RequestId(f"r{number}"),
        step=1,
        created_at=1.25,
        confidence=0.5,
    )


def delta(
    *added: Node, updated: Sequence[Node] = (), removed: Sequence[str] = (), number: int = 1
) -> DeltaCommitted:
    return DeltaCommitted(
        request=RequestId(f"r{number}"),
        step=1,
        at=2.0,
        added=added,
        updated=tuple(updated),
        removed=tuple(NodeId(r) for r in removed),
    )


def tool_started(evidence: str, number: int = 1) -> ToolStarted:
    return ToolStarted(
        request=RequestId(f"r{number}"),
        step=1,
        at=3.0,
        evidence=EvidenceId(evidence),
        name="search",
        arguments={"city": "Köln", "nights": [1, 2.5, None]},
        idempotency_key="k",
    )


def tool_finished(evidence: str, raw: bytes, number: int = 1) -> ToolFinished:
    return ToolFinished(
        request=RequestId(f"r{number}"),
        step=1,
        at=4.0,
        evidence=EvidenceId(evidence),
        name="search",
        digest=digest(raw),
        size_bytes=len(raw),
        size_chars=len(raw),
    )


def finished(
    nodes: Sequence[Node],
    results: Sequence[ToolFinished] = (),
    *,
    number: int = 1,
    first_seq: int = 1,
    before: Sequence[Event] = (),
    index_floor: int = 0,
) -> FinishedRequest:
    """What persists request `number` with these nodes and the records of these results."""
    request = RequestId(f"r{number}")
    node_ids, evidence_ids = tuple(n.id for n in nodes), tuple(r.evidence for r in results)
    end = RequestFinished(
        request=request,
        step=1,
        at=5.0,
        outcome="replied",
        message="done",
        nodes=node_ids,
        evidence=evidence_ids,
    )
    record = RequestRecord(
        id=request,
        text="book a hotel",
        outcome="replied",
        message="done",
        nodes=node_ids,
        evidence=evidence_ids,
        first_seq=first_seq,
        last_seq=0,
        steps=1,
        at=5.0,
    )
    evidence = [
        EvidenceRecord(
            id=r.evidence,
            digest=r.digest,
            size_bytes=r.size_bytes,
            size_chars=r.size_chars,
            tool=r.name,
            request=request,
            step=r.step,
        )
        for r in results
    ]
    return FinishedRequest(record, nodes, evidence, [*before, end], index_floor)


@dataclass
class Written:
    """What `write_request` wrote."""

    head: Head
    nodes: list[Node]
    raw: bytes
    events: list[Event] = field(default_factory=list)


def write_request(
    store: Store, space: str, number: int = 1, *, raw: bytes = b"Adlon, 200 EUR. " * 200
) -> Written:
    """One whole request: two nodes, the second derived from the first, which cites one raw result."""
    head = store.head(space)
    first = head.seq + 1
    evidence = f"t{head.evidence + 1}"
    a = node(f"k{head.nodes + 1}", number, cites=[evidence])
    b = node(f"j{head.nodes + 2}", number, content="long " * 500, refs=[Ref(relation="derives", target=a.id)])
    draft = b.model_copy(update={"content": "draft"})
    passing = node(f"k{head.nodes + 3}", number)
    result = tool_finished(evidence, raw, number)
    events: list[Event] = [started(number), replied(number), tool_started(evidence, number)]
    head = store.append(space, events, expected_seq=head.seq)
    rest: list[Event] = [result, delta(a, draft, passing, number=number)]
    head = store.append(space, rest, {result.digest: raw}, expected_seq=head.seq)
    update = delta(updated=[b], removed=[passing.id], number=number)
    done = finished([a, b], [result], number=number, first_seq=first, before=[update])
    head = store.persist(space, done, expected_version=head.version, expected_seq=head.seq)
    logged = [*events, *rest, *done.events]
    numbered = [e.model_copy(update={"seq": first + i}) for i, e in enumerate(logged)]
    return Written(head, [a, b], raw, numbered)
