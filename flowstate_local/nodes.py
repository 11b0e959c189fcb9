"""What memory is made of: ids, refs, nodes, index lines. Pure values that know no store and no model."""

import re
from typing import Annotated, Literal, NewType

from pydantic import BaseModel, ConfigDict, Field

NodeId = NewType("NodeId", str)
EvidenceId = NewType("EvidenceId", str)
RequestId = NewType("RequestId", str)

NODE_ID = re.compile(r"^(?![rst][0-9]+(_[0-9]+)?$)[a-z][a-z0-9_]{0,31}$")
"""A node id. `t12` (raw tool results), `r3` (requests) and `s1_10` (spans of requests) are spoken for."""
EVIDENCE_ID = re.compile(r"^t[1-9][0-9]*$")
REQUEST_ID = re.compile(r"^r[1-9][0-9]*$")
PAGE_ID = re.compile(r"^(t[1-9][0-9]*)#([1-9][0-9]*)$")
"""A page of a raw result: `t12#2`. `t12` alone is its first page."""
SPAN_ID = re.compile(r"^s([1-9][0-9]*)_([1-9][0-9]*)$")
"""A span of folded requests: `s1_10` is r1 to r10."""


def is_raw(some_id: str) -> bool:
    """Is it the id of a raw tool result, or of one of its pages?"""
    return bool(EVIDENCE_ID.match(some_id) or PAGE_ID.match(some_id))


NodeType = Literal["preference", "knowledge", "attribute", "judgement", "artifact"]
"""By source and role (paper, table 6 as far as public): preference = what the user wants; knowledge = what a
tool showed; attribute = a property of an entity; judgement = assessment, decision, plan or risk; artifact =
a reusable product."""

Relation = Literal["supports", "derives", "follows", "supersedes"]
"""Direction: from the node being written to an older one. The paper does not publish the meanings; ours:
supports = the target is a reason for this node; derives = this node was computed or concluded from the
target; follows = this node comes after the target in a plan; supersedes = this node replaces the target."""

Text = Annotated[str, Field(max_length=100_000)]
Mark = Annotated[bool, Field(exclude_if=lambda said: not said)]
"""Something that is rarely so, and is written only then."""


class Frozen(BaseModel):
    """Base of all value types: immutable, and closed to keys it doesn't know."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Ref(Frozen):
    """A directed edge from the node that holds it to an older node."""

    relation: Relation
    target: NodeId


class Slot(Frozen):
    """A key attribute that the index line carries, such as price = 200."""

    name: Annotated[str, Field(min_length=1, max_length=64)]
    value: Annotated[str, Field(max_length=256)]


class Node(Frozen):
    """One unit of execution state. Persisted nodes never change; a correction is a new node that supersedes."""

    id: NodeId
    """Unique in its space, never reused, not even after erasure."""
    type: NodeType
    summary: Annotated[str, Field(min_length=1, max_length=1_000)]
    """One line; all that the index shows."""
    content: Text = ""
    slots: tuple[Slot, ...] = ()
    refs: tuple[Ref, ...] = ()
    evidence: tuple[EvidenceId, ...] = ()
    """Raw tool results this node rests on."""
    request: RequestId
    """The request that wrote it."""
    step: int
    """The step of that request, counted from 1."""
    created_at: float
    """Seconds since the epoch, UTC."""
    valid_until: str | None = None
    """ISO date after which the node should not be trusted, if it said so."""
    confidence: Annotated[float, Field(ge=0, le=1)] | None = None
    schema_version: int = 1
    erased: Mark = False
    """Whether this is a tombstone: what it said is gone, so that refs to it still lead somewhere."""


class IndexLine(Frozen):
    """What the index shows of one persisted node."""

    id: NodeId
    type: NodeType
    summary: str
    slots: tuple[Slot, ...] = ()
    supersedes: tuple[NodeId, ...] = ()
    request: RequestId
    erased: Mark = False

    @classmethod
    def of(cls, node: Node) -> "IndexLine":
        """The line of `node`; contents, refs and evidence stay behind it until it's opened."""
        replaced = tuple(r.target for r in node.refs if r.relation == "supersedes")
        return cls(
            id=node.id,
            type=node.type,
            summary=node.summary,
            slots=node.slots,
            supersedes=replaced,
            request=node.request,
            erased=node.erased,
        )


def request_number(request: RequestId) -> int:
    """`r17` -> 17."""
    return int(request[1:])


def node_number(node_id: str) -> int:
    """`j7` -> 7; 0 for an id that isn't a letter and a number: a model's own `hotel_2024` hands out no number."""
    numbered = re.fullmatch(r"[a-z]([0-9]+)", node_id)
    return int(numbered[1]) if numbered else 0
