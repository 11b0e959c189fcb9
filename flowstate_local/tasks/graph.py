"""What follows from where a task's steps stand: what is ready, what is blocked, whether the task is over. Pure."""

from dataclasses import dataclass
from typing import Literal

from flowstate_local.task_events import StepError, StepName, StepSpec, Value
from flowstate_local.task_state import TaskState


@dataclass(frozen=True)
class Verdict:
    """How a task ends."""

    status: Literal["completed", "failed"]
    error: StepError | None = None
    step: str = ""


def awake(state: TaskState, name: StepName) -> bool:
    """A fallback sleeps until a step hands over to it."""
    owners = state.workflow.stands_in_for.get(name, ())
    return not owners or any(state.steps[owner].handed_over for owner in owners)


def satisfied(state: TaskState, name: StepName) -> bool:
    """May what needs this step go on?"""
    step, spec = state.steps[name], state.spec(name)
    if step.status == "completed":
        return True
    if step.status != "failed":
        return False
    if step.handed_over and spec.fallback is not None:
        stood_in = satisfied(state, spec.fallback)
        return stood_in or (spec.optional and given_up(state, spec.fallback))
    return spec.optional


def given_up(state: TaskState, name: StepName) -> bool:
    """Has it failed for good, its fallback too?"""
    step, spec = state.steps[name], state.spec(name)
    if step.status != "failed":
        return False
    return not step.handed_over or spec.fallback is None or given_up(state, spec.fallback)


def ready(state: TaskState, now: float) -> list[StepName]:
    """The steps that may start now, in the order of the workflow."""
    return [
        spec.name
        for spec in state.workflow.steps
        if _open(state, spec) and state.steps[spec.name].retry_at <= now
    ]


def waiting_until(state: TaskState) -> float | None:
    """When the first of the steps that wait for another try may start; None if none waits."""
    times = [state.steps[spec.name].retry_at for spec in state.workflow.steps if _open(state, spec)]
    times += [step.undo_retry_at for step in state.steps.values() if step.undo == "pending"]
    return min(times, default=None)


def _open(state: TaskState, spec: StepSpec) -> bool:
    step = state.steps[spec.name]
    return (
        step.status == "pending" and awake(state, spec.name) and all(satisfied(state, n) for n in spec.needs)
    )


def verdict(state: TaskState) -> Verdict | None:
    """How the task ends, if nothing is left to do; None if something is."""
    for spec in state.workflow.steps:
        if given_up(state, spec.name) and not spec.optional and not _is_fallback(state, spec.name):
            return Verdict("failed", _last_error(state, spec), spec.name)
    if all(satisfied(state, s.name) for s in state.workflow.steps if not _is_fallback(state, s.name)):
        return Verdict("completed")
    return None


def _is_fallback(state: TaskState, name: StepName) -> bool:
    """Whoever it stands in for answers for it."""
    return name in state.workflow.stands_in_for


def _last_error(state: TaskState, spec: StepSpec) -> StepError | None:
    step = state.steps[spec.name]
    if step.handed_over and spec.fallback is not None:
        return _last_error(state, state.spec(spec.fallback)) or step.error
    return step.error


def output_of(state: TaskState, name: StepName) -> Value | None:
    """A step's output, or that of the fallback that stood in for it; None if there is none."""
    step, spec = state.steps[name], state.spec(name)
    if step.status == "completed":
        return step.output
    if step.handed_over and spec.fallback is not None:
        return output_of(state, spec.fallback)
    return None


def blocked(state: TaskState) -> dict[StepName, list[StepName]]:
    """Steps that can't start because of a step that failed or waits for its operator -> those steps."""
    found: dict[StepName, list[StepName]] = {}
    for spec in state.workflow.steps:
        if state.steps[spec.name].status != "pending":
            continue
        causes = [
            need
            for need in spec.needs
            if need in found
            or state.steps[need].status == "paused"
            or (state.steps[need].status == "failed" and not satisfied(state, need))
        ]
        if causes:
            found[spec.name] = causes
    return found


def to_undo(state: TaskState, now: float) -> StepName | None:
    """The step to undo next: the one that completed last."""
    left = [name for name, step in state.steps.items() if step.undo == "pending"]
    latest = max(left, key=lambda name: state.steps[name].place, default=None)
    return latest if latest is not None and state.steps[latest].undo_retry_at <= now else None
