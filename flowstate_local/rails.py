"""Rails: what the grammar of a step offers, beyond what is legal. They keep a small model on its way.

A rail only steers: ISU, PSA and the deferral rule judge every output by wider rules, in every profile. Each stands
here because a model of 1.5 billion parameters went astray without it (docs/decisions/002).
"""

from collections.abc import Sequence

from flowstate_local import psa
from flowstate_local.events import DeltaCommitted, Disclosed, Event, ToolFinished
from flowstate_local.grammar import Defer, StepFacts
from flowstate_local.index import Index
from flowstate_local.nodes import NODE_ID, NodeId, is_raw
from flowstate_local.repository import Reader
from flowstate_local.state import ActiveState


def facts(
    state: ActiveState,
    reader: Reader,
    index: Index,
    last_step: Sequence[Event],
    *,
    has_tools: bool,
    last_shape: str,
    must_end: bool,
    page_chars: int,
    defer: Defer,
) -> StepFacts:
    """What the step to come may name and do.

    Args:
        state: the active state.
        reader: the repository.
        index: G_k of the request.
        last_step: events of the step before.
        has_tools: whether the agent has any.
        last_shape: `StepOutput.shape` of the step before, "" at first.
        must_end: whether a guard (steps, progress, room) leaves nothing but a reply.
        page_chars: characters of raw results per page.
        defer: the deferral rule.
    """
    seen = bool(state.opened or state.calls)
    noted = last_shape == "note"
    ends = must_end or _repeated_itself(last_step)
    must_record = not ends and _unrecorded_effect(state, last_step)
    visible = [i for i in index.ids if NODE_ID.match(i)]
    active = [node.id for node in psa.active_nodes(state, reader)]
    return StepFacts(
        openable=psa.openable(state, reader, index, page_chars, following=_follows(state, last_shape)),
        resolvable=[NodeId(i) for i in dict.fromkeys([*visible, *active])],
        replaceable=active,
        evidence=list(psa.reachable_evidence(state, reader)),
        own=list(state.own),
        next_number=state.next_node,
        # Before anything was seen, all there is to write down is what the user wants.
        may_record=seen,
        fresh=_brought_raw(last_step),
        must_record=must_record,
        may_look=not ends and not must_record,
        may_act=not ends and not must_record,
        may_note=not ends and not noted,
        # Where tools are at hand, a small model's first thought is to promise.
        may_reply=ends or seen or noted or not has_tools,
        defer=defer,
    )


def advice(state: ActiveState, last_step: Sequence[Event]) -> str:
    """What the step to come is usually for, in a sentence at the very end of the prompt.

    A small model goes by what it read last; the rules stand thousands of tokens earlier.
    """
    if _unrecorded_effect(state, last_step):
        return "Record what was done, and reply when all is done."
    if any(isinstance(event, ToolFinished) for event in last_step):
        return "Act on the result. When nothing is left to do, record it and reply."
    if _brought_raw(last_step):
        return "Record the facts that bear on the request, and calculate with them."
    if any(isinstance(event, Disclosed) and event.granted for event in last_step):
        return "Open the evidence that bears on the request, then act."
    if state.step <= 1:
        return "Told to remember: note it. An earlier decision is touched: open it. Otherwise: call a tool."
    return "Go on, or reply when all is done."


def _follows(state: ActiveState, last_shape: str) -> bool:
    """Offer links alone? A chain is followed to its end, then acted upon; a note brings the whole index back."""
    return last_shape == "look" or (bool(state.calls) and last_shape != "note")


def _brought_raw(events: Sequence[Event]) -> bool:
    """Did the step bring a tool result, or open one?"""
    return any(
        isinstance(event, ToolFinished)
        or (isinstance(event, Disclosed) and any(is_raw(i) for i in event.granted))
        for event in events
    )


def _repeated_itself(events: Sequence[Event]) -> bool:
    """Was a call refused because the model had just made it? Then it has nothing left to do."""
    return any(
        refusal.rule == "repeated_call"
        for event in events
        if isinstance(event, Disclosed)
        for refusal in event.refused
    )


def _unrecorded_effect(state: ActiveState, events: Sequence[Event]) -> bool:
    """Did a tool change the world in a step that wrote nothing down? It is recorded before anything else is done."""
    if any(isinstance(event, DeltaCommitted) and event.added for event in events):
        return False
    return any(
        isinstance(event, ToolFinished) and not event.failure and not state.calls[event.evidence].idempotent
        for event in events
    )
