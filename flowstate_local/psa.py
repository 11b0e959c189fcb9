"""PSA, progressive state access: which ids a step may open, and the event that discloses them.

Pure. The rule is the paper's: granted accesses are those of R that lie in IDs(G) or ToolRefs(S). A disclosed node
brings its content, its refs as (relation, id) and its evidence ids, never its neighbours' text.
"""

from collections.abc import Iterable, Iterator

from flowstate_local.events import Disclosed, Refusal
from flowstate_local.index import FAN_OUT, Index, is_span
from flowstate_local.nodes import (
    NODE_ID,
    PAGE_ID,
    REQUEST_ID,
    SPAN_ID,
    EvidenceId,
    Node,
    NodeId,
    RequestId,
    is_raw,
)
from flowstate_local.repository import Reader
from flowstate_local.state import ActiveState

MAX_LOOKS = 8
"""Ids that one step may open."""
INLINE_CHARS = 200
"""Results up to this length stay in the state log; longer ones are seen once, then opened by their id."""


def grant(
    focus: Iterable[str], state: ActiveState, reader: Reader, index: Index, *, page_chars: int, at: float
) -> Disclosed:
    """Judge every id of `state_focus`. Opening what is already active is a no-op: neither granted nor refused.

    Args:
        focus: ids as the model wrote them.
        state: the active state before this step's disclosures.
        reader: the repository.
        index: G_k of the request.
        page_chars: characters of raw results per page.
        at: time of the event, seconds since the epoch.
    """
    granted: list[str] = []
    refused: list[Refusal] = []
    for wanted in dict.fromkeys(focus):
        wanted = wanted.removesuffix("#1")
        if wanted in state.opened or wanted in state.own:
            continue
        if len(granted) == MAX_LOOKS:
            refused.append(
                Refusal(subject=wanted, rule="too_many", advice=f"open at most {MAX_LOOKS} at once")
            )
            continue
        refusal = check_access(wanted, state, reader, index, page_chars)
        if refusal is None:
            granted.append(wanted)
        else:
            refused.append(refusal)
    return Disclosed(
        request=state.request, step=state.step, at=at, granted=tuple(granted), refused=tuple(refused)
    )


def check_access(
    wanted: str, state: ActiveState, reader: Reader, index: Index, page_chars: int
) -> Refusal | None:
    """Name the rule that forbids opening `wanted`; None means it may be opened."""
    if is_raw(wanted):
        return _check_evidence(wanted, state, reader, page_chars)
    if NODE_ID.match(wanted):
        known = reader.node(NodeId(wanted)) is not None
    elif REQUEST_ID.match(wanted):
        known = reader.request(RequestId(wanted)) is not None
    else:
        span = SPAN_ID.match(wanted)
        known = (
            span is not None and is_span(int(span[1]), int(span[2])) and int(span[2]) <= index.last_request
        )
    if known:
        return None
    return Refusal(subject=wanted, rule="unknown_id", advice=f"nothing has the id {wanted}")


def _check_evidence(wanted: str, state: ActiveState, reader: Reader, page_chars: int) -> Refusal | None:
    page = PAGE_ID.match(wanted)
    evidence_id = EvidenceId(page[1] if page else wanted)
    if evidence_id not in reachable_evidence(state, reader):
        return Refusal(
            subject=wanted, rule="not_linked", advice=f"first open the node whose evidence is {evidence_id}"
        )
    if page and int(page[2]) > n_pages(evidence_id, state, reader, page_chars):
        return Refusal(subject=wanted, rule="no_such_page", advice=f"{evidence_id} has fewer pages")
    return None


def active_nodes(state: ActiveState, reader: Reader) -> Iterator[Node]:
    """Nodes of S: this request's and the opened ones."""
    yield from state.own.values()
    for opened in state.opened:
        if NODE_ID.match(opened):
            node = reader.node(NodeId(opened))
            if node is not None:
                yield node


