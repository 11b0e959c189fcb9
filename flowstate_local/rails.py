"""Rails: what the grammar of a step offers, beyond what is legal. They keep a small model on its way.

A rail only steers: ISU, PSA and the deferral rule judge every output by wider rules, in every profile. Each stands
here because a model of 1.5 billion parameters went astray without it (docs/decisions/002).
"""

from collections.abc import Sequence

from flowstate_local import psa
from flowstate_local.events import DeltaCommitted, Disclosed, Event, ToolFinished, rules_refused
from flowstate_local.grammar import Defer, StepFacts
from flowstate_local.index import Index
from flowstate_local.isu import baseless
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
    seen = bool(state.opened) or any(not result.failure for result in state.results.values())
    noted = last_shape == "note"
    repeated = repeated_itself(last_step)
    # An effect comes first: it is written down before anything else is looked at or done.
    free = not (must_end or repeated or _unrecorded_effect(state, last_step))
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
        again=baseless(last_step),
        may_look=free,
        may_act=free,
        # After a repeated call there is nothing left to do; if nothing came of it, there may be a wish to note.
        may_note=not must_end and not noted and not (repeated and seen),
        # Where tools are at hand, a small model's first thought is to promise, and to give up after a refusal.
        may_reply=must_end or not has_tools or ((seen or noted) and not baseless(last_step)),
        defer=defer,
    )


def advice(state: ActiveState, last_step: Sequence[Event]) -> str:
    """What the step to come is usually for, in a sentence at the very end of the prompt.

    A small model goes by what it read last; the rules stand thousands of tokens earlier.
    """
    if repeated_itself(last_step):
        return "This is known already. Reply to the request."
    if _unrecorded_effect(state, last_step):
        return "Record what the tool showed, and what was decided and planned. If nothing else is asked for, reply as well."
    results = [event for event in last_step if isinstance(event, ToolFinished)]
    if results and all(result.failure for result in results):
        return "It failed. Reply, or try another way."
    if results:
        return "Record the result. Reply if the request is answered, else go on with it."
    if _brought_raw(last_step):
        return "Record the facts that bear on the request, and calculate with them."
    if any(isinstance(event, Disclosed) and event.granted for event in last_step):
        return "Open the evidence that bears on the request, then act."
    if not state.log:
        return "Told to remember: note it. An earlier decision or plan is touched: open it first. Otherwise: call a tool."
    if baseless(last_step):
        return "Take that step again, with what STATE says."
    if "judgement" in _types_added(last_step) and not _last_was_effect(state):
        return "What you decided, do it now with a tool."
    return "Reply, if the request is answered."


def _follows(state: ActiveState, last_shape: str) -> bool:
    """Offer links alone? A chain is followed to its end, then acted upon; a note brings the whole index back."""
    return last_shape == "look" or (bool(state.calls) and last_shape != "note")


def _brought_raw(events: Sequence[Event]) -> bool:
    """Did the step bring a tool result, or open one? It stands in the observation, which the next step replaces."""
    return any(
        (isinstance(event, ToolFinished) and not event.failure)
        or (isinstance(event, Disclosed) and any(is_raw(i) for i in event.granted))
        for event in events
    )


def repeated_itself(events: Sequence[Event]) -> bool:
    """Was a call refused because the model had just made it? Then it has nothing left to do."""
    return "repeated_call" in rules_refused(events)


def _types_added(events: Sequence[Event]) -> set[str]:
    return {node.type for event in events if isinstance(event, DeltaCommitted) for node in event.added}


def _unrecorded_effect(state: ActiveState, events: Sequence[Event]) -> bool:
    """Did a tool change the world without a judgement beside its call that says so?"""
    if "judgement" in _types_added(events):
        return False
    return any(isinstance(event, ToolFinished) and _is_effect(event, state) for event in events)


def _last_was_effect(state: ActiveState) -> bool:
    """Was the last call of the request one that changed something?"""
    return bool(state.results) and _is_effect(list(state.results.values())[-1], state)


def _is_effect(finished: ToolFinished, state: ActiveState) -> bool:
    return not finished.failure and not state.calls[finished.evidence].idempotent
