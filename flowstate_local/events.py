"""The event log: what happened in a space, in order. Everything else is a fold over it.

One log serves resume, audit, time travel and replay. Events carry ids and digests, not copies of raw results:
those are content-addressed and stored once.
"""

from collections.abc import Iterable
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, TypeAdapter

from flowstate_local.nodes import EvidenceId, Frozen, Node, NodeId, RequestId

SCHEMA_VERSION = 1


class _Event(Frozen):
    seq: int = 0
    """Position in the log of its space, from 1, without gaps; 0 until the store has assigned it."""
    request: RequestId
    step: int
    """Step of the request, from 1; 0 for what belongs to the request as a whole."""
    at: float
    """Seconds since the epoch, UTC."""
    schema_version: int = SCHEMA_VERSION


class Cause(Frozen):
    """The task step that asked for a request."""

    task: str
    step: str
    idempotency_key: str


class RequestStarted(_Event):
    """A request was accepted; from now on a crash leaves something to resume."""

    kind: Literal["RequestStarted"] = "RequestStarted"
    text: str
    date: str | None = None
    """What the prompt gives as today's date, if anything."""
    tools: tuple[str, ...] = ()
    space_version: int = 0
    """Version of the repository the request sees; its index is fixed to that."""
    first_node: int = 1
    """Number of the first node id free for this request."""
    first_evidence: int = 1
    """Number of the first evidence id free for this request."""
    cause: Cause | None = None
    """The task step that asked, if one did."""


class StepStarted(_Event):
    """The model is asked next; what came before is complete."""

    kind: Literal["StepStarted"] = "StepStarted"


class ModelReplied(_Event):
    """The model's output, verbatim, with what it cost."""

    kind: Literal["ModelReplied"] = "ModelReplied"
    text: str
    finish_reason: str
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    ttft_s: float = 0.0
    total_s: float = 0.0
    prompt_digest: str = ""
    """SHA-256 of the prompt's token ids, so that a replay can tell whether it saw the same."""
    segments: dict[str, int] = {}
    """Prompt tokens by segment, in the order of the prompt (`context.Prompt.segments`)."""
    fault: str = ""
    """Why nothing of it was committed: "cut_off", "empty", "unparsable"; "" if it was used."""


class Refusal(Frozen):
    """One thing ISU, PSA or the deferral rule did not allow, in words the model can act on."""

    subject: str
    """The id or name it's about."""
    rule: str
    """Short machine-readable rule, such as "id_taken"."""
    advice: str


class DeltaCommitted(_Event):
    """ISU accepted these operations, as the nodes they lead to, and refused those."""

    kind: Literal["DeltaCommitted"] = "DeltaCommitted"
    added: tuple[Node, ...] = ()
    updated: tuple[Node, ...] = ()
    """The nodes as they are after the update."""
    removed: tuple[NodeId, ...] = ()
    refused: tuple[Refusal, ...] = ()


class Disclosed(_Event):
    """PSA granted these accesses (visible from the next step on) and refused those."""

    kind: Literal["Disclosed"] = "Disclosed"
    granted: tuple[str, ...] = ()
    refused: tuple[Refusal, ...] = ()


class ToolStarted(_Event):
    """Durable before the tool runs, so that no call is ever silently repeated or lost."""

    kind: Literal["ToolStarted"] = "ToolStarted"
    evidence: EvidenceId
    name: str
    arguments: dict[str, Any]
    idempotency_key: str
    idempotent: bool = False
    external: bool = False
    """Whether whoever asked runs it, and brings the result."""


class ToolFailure(Frozen):
    """How a tool call went wrong."""

    kind: str
    """"timeout", "raised", "bad_arguments", "bad_result", "unknown_tool", "unknown_outcome", or the tool's own."""
    message: str
    retryable: bool = False


class ToolFinished(_Event):
    """Durable before the next model call. A failure is a result too."""

    kind: Literal["ToolFinished"] = "ToolFinished"
    evidence: EvidenceId
    name: str
    digest: str
    """SHA-256 (hex) of the raw result, the key of its blob."""
    size_bytes: int
    size_chars: int = 0
    """Length of the result read as text, so that its pages can be counted without reading it."""
    failure: ToolFailure | None = None
    duration_s: float = 0.0


class RequestFinished(_Event):
    """Everything of the request is persisted; written in the transaction that persists it."""

    kind: Literal["RequestFinished"] = "RequestFinished"
    outcome: Literal["replied", "step_budget", "no_progress", "failed", "cancelled"]
    message: str
    nodes: tuple[NodeId, ...] = ()
    """Nodes that were kept."""
    evidence: tuple[EvidenceId, ...] = ()
    """Raw results that a kept node cites; the only ones later requests can reach."""


Event = Annotated[
    RequestStarted
    | StepStarted
    | ModelReplied
    | DeltaCommitted
    | Disclosed
    | ToolStarted
    | ToolFinished
    | RequestFinished,
    Field(discriminator="kind"),
]

EVENT: TypeAdapter[Event] = TypeAdapter(Event)
"""Parses and dumps one event of any kind."""


E = TypeVar("E", bound=Frozen)


def numbered(events: Iterable[E], after: int) -> list[E]:
    """Events of any log, with the numbers they have behind event number `after`."""
    return [event.model_copy(update={"seq": seq}) for seq, event in enumerate(events, start=after + 1)]


def rules_refused(events: Iterable[Event]) -> set[str]:
    """The rules by which anything in these events was refused."""
    return {
        refusal.rule
        for event in events
        if isinstance(event, DeltaCommitted | Disclosed)
        for refusal in event.refused
    }
