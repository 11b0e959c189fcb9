"""z, the decision of a step: what a completion says, what the deferral rule lets through, what comes back of it.

Pure. The other two parts of a step's output, the delta and the accesses, are judged by ISU and PSA.
"""

import hashlib
from array import array
from collections.abc import Sequence

from pydantic import ValidationError

from flowstate_local.completion import Completion
from flowstate_local.context import Observation, Prompt
from flowstate_local.events import (
    DeltaCommitted,
    Disclosed,
    Event,
    ModelReplied,
    Refusal,
    RequestStarted,
    ToolFinished,
)
from flowstate_local.nodes import EvidenceId
from flowstate_local.protocol import StepOutput, ToolCall
from flowstate_local.state import ActiveState


def read_reply(
    completion: Completion, prompt: Prompt, state: ActiveState, *, at: float
) -> tuple[StepOutput | None, ModelReplied]:
    """Judge a completion: the step it is, or None and the fault. "stop" alone makes it a step."""
    output: StepOutput | None = None
    if completion.finish_reason != "stop":
        fault = "cut_off" if completion.finish_reason == "length" else "empty"
    elif not completion.text.strip():
        fault = "empty"
    else:
        output = parse(completion.text)
        fault = "" if output is not None else "unparsable"
    replied = ModelReplied(
        request=state.request,
        step=state.step,
        at=at,
        text=completion.text,
        finish_reason=completion.finish_reason,
        prompt_tokens=completion.prompt_tokens,
        cached_tokens=completion.cached_tokens,
        generated_tokens=completion.generated_tokens,
        ttft_s=completion.ttft_s,
        total_s=completion.total_s,
        prompt_digest=hashlib.sha256(array("I", prompt.ids).tobytes()).hexdigest(),
        segments=prompt.segments,
        fault=fault,
    )
    return output, replied


def parse(text: str) -> StepOutput | None:
    """The step that `text` is, or None."""
    try:
        return StepOutput.model_validate_json(text)
    except ValidationError:
        return None


def decide(
    output: StepOutput, state: ActiveState, rule: str, *, baseless: bool = False
) -> tuple[list[ToolCall], str, list[Refusal]]:
    """Z of a step: the calls to run, or the reply, and what the deferral rule holds back.

    Under "strict", a step that opens anything may neither act nor reply: what it opens is only visible next.
    A reply beside tool calls waits in both modes, for it can't know their results. Calls wait as well where the
    step is `baseless`: what it wrote down before them was made up.
    """
    calls, message = list(output.tool_calls), output.assistant_message.strip()
    refused: list[Refusal] = []
    if rule == "strict" and output.state_focus and (calls or message):
        subject = calls[0].name if calls else "assistant_message"
        advice = "you opened something in this step; read it first, then act"
        return [], "", [Refusal(subject=subject, rule="deferred", advice=advice)]
    if calls and message:
        advice = "the tools you called come first; reply when you have seen their results"
        refused.append(Refusal(subject="assistant_message", rule="act_first", advice=advice))
        message = ""
    if calls and baseless:
        advice = "it rests on what was refused; write that down rightly first"
        refused.extend(Refusal(subject=call.name, rule="deferred", advice=advice) for call in calls)
        return [], message, refused
    kept = []
    for call in calls:
        earlier = _same_call(call, state)
        if earlier is None:
            kept.append(call)
        else:
            refused.append(
                Refusal(subject=earlier, rule="repeated_call", advice=f"{call.name} was just called so")
            )
    return kept, message, refused


def _same_call(call: ToolCall, state: ActiveState) -> EvidenceId | None:
    """The last call of the request, if it has a result and is the same to the letter.

    A call that others came between may well bring something new.
    """
    if not state.results:
        return None
    evidence = next(reversed(state.results))
    earlier = state.calls[evidence]
    same = (earlier.name, earlier.arguments) == (call.name, call.arguments)
    return evidence if same and earlier.step < state.step else None


def observe(events: Sequence[Event], step: int, max_steps: int, advice: str = "") -> Observation:
    """O of a step, from the events of the step before it; so a resumed request sees what it would have seen."""
    refusals: list[Refusal] = []
    results: list[EvidenceId] = []
    notes: list[str] = []
    changed = False
    for event in events:
        if isinstance(event, ModelReplied) and event.fault:
            notes.append(
                f"Your last output was {event.fault.replace('_', ' ')}; nothing of it was used. Be shorter."
            )
            changed = True
        elif isinstance(event, RequestStarted):
            changed = True
        elif isinstance(event, DeltaCommitted):
            refusals.extend(event.refused)
            changed = changed or bool(event.added or event.updated or event.removed)
        elif isinstance(event, Disclosed):
            refusals.extend(r for r in event.refused if r.rule != "repeated_call")
            # Its result is shown once more: a model that is told off replies about that, not about the request.
            results.extend(EvidenceId(r.subject) for r in event.refused if r.rule == "repeated_call")
            changed = changed or bool(event.granted or event.refused)
        elif isinstance(event, ToolFinished):
            results.append(event.evidence)
            changed = True
    if not changed and not refusals:
        notes.append("Your last step changed nothing. Act or reply.")
    if step >= max_steps:
        notes.append("This is the last step: reply now.")
    return Observation(
        results=tuple(results),
        refusals=tuple(refusals),
        notes=tuple(notes),
        step=max(1, step),
        advice=advice,
    )
