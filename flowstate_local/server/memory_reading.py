"""What another agent sees of a memory: a search, one thing opened, the timeline, the index. Reading changes nothing.

Answers are small: whoever reads them pays for each character with its context.
"""

import heapq
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from flowstate_local import psa
from flowstate_local.errors import UsageError
from flowstate_local.events import EVENT
from flowstate_local.graph import Branch, trace
from flowstate_local.index import folded_line, gist, is_span, load_within, node_line
from flowstate_local.nodes import (
    NODE_ID,
    REQUEST_ID,
    SPAN_ID,
    EvidenceId,
    Node,
    NodeId,
    NodeType,
    RequestId,
    is_raw,
    request_number,
)
from flowstate_local.repository import EvidenceRecord, Reader, RequestRecord
from flowstate_local.state import ActiveState, first_page
from flowstate_local.stores.base import Store

PAGE_CHARS = 6_000
"""Of a raw result; a page more is another call."""
MOST_LINKS = 100
"""Nodes of a chain that one answer lists."""
INDEX_TOKENS = 4_096
"""Budget of the index, as far as it can be told without a tokenizer."""
CHARS_PER_TOKEN = 4
LONG_CHARS = 500
"""Of one text of an event; the whole is what the event led to, which has an id."""


class Answer(BaseModel):
    """Base of what is answered; fields that say nothing are left out."""

    model_config = ConfigDict(use_attribute_docstrings=True)


class Found(Answer):
    """One node that a search found."""

    id: str
    type: NodeType
    summary: str
    slots: dict[str, str] = {}
    request: str
    superseded_by: list[str] = []
    """Newer nodes that replace it: what it says is out of date."""
    n_words: int
    """How many of the words it holds."""


class SearchResult(Answer):
    """Nodes that hold the words, the best first, then the newest."""

    found: list[Found]
    n_more: int = 0
    """Nodes that match besides; narrow the words, or raise the limit."""


class Link(Answer):
    """A node that the opened one rests on, directly or over others."""

    source: str
    """The node that refers to it."""
    relation: str
    id: str
    line: str
    evidence: list[str] = []


class Source(Answer):
    """A raw result that a node cites; open it by its id."""

    id: str
    tool: str
    n_chars: int


class Opened(Answer):
    """What an id stands for. Which fields there are depends on its kind."""

    id: str
    kind: Literal["node", "evidence", "request", "span"]
    type: NodeType | None = None
    summary: str | None = None
    content: str | None = None
    slots: dict[str, str] | None = None
    refs: list[str] | None = None
    """Relation and id of each older node it refers to, such as "supports n3"."""
    evidence: list[Source] | None = None
    rests_on: list[Link] | None = None
    """What is behind the refs, hop by hop."""
    valid_until: str | None = None
    confidence: float | None = None
    request: str | None = None
    """The request that wrote it."""
    at: str | None = None
    text: str | None = None
    """Of evidence: one page of the raw result. Of a request: what was asked."""
    page: int | None = None
    n_pages: int | None = None
    next: str | None = None
    """The id to open for the next page."""
    outcome: str | None = None
    reply: str | None = None
    lines: list[str] | None = None
    """Of a request: its nodes. Of a span: what is folded in it."""


class Asked(Answer):
    """One request of the timeline."""

    id: str
    at: str
    text: str
    outcome: str
    reply: str
    nodes: list[str] = []


class Timeline(Answer):
    """Requests, the newest first, or the events of one in order."""

    requests: list[Asked] | None = None
    events: list[dict[str, Any]] | None = None
    next: str | None = None
    """What to say as `before` (or `after`, with events) for the next page."""


class IndexLines(Answer):
    """One line per node, the oldest first; old requests are folded into one line, which can be opened."""

    lines: list[str]


def search(store: Store, space: str, words: str, type: NodeType | None, limit: int) -> SearchResult:
    """Nodes that hold any of the words; those that hold more come first. Without words: the newest."""
    wanted = list(dict.fromkeys(words.casefold().split()))
    replaced: dict[str, list[str]] = {}
    ranked: list[tuple[int, int, Node]] = []
    for place, node in enumerate(store.nodes(space)):
        for ref in node.refs:
            if ref.relation == "supersedes":
                replaced.setdefault(ref.target, []).append(node.id)
        if type is not None and node.type != type:
            continue
        n_words = _count(node, wanted)
        if n_words or not wanted:
            ranked.append((n_words, place, node))
    best = heapq.nlargest(limit, ranked, key=lambda one: one[:2])
    found = [_found(node, n_words, replaced.get(node.id, [])) for n_words, _, node in best]
    return SearchResult(found=found, n_more=len(ranked) - len(found))


def opened(reader: Reader, wanted: str, hops: int) -> Opened:
    """What an id stands for. Raises UsageError where it stands for nothing."""
    if is_raw(wanted):
        return _opened_evidence(reader, wanted)
    if NODE_ID.match(wanted):
        return _opened_node(reader, NodeId(wanted), hops)
    if REQUEST_ID.match(wanted):
        return _opened_request(reader, RequestId(wanted))
    span = SPAN_ID.match(wanted)
    if span is not None and is_span(int(span[1]), int(span[2])):
        lines = [folded_line(one, reader) for one in psa.inside(wanted, reader)]
        if any(reader.request(RequestId(f"r{n}")) for n in (int(span[1]), int(span[2]))):
            return Opened(id=wanted, kind="span", lines=lines)
    raise _nothing(wanted)


