"""The active state S of one request: a fold over its events, and nothing else.

`apply` is the only thing that changes it. ISU and PSA read it and return events; the loop stores the events and
then applies them, so that a state rebuilt from the log after a crash is the one that was lost.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from flowstate_local.events import (
    Cause,
    DeltaCommitted,
    Disclosed,
    Event,
    ModelReplied,
    RequestFinished,
    RequestStarted,
    StepStarted,
    ToolFinished,
    ToolStarted,
)
from flowstate_local.nodes import PAGE_ID, EvidenceId, Node, NodeId, RequestId, node_number


@dataclass(frozen=True)
class LogEntry:
    """One line of the state log, still unrendered.

    `subject` is a Node for added, updated and opened nodes, else the id that was removed, opened or called.
    """

    kind: str
    """"added", "updated", "removed", "opened" or "called"."""
    subject: Node | str


@dataclass
class ActiveState:
    """What the model works with: this request's nodes, what it opened, what its tools brought."""

    request: RequestId = RequestId("r0")
    text: str = ""
    date: str | None = None
    cause: Cause | None = None
    step: int = 0
    """The step that was begun last."""
    own: dict[NodeId, Node] = field(default_factory=dict)
    """Nodes of this request that are not removed, in the order they were made."""
    used_ids: set[NodeId] = field(default_factory=set)
    """Ids this request ever used, removed ones too."""
    opened: dict[str, None] = field(default_factory=dict)
    """Ids that PSA disclosed, in order: nodes, pages of raw results, requests, spans."""
    calls: dict[EvidenceId, ToolStarted] = field(default_factory=dict)
    results: dict[EvidenceId, ToolFinished] = field(default_factory=dict)
    log: list[LogEntry] = field(default_factory=list)
    """Append-only: what is in it once stays, so the prompt's prefix stays."""
    next_node: int = 1
    next_evidence: int = 1
    replies: list[ModelReplied] = field(default_factory=list)
    finished: RequestFinished | None = None

    def apply(self, event: Event) -> None:
        """Take one event in. Events must come in the order of the log."""
        if isinstance(event, RequestStarted):
            self.request, self.text, self.date = event.request, event.text, event.date
            self.cause = event.cause
            self.next_node, self.next_evidence = event.first_node, event.first_evidence
        elif isinstance(event, StepStarted):
            self.step = event.step
        elif isinstance(event, ModelReplied):
            self.replies.append(event)
        elif isinstance(event, DeltaCommitted):
            self._apply_delta(event)
        elif isinstance(event, Disclosed):
            for opened in event.granted:
                self.opened[opened] = None
                self.log.append(LogEntry("opened", opened))
        elif isinstance(event, ToolStarted):
            self.calls[event.evidence] = event
            self.next_evidence = max(self.next_evidence, int(event.evidence[1:]) + 1)
        elif isinstance(event, ToolFinished):
            self.results[event.evidence] = event
            self.log.append(LogEntry("called", event.evidence))
        else:
            self.finished = event

    def _apply_delta(self, event: DeltaCommitted) -> None:
        for node in event.added:
            self.own[node.id] = node
            self.used_ids.add(node.id)
            self.next_node = max(self.next_node, node_number(node.id) + 1)
            self.log.append(LogEntry("added", node))
        for node in event.updated:
            self.own[node.id] = node
            self.log.append(LogEntry("updated", node))
        for node_id in event.removed:
            self.own.pop(node_id, None)
            self.log.append(LogEntry("removed", node_id))

    @property
    def pending_call(self) -> ToolStarted | None:
        """The tool call that was started and has no result, if any."""
        for evidence, call in self.calls.items():
            if evidence not in self.results:
                return call
        return None


def fold(events: Iterable[Event]) -> ActiveState:
    """The active state after these events of one request."""
    state = ActiveState()
    for event in events:
        state.apply(event)
    return state


def first_page(raw_id: str) -> str:
    """`t12#2` -> `t12`; any other id is returned as it is."""
    page = PAGE_ID.match(raw_id)
    return page[1] if page else raw_id