def reachable_evidence(state: ActiveState, reader: Reader) -> dict[EvidenceId, None]:
    """ToolRefs(S): results of this request, and those that a node of S cites, in order."""
    reachable = dict.fromkeys(state.results)
    for node in active_nodes(state, reader):
        reachable.update(dict.fromkeys(node.evidence))
    return reachable


def openable(
    state: ActiveState, reader: Reader, index: Index, page_chars: int, *, following: bool
) -> list[str]:
    """What `state_focus` is offered: ids that stand somewhere in the prompt and are not open yet.

    While following, only what the opened things lead to (refs, evidence, next pages, folded lines) is offered: a
    chain is followed to its end, and a small model can't wander through the index.

    Offers only steer a grammar; what `grant` allows is wider, all of IDs(G) and ToolRefs(S).

    Args:
        state: the active state.
        reader: the repository.
        index: G_k of the request.
        page_chars: characters of raw results per page.
        following: whether to leave out the index and offer links alone.
    """
    offered = {} if following else dict.fromkeys(index.ids)
    for node in active_nodes(state, reader):
        offered.update((ref.target, None) for ref in node.refs)
    for opened in state.opened:
        offered.update(dict.fromkeys(inside(opened, reader)))
    for evidence_id in reachable_evidence(state, reader):
        result = state.results.get(evidence_id)
        if result is not None and (result.size_chars <= INLINE_CHARS or result.step == state.step - 1):
            pass  # it stands in the state log, or in the observation
        else:
            offered[evidence_id] = None
        seen = _last_page_seen(evidence_id, state)
        if seen and seen < n_pages(evidence_id, state, reader, page_chars):
            offered[f"{evidence_id}#{seen + 1}"] = None
    return [i for i in offered if i not in state.opened and i not in state.own]


def inside(opened: str, reader: Reader) -> list[str]:
    """Ids of the lines that opening a request or a span shows; [] for any other id."""
    if REQUEST_ID.match(opened):
        return [line.id for line in reader.lines(RequestId(opened))]
    span = SPAN_ID.match(opened)
    if span is None:
        return []
    first, last = int(span[1]), int(span[2])
    size = (last - first + 1) // FAN_OUT
    if size == 1:
        return [f"r{number}" for number in range(first, last + 1)]
    return [f"s{start}_{start + size - 1}" for start in range(first, last + 1, size)]


def raw_text(evidence_id: EvidenceId, state: ActiveState, reader: Reader) -> str:
    """The raw result as text; bytes that aren't UTF-8 are shown replaced (the stored bytes stay as they are)."""
    result = state.results.get(evidence_id)
    if result is not None:
        return reader.blob(result.digest).decode(errors="replace")
    record = reader.evidence(evidence_id)
    return reader.blob(record.digest).decode(errors="replace") if record else ""


def n_pages(evidence_id: EvidenceId, state: ActiveState, reader: Reader, page_chars: int) -> int:
    """Pages of a raw result, at least 1; counted from its recorded length, without reading it."""
    record = state.results.get(evidence_id) or reader.evidence(evidence_id)
    return max(1, -(-record.size_chars // page_chars)) if record else 1


def _last_page_seen(evidence_id: EvidenceId, state: ActiveState) -> int:
    """Highest page that is open or was shown as an observation; 0 if none was."""
    pages = [0, 1 if evidence_id in state.results or evidence_id in state.opened else 0]
    for opened in state.opened:
        page = PAGE_ID.match(opened)
        if page and page[1] == evidence_id:
            pages.append(int(page[2]))
    return max(pages)


def page_text(page_id: str, state: ActiveState, reader: Reader, page_chars: int) -> tuple[str, int, int]:
    """Text of one page (`t12` or `t12#2`), its number from 1, and the number of pages."""
    page = PAGE_ID.match(page_id)
    evidence_id, number = (EvidenceId(page[1]), int(page[2])) if page else (EvidenceId(page_id), 1)
    text = raw_text(evidence_id, state, reader)
    pages = max(1, -(-len(text) // page_chars))
    return text[(number - 1) * page_chars : number * page_chars], number, pages
