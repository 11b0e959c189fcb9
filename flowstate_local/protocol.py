"""The four blocks that a model writes at every step, as closed pydantic models.

The order of the fields is part of the protocol: the grammar emits them in it, and a model that first says
what it must look at decides better than one that first acts (paper, section on the output protocol).
"""

from typing import Annotated, Any, Literal

from pydantic import Field

from flowstate_local.nodes import EvidenceId, Frozen, NodeId, NodeType, Ref, Slot, Text


class Add(Frozen):
    """Add a node. Its id must be unused in the whole space."""

    op: Literal["add"] = "add"
    type: NodeType
    id: NodeId
    summary: Annotated[str, Field(min_length=1, max_length=1_000)]
    content: Text = ""
    slots: tuple[Slot, ...] = ()
    refs: tuple[Ref, ...] = ()
    evidence: tuple[EvidenceId, ...] = ()
    valid_until: str | None = None
    confidence: Annotated[float, Field(ge=0, le=1)] | None = None


class Update(Frozen):
    """Replace fields of a node that this request made; an absent field keeps its value."""

    op: Literal["update"] = "update"
    id: NodeId
    summary: Annotated[str, Field(min_length=1, max_length=1_000)] | None = None
    content: Text | None = None
    slots: tuple[Slot, ...] | None = None
    refs: tuple[Ref, ...] | None = None
    evidence: tuple[EvidenceId, ...] | None = None
    valid_until: str | None = None
    confidence: Annotated[float, Field(ge=0, le=1)] | None = None


class Remove(Frozen):
    """Take back a node that this request made."""

    op: Literal["remove"] = "remove"
    id: NodeId


Operation = Annotated[Add | Update | Remove, Field(discriminator="op")]


class ToolCall(Frozen):
    """A call of one registered tool."""

    name: str
    arguments: dict[str, Any]


class StepOutput(Frozen):
    """What the model says in one step: accesses R, state delta, and the decision z (calls or message)."""

    state_focus: tuple[str, ...]
    """Ids to open: nodes, raw results (`t12`, `t12#2` for its second page), folded requests (`r3`, `s1`)."""
    state_delta: tuple[Operation, ...]
    tool_calls: tuple[ToolCall, ...]
    assistant_message: str
    """The reply that ends the request, or the empty string."""

    @property
    def shape(self) -> Literal["look", "act", "reply", "note", "empty", "mixed"]:
        """Which of the four legal shapes this is; `mixed` breaks strict deferral, `empty` says nothing."""
        parts = [
            name
            for name, there in (
                ("look", bool(self.state_focus)),
                ("act", bool(self.tool_calls)),
                ("reply", bool(self.assistant_message.strip())),
            )
            if there
        ]
        if len(parts) > 1:
            return "mixed"
        if parts:
            return parts[0]  # type: ignore[return-value]
        return "note" if self.state_delta else "empty"