def requests(store: Store, space: str, before: str | None, limit: int) -> Timeline:
    """Requests that ended, the newest first, from the one before `before` on."""
    last = request_number(_request_id(before)) - 1 if before is not None else store.head(space).requests
    found: list[RequestRecord] = []
    while last > 0 and len(found) <= limit:  # erased and unfinished ones leave gaps
        first = max(1, last - limit)
        found += reversed(list(store.requests(space, first=first, last=last)))
        last = first - 1
    page = found[:limit]
    return Timeline(requests=[_asked(r) for r in page], next=page[-1].id if len(found) > limit else None)


def events(store: Store, space: str, request: str, after: int, limit: int) -> Timeline:
    """Events of one request, in order, long texts cut. Raises UsageError for a request that isn't there."""
    record = store.reader(space).request(_request_id(request))
    if record is None:
        raise _nothing(request)
    start = max(after, record.first_seq - 1)
    mine = (e for e in store.events(space, after=start, upto=record.last_seq) if e.request == record.id)
    page = list(islice(mine, limit + 1))
    told = [_shortened(EVENT.dump_python(e, mode="json", exclude={"schema_version"})) for e in page[:limit]]
    return Timeline(events=told, next=str(page[limit - 1].seq) if len(page) > limit else None)


def index(store: Store, space: str) -> IndexLines:
    """The index as an agent of this space begins with it."""
    head = store.head(space)
    loaded = load_within(
        store.reader(space),
        floor=head.index_floor,
        last_request=head.version,
        budget=INDEX_TOKENS,
        count=lambda line: len(line) // CHARS_PER_TOKEN + 1,
    )
    return IndexLines(lines=loaded.lines)


# --- inside ---------------------------------------------------------------------------------------------------


def _count(node: Node, words: list[str]) -> int:
    if not words:
        return 0
    slots = " ".join(f"{slot.name} {slot.value}" for slot in node.slots)
    text = f"{node.id} {node.summary} {node.content} {slots}".casefold()
    return sum(word in text for word in words)


def _found(node: Node, n_words: int, superseded_by: list[str]) -> Found:
    return Found(
        id=node.id,
        type=node.type,
        summary=node.summary,
        slots=_slots(node),
        request=node.request,
        superseded_by=superseded_by,
        n_words=n_words,
    )


def _opened_node(reader: Reader, wanted: NodeId, hops: int) -> Opened:
    root = trace(wanted, reader, depth=hops)
    node = root.node
    if node is None:
        raise _nothing(wanted)
    return Opened(
        id=node.id,
        kind="node",
        type=node.type,
        summary=node.summary,
        content=node.content or None,
        slots=_slots(node) or None,
        refs=[f"{ref.relation} {ref.target}" for ref in node.refs] or None,
        evidence=[_source(record) for _, record in root.evidence if record is not None] or None,
        rests_on=list(islice(_links(root), MOST_LINKS)) or None,
        valid_until=node.valid_until,
        confidence=node.confidence,
        request=node.request,
        at=_when(node.created_at),
    )


def _links(branch: Branch) -> Iterator[Link]:
    for below in branch.branches:
        if below.node is not None:
            line = f"{below.node.type}: {below.node.summary}"
            evidence = list(below.node.evidence)
            yield Link(
                source=branch.target, relation=below.relation, id=below.target, line=line, evidence=evidence
            )
            yield from _links(below)


def _opened_evidence(reader: Reader, wanted: str) -> Opened:
    evidence = EvidenceId(first_page(wanted))
    record = reader.evidence(evidence)
    if record is None:
        raise _nothing(evidence)
    text, page, n_pages = psa.page_text(wanted, ActiveState(), reader, PAGE_CHARS)
    if page > n_pages:
        raise UsageError(f"{evidence} has {n_pages} pages", hint=f"The last is {evidence}#{n_pages}.")
    return Opened(
        id=wanted,
        kind="evidence",
        text=text,
        page=page,
        n_pages=n_pages,
        next=f"{evidence}#{page + 1}" if page < n_pages else None,
        summary=f"raw result of {record.tool}, {record.size_bytes:,} bytes",
        request=record.request,
    )


def _opened_request(reader: Reader, wanted: RequestId) -> Opened:
    record = reader.request(wanted)
    if record is None:
        raise _nothing(wanted)
    return Opened(
        id=wanted,
        kind="request",
        text=record.text[:PAGE_CHARS],
        outcome=record.outcome,
        reply=record.message[:PAGE_CHARS],
        at=_when(record.at),
        lines=[node_line(line) for line in reader.lines(wanted)],
    )


def _nothing(wanted: str) -> UsageError:
    return UsageError(
        f"nothing has the id {wanted!r}", hint="search, index and timeline show the ids there are."
    )


def _request_id(said: str) -> RequestId:
    if not REQUEST_ID.match(said):
        raise UsageError(f"{said!r} is no id of a request", hint="They look like r3; timeline lists them.")
    return RequestId(said)


def _slots(node: Node) -> dict[str, str]:
    return {slot.name: slot.value for slot in node.slots}


def _source(record: EvidenceRecord) -> Source:
    return Source(id=record.id, tool=record.tool, n_chars=record.size_chars)


def _asked(record: RequestRecord) -> Asked:
    return Asked(
        id=record.id,
        at=record.date or _when(record.at),
        text=gist(record.text, LONG_CHARS),
        outcome=record.outcome,
        reply=gist(record.message, LONG_CHARS),
        nodes=list(record.nodes),
    )


def _when(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _shortened(value: Any) -> Any:
    if isinstance(value, str) and len(value) > LONG_CHARS:
        return f"{value[:LONG_CHARS]}... ({len(value) - LONG_CHARS:,} more characters)"
    if isinstance(value, dict):
        return {name: _shortened(item) for name, item in value.items()}
    return [_shortened(item) for item in value] if isinstance(value, list) else value
