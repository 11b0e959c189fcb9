"""Time travel: what a space held at any sequence number, as a fold over its events."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from flowstate_local.errors import UsageError
from flowstate_local.events import Cause, Event, RequestFinished, RequestStarted
from flowstate_local.nodes import Node, NodeId, RequestId
from flowstate_local.state import ActiveState


@dataclass
class Moment:
    """A space as it was just after event `seq`."""

    seq: int
    finished: list[RequestId] = field(default_factory=list)
    """Requests persisted by then."""
    nodes: dict[NodeId, Node] = field(default_factory=dict)
    """Nodes persisted by then, in the order they were kept."""
    active: ActiveState | None = None
    """The active state of the request that was running, if one was."""


def as_of(events: Iterable[Event], seq: int) -> Moment:
    """Fold the log of a space up to and including `seq`.

    Args:
        events: events of one space from its first on; later ones than `seq` are not read.
        seq: a sequence number of that log; 0 is the empty space.

    Raises:
        UsageError: `seq` is negative or past the end of the log.
    """
    moment = Moment(seq=0)
    for event in events:
        if event.seq > seq:
            break
        moment.seq = event.seq
        if isinstance(event, RequestStarted):
            moment.active = ActiveState()
        if moment.active is not None:
            moment.active.apply(event)
        if isinstance(event, RequestFinished) and moment.active is not None:
            moment.nodes.update(moment.active.own)
            moment.finished.append(event.request)
            moment.active = None
    if seq != moment.seq:
        raise UsageError(
            f"no event {seq}: the log ends at {moment.seq}" if seq > 0 else f"seq {seq} is negative"
        )
    return moment


def cause_of(events: Iterable[Event]) -> Cause | None:
    """Who asked for the request that these events begin; None if nobody in particular did."""
    first = next(iter(events), None)
    return first.cause if isinstance(first, RequestStarted) else None
