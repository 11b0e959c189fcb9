"""ISU, the incremental state update: which operations of a delta are legal, and the event that commits them.

Pure: reads the active state and the repository, changes neither. Illegal operations are dropped one by one;
legal ones of the same delta are kept (paper: Validate_upd; the rules here are ours where it isn't public).
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from flowstate_local.events import DeltaCommitted, Event, Refusal, rules_refused
from flowstate_local.grounding import restates, ungrounded
from flowstate_local.nodes import NODE_ID, Node, NodeId
from flowstate_local.protocol import Add, Operation, Remove, Update
from flowstate_local.repository import Reader
from flowstate_local.state import ActiveState

_T = TypeVar("_T")


@dataclass
class _Draft:
    """The request's nodes while a delta is worked through, so that an operation sees those before it."""

    nodes: dict[NodeId, Node]
    used: set[NodeId]
    grounded: bool
    added: dict[NodeId, Node] = field(default_factory=dict)
    updated: dict[NodeId, Node] = field(default_factory=dict)
    removed: list[NodeId] = field(default_factory=list)
    refused: list[Refusal] = field(default_factory=list)


def commit(
    delta: Iterable[Operation], state: ActiveState, reader: Reader, *, at: float, grounded: bool = True
) -> DeltaCommitted:
    """Judge every operation in order and return what is committed and what is refused, with reasons.

    Args:
        delta: the operations, as the model wrote them.
        state: the active state; not changed.
        reader: the repository.
        at: time of the commit, seconds since the epoch.
        grounded: whether a fact with a number that the model can't have read is refused.
    """
    draft = _Draft(nodes=dict(state.own), used=set(state.used_ids), grounded=grounded)
    for operation in delta:
        refusal = _take(operation, draft, state, reader, at)
        if refusal is not None:
            draft.refused.append(refusal)
    return DeltaCommitted(
        request=state.request,
        step=state.step,
        at=at,
        added=tuple(draft.added.values()),
        updated=tuple(draft.updated.values()),
        removed=tuple(draft.removed),
        refused=tuple(draft.refused),
    )


def baseless(events: Iterable[Event]) -> bool:
    """Was a fact of this step refused as no fact? Then what the step wanted to do on it must wait."""
    return not rules_refused(events).isdisjoint(("ungrounded_number", "restates_request"))


def _take(op: Operation, draft: _Draft, state: ActiveState, reader: Reader, at: float) -> Refusal | None:
    if isinstance(op, Add):
        return _add(op, draft, state, reader, at)
    if op.id not in draft.nodes:
        return _not_own(op.id, reader)
    if isinstance(op, Update):
        return _update(op, draft, state, reader)
    return _remove(op, draft)


def _add(op: Add, draft: _Draft, state: ActiveState, reader: Reader, at: float) -> Refusal | None:
    if not NODE_ID.match(op.id):
        return Refusal(subject=op.id, rule="id_malformed", advice="use a letter and a number, such as k12")
    if op.id in draft.used or reader.node(op.id) is not None:
        return Refusal(
            subject=op.id, rule="id_taken", advice="choose a new id; to correct an old node, supersede it"
        )
    node = Node(
        id=op.id,
        type=op.type,
        summary=_one_line(op.summary) or "-",
        content=op.content,
        slots=op.slots,
        refs=_unique(op.refs),
        evidence=_unique(op.evidence),
        request=state.request,
        step=state.step,
        created_at=at,
        valid_until=op.valid_until,
        confidence=op.confidence,
    )
    if not _one_line(op.summary):
        return Refusal(subject=op.id, rule="summary_empty", advice="say in one line what the node holds")
    refusal = (
        _check_refs(node, set(draft.nodes), state, reader)
        or _check_evidence(node, state, reader)
        or _check_new(node, draft, state, reader)
        or _check_grounds(node, draft, state, reader)
    )
    if refusal is None:
        draft.nodes[node.id] = draft.added[node.id] = node
        draft.used.add(node.id)
    return refusal


