"""What a task was at any time, how two times differ, why it went this way, and what else could have been.

All of it follows from the log; nothing here is recorded for its own sake.
"""

import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from flowstate_local.errors import UnknownTask
from flowstate_local.task_events import (
    Change,
    Planned,
    StepName,
    TaskEvent,
    TaskForked,
    TaskStepFailed,
    TaskStepFinished,
    TaskStepStarted,
    Value,
)
from flowstate_local.task_state import TaskState, apply, changes_between
from flowstate_local.tasks import retry
from flowstate_local.tasks.manager import TaskManager
from flowstate_local.tasks.planner import GraphPlanner, refusal

_NOISE = frozenset({"seq", "updated_at", "workflow", "schema_version"})
"""Fields that differ between any two versions, or never."""


def diff(manager: TaskManager[Any], task: str, first: int, last: int) -> list[Change]:
    """What changed in a task between two versions, either way round. Raises UnknownTask."""
    before, after = (_comparable(manager.at(task, seq)) for seq in (first, last))
    return changes_between(before, after)


def compare(before: TaskState, after: TaskState) -> list[Change]:
    """What differs between two tasks, such as a fork and its origin."""
    return changes_between(_comparable(before), _comparable(after))


def _comparable(state: TaskState) -> dict[str, Any]:
    fields = state.model_dump(mode="json", exclude=set(_NOISE))
    fields["steps"] = {name: {k: v for k, v in step.items() if v} for name, step in fields["steps"].items()}
    return fields


def fork(manager: TaskManager[Any], task: str, seq: int, *, new: str | None = None) -> TaskState:
    """A new task that begins where `task` stood after event `seq`.

    What had ended by then stays ended and isn't run again; what was under way begins anew; nothing later is visible.

    Raises:
        UnknownTask: there's no such task or version.
        ConflictError: there's a task of the id `new`.
    """
    origin = manager.at(task, seq)
    return manager.begin(
        TaskForked.model_validate(
            {
                "task": new or f"{task[:52]}-{uuid.uuid4().hex[:6]}",
                "at": manager.clock(),
                "origin": origin.id,
                "origin_seq": seq,
                "state": origin.model_dump(mode="json"),
            }
        )
    )


# --- why ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Decision:
    """One decision, and what it rested on, hop by hop."""

    seq: int
    step: str
    planned: Planned
    inputs: dict[str, Value] = field(default_factory=dict)
    """What the step was given, by reference."""
    failures: tuple[str, ...] = ()
    """What had failed by then, and what was done about it."""
    rests_on: tuple["Decision", ...] = ()
    """The decisions that brought its inputs."""


def why(manager: TaskManager[Any], task: str, *, step: str | None = None, seq: int | None = None) -> Decision:
    """Why a step was run, or why the task took the decision in force at event `seq`.

    Args:
        manager: the tasks.
        task: the task.
        step: a step; its last decision up to `seq` is explained.
        seq: a version; by default the newest.

    Raises:
        UnknownTask: no such task, step or version, or nothing was decided yet.
    """
    state = manager.at(task, seq) if seq is not None else manager.get(task)
    if step is not None and step not in state.steps:
        raise UnknownTask(f"task {task} has no step {step!r}; it has {', '.join(state.steps)}")
    events = list(manager.events(task, upto=state.seq))
    place = _last_decision(events, step)
    if place is None:
        about = f"to run {step}" if step else "in"
        raise UnknownTask(f"nothing was decided {about} task {task} up to version {state.seq}")
    return _explain(state, events, place, {})


def decisions(manager: TaskManager[Any], task: str) -> Iterator[Planned]:
    """Every decision of a task, in order."""
    return (event for event in manager.events(task) if isinstance(event, Planned))


def _last_decision(events: list[TaskEvent], step: str | None) -> int | None:
    for place in range(len(events) - 1, -1, -1):
        event = events[place]
        if isinstance(event, Planned) and step in (None, event.choice.step):
            return place
    return None


def _explain(state: TaskState, events: list[TaskEvent], place: int, known: dict[int, Decision]) -> Decision:
    # Many ways lead to one decision: each is explained once.
    if place not in known:
        known[place] = _explained(state, events, place, known)
    return known[place]


def _explained(state: TaskState, events: list[TaskEvent], place: int, known: dict[int, Decision]) -> Decision:
    planned = events[place]
    assert isinstance(planned, Planned)
    step = planned.choice.step
    earlier = events[:place]
    below = [_last_decision(earlier, need) for need in _with_stand_ins(state, step)] if step else []
    started = next((e for e in events[place:] if isinstance(e, TaskStepStarted) and e.step == step), None)
    return Decision(
        seq=planned.seq,
        step=step,
        planned=planned,
        inputs=started.inputs if started else {},
        failures=tuple(_failures(earlier)),
        rests_on=tuple(_explain(state, events, hop, known) for hop in below if hop is not None),
    )


def _with_stand_ins(state: TaskState, step: str) -> Iterator[StepName]:
    """The steps that a step needs, each followed by what stood in for it."""
    for need in state.spec(StepName(step)).needs:
        name: StepName | None = need
        while name is not None:
            yield name
            name = state.spec(name).fallback if state.steps[name].handed_over else None


def _failures(events: list[TaskEvent]) -> Iterator[str]:
    for event in events:
        if isinstance(event, TaskStepFailed):
            yield f"{event.step} (try {event.error.attempt}): {event.error.kind}: {event.error.message} → {event.then}"


# --- replay -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Frame:
    """One event of a replay."""

    event: TaskEvent
    state: TaskState
    """After it."""
    divergence: str = ""
    """What this release would have decided otherwise, if anything."""


async def replay(manager: TaskManager[Any], task: str) -> list[Frame]:
    """Go through a recorded run again, without tools and without the model.

    What came from outside (outputs, failures, the model's plans, the operator) is taken from the log; what the code
    decides (transitions, the graph's plans, the rules on a model's plans, retries) is decided anew and compared.
    """
    frames: list[Frame] = []
    head = manager.store.task_head(manager.space, manager.get(task).id)
    state = manager.at(task, head.floor) if head.floor else None
    for event in manager.events(task):
        divergence = "" if state is None else await _divergence(state, event)
        state = apply(state, event)
        frames.append(Frame(event, state, divergence))
    return frames


async def _divergence(state: TaskState, event: TaskEvent) -> str:
    if isinstance(event, Planned) and event.by == "graph":
        plans = await GraphPlanner().plan(state, event.at)
        if event.choice not in [plan.choice for plan in plans]:
            return f"the graph would now choose {', '.join(p.choice.step for p in plans) or 'to wait'}"
    if isinstance(event, Planned):
        against = refusal(event.choice, state, event.at)
        return f"the rules would now refuse it: {against.advice}" if against else ""
    if isinstance(event, TaskStepFailed) and not state.cancelled:
        decision = retry.decide(state.spec(event.step), event.error, event.idempotency_key)
        if decision.then != event.then:
            return f"this failure would now lead to {decision.then}"
    if isinstance(event, TaskStepFinished) and event.step not in state.running and event.by != "operator":
        return f"{event.step} was not running"
    return ""
