"""The graph of refs and evidence around a node: what a decision rests on, hop by hop."""

from collections.abc import Iterator
from dataclasses import dataclass

from flowstate_local.nodes import EvidenceId, Node, NodeId
from flowstate_local.repository import EvidenceRecord, Reader


@dataclass(frozen=True)
class Branch:
    """A node with how it was reached and what it leads to. A node seen before is not followed again."""

    relation: str
    """Relation of the ref that led here; "" at the root."""
    node: Node | None
    """None if the target is gone."""
    target: NodeId
    evidence: tuple[tuple[EvidenceId, EvidenceRecord | None], ...] = ()
    branches: tuple["Branch", ...] = ()
    seen: bool = False
    """This node stands elsewhere in the tree, where its branches are."""


def trace(start: NodeId, reader: Reader, *, depth: int = 8) -> Branch:
    """Follow refs from `start` to older nodes and their evidence, at most `depth` hops.

    Refs point to older nodes only, so the graph has no cycles; shared ancestors are expanded once.
    """
    return _branch("", start, reader, depth, set())


def _branch(relation: str, target: NodeId, reader: Reader, depth: int, seen: set[NodeId]) -> Branch:
    node = reader.node(target)
    if node is None or target in seen:
        return Branch(relation, node, target, seen=target in seen)
    seen.add(target)
    branches: tuple[Branch, ...] = ()
    if depth > 0:
        branches = tuple(_branch(r.relation, r.target, reader, depth - 1, seen) for r in node.refs)
    evidence = tuple((e, reader.evidence(e)) for e in node.evidence)
    return Branch(relation, node, target, evidence, branches)


def edges(nodes: Iterator[Node]) -> Iterator[tuple[NodeId, str, str]]:
    """All edges of a repository as (source, relation, target); "evidence" is the relation to a raw result."""
    for node in nodes:
        for ref in node.refs:
            yield node.id, ref.relation, ref.target
        for evidence in node.evidence:
            yield node.id, "evidence", evidence