def _update(op: Update, draft: _Draft, state: ActiveState, reader: Reader) -> Refusal | None:
    old = draft.nodes[op.id]
    changes = op.model_dump(exclude_none=True, exclude={"op", "id"})
    new = Node.model_validate({**old.model_dump(), **changes})
    new = new.model_copy(
        update={
            "summary": _one_line(new.summary),
            "refs": _unique(new.refs),
            "evidence": _unique(new.evidence),
        }
    )
    if not new.summary:
        return Refusal(subject=op.id, rule="summary_empty", advice="say in one line what the node holds")
    if new == old:
        return Refusal(subject=op.id, rule="no_change", advice="an update must change something")
    # Only nodes made before it, or two updates could close a cycle.
    older = set(list(draft.nodes)[: list(draft.nodes).index(op.id)])
    refusal = (
        _check_refs(new, older, state, reader)
        or _check_evidence(new, state, reader)
        or _check_grounds(new, draft, state, reader)
    )
    if refusal is None:
        draft.nodes[op.id] = new
        (draft.added if op.id in draft.added else draft.updated)[op.id] = new
    return refusal


def _remove(op: Remove, draft: _Draft) -> Refusal | None:
    for node in draft.nodes.values():
        if node.id != op.id and any(ref.target == op.id for ref in node.refs):
            return Refusal(
                subject=op.id, rule="still_referenced", advice=f"{node.id} refers to it; remove that first"
            )
    del draft.nodes[op.id]
    draft.updated.pop(op.id, None)
    if draft.added.pop(op.id, None) is None:
        draft.removed.append(op.id)
    return None


def _not_own(node_id: NodeId, reader: Reader) -> Refusal:
    if reader.node(node_id) is not None:
        return Refusal(
            subject=node_id,
            rule="history_immutable",
            advice="nodes of earlier requests never change; add a node that supersedes it",
        )
    return Refusal(subject=node_id, rule="unknown_id", advice=f"no such node: {node_id}")


def _check_refs(node: Node, own: set[NodeId], state: ActiveState, reader: Reader) -> Refusal | None:
    for ref in node.refs:
        if ref.relation == "supersedes" and ref.target not in own and ref.target not in state.opened:
            advice = f"open {ref.target} before you replace it; or use another relation"
            return Refusal(subject=node.id, rule="supersedes_unread", advice=advice)
        if ref.target == node.id:
            return Refusal(subject=node.id, rule="ref_self", advice="a node can't refer to itself")
        if ref.target not in own and reader.node(ref.target) is None:
            return Refusal(subject=node.id, rule="ref_unresolved", advice=f"no such node: {ref.target}")
    return None


def _check_evidence(node: Node, state: ActiveState, reader: Reader) -> Refusal | None:
    for evidence in node.evidence:
        if evidence not in state.results and reader.evidence(evidence) is None:
            return Refusal(
                subject=node.id, rule="evidence_unknown", advice=f"no such tool result: {evidence}"
            )
    return None


def _check_new(node: Node, draft: _Draft, state: ActiveState, reader: Reader) -> Refusal | None:
    """Refuse a copy of what is already active: recalled text stored again is how memories fill with junk."""
    opened = (reader.node(NodeId(i)) for i in state.opened if NODE_ID.match(i))
    for other in [*draft.nodes.values(), *(n for n in opened if n is not None)]:
        if other.type == node.type and other.summary.casefold() == node.summary.casefold():
            return Refusal(
                subject=node.id, rule="duplicate", advice=f"{other.id} says this already; refer to it"
            )
    return None


def _check_grounds(node: Node, draft: _Draft, state: ActiveState, reader: Reader) -> Refusal | None:
    """Refuse a fact that was made up, or is the request again. What it may say is what this request has read."""
    if not draft.grounded:
        return None
    if restates(node, state.text):
        advice = "this is the request again; say what you found"
        return Refusal(subject=node.id, rule="restates_request", advice=advice)
    missing = ungrounded(node, state, reader)
    if not missing:
        return None
    sources = [ref.target for ref in node.refs] + list(node.evidence)
    again = f"read {', '.join(sources)} again" if sources else "open it, or call the tool first"
    advice = f"{', '.join(missing[:3])} was read nowhere; {again}, or calculate"
    return Refusal(subject=node.id, rule="ungrounded_number", advice=advice)


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _unique(items: Iterable[_T]) -> tuple[_T, ...]:
    return tuple(dict.fromkeys(items))
