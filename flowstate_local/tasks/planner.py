"""Planners: what a task does next. A plan is checked against the rules before it is followed, whoever made it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from flowstate_local.events import Refusal
from flowstate_local.plan_grammar import MAX_ALTERNATIVES
from flowstate_local.task_events import Planned, PlannedAction, StepName
from flowstate_local.task_state import TaskState
from flowstate_local.tasks import graph
from flowstate_local.tasks.references import references


@dataclass(frozen=True)
class Plan:
    """What a planner proposes."""

    choice: PlannedAction
    reason: str
    by: str
    alternatives: tuple[PlannedAction, ...] = ()
    """Tried in order if the choice is against the rules."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0


class Planner(Protocol):
    """Decides what is done next."""

    async def plan(self, state: TaskState, now: float) -> Sequence[Plan]:
        """Proposals for this state, each for one action; none if it's best to wait."""


class GraphPlanner:
    """Starts every step that is ready, in the order of the workflow, as many as may run at once."""

    async def plan(self, state: TaskState, now: float) -> Sequence[Plan]:
        """See `Planner.plan`."""
        return self.propose(state, now)

    def propose(self, state: TaskState, now: float) -> Sequence[Plan]:
        """The same, for those who can't wait."""
        free = state.workflow.parallel - len(state.running)
        return [
            Plan(PlannedAction(do="run", step=step), _why_ready(state, step), "graph")
            for step in graph.ready(state, now)[: max(free, 0)]
        ]


def _why_ready(state: TaskState, step: StepName) -> str:
    now, spec = state.steps[step], state.spec(step)
    if now.error is not None and now.status == "pending" and now.attempt:
        return f"try {now.attempt + 1} after {now.error.kind}"
    owners = state.workflow.stands_in_for.get(step)
    if owners:
        return f"stands in for {', '.join(owners)}"
    if not spec.needs:
        return "needs nothing"
    missing = [need for need in spec.needs if graph.output_of(state, need) is None]
    return f"done: {', '.join(spec.needs)}" + (f" (without {', '.join(missing)})" if missing else "")


def refusal(action: PlannedAction, state: TaskState, now: float) -> Refusal | None:
    """The rule that an action breaks in this state; None if it may be done."""
    if action.do == "fail":
        return None if action.reason.strip() else Refusal(subject="fail", rule="no_reason", advice="say why")
    if action.do == "complete":
        missing = [step for step in _needed_for_result(state) if not graph.satisfied(state, step)]
        if missing:
            return Refusal(
                subject="complete", rule="result_missing", advice=f"the result needs {', '.join(missing)}"
            )
        return None
    step = StepName(action.step)
    if step not in state.steps:
        return Refusal(subject=action.step, rule="unknown_step", advice=f"steps: {', '.join(state.steps)}")
    if step not in graph.ready(state, now):
        return Refusal(subject=action.step, rule="not_ready", advice=_why_not(state, step, now))
    if len(state.running) >= state.workflow.parallel:
        return Refusal(subject=action.step, rule="too_many", advice=f"{len(state.running)} steps run already")
    return None


def _needed_for_result(state: TaskState) -> list[StepName]:
    named = [StepName(r.step) for r in references(state.workflow.result) if r.step]
    if named:
        return named
    return [spec.name for spec in state.workflow.steps if graph.awake(state, spec.name)]


def _why_not(state: TaskState, step: StepName, now: float) -> str:
    at = state.steps[step]
    if at.status != "pending":
        return f"it is {at.status}"
    if not graph.awake(state, step):
        return "it only stands in for a step that gave up"
    missing = [need for need in state.spec(step).needs if not graph.satisfied(state, need)]
    return f"it needs {', '.join(missing)}" if missing else f"its next try is in {at.retry_at - now:.1f} s"


def decided(plan: Plan, state: TaskState, now: float) -> Planned | None:
    """The plan as it is recorded: its choice, or the first alternative that the rules allow; None if none is left."""
    refused: list[Refusal] = []
    options = (plan.choice, *plan.alternatives[:MAX_ALTERNATIVES])
    for place, action in enumerate(options):
        against = refusal(action, state, now)
        if against is None:
            return Planned(
                task=state.id,
                at=now,
                choice=action,
                alternatives=options[place + 1 :],
                refused=tuple(refused),
                reason=plan.reason,
                by=plan.by,
                prompt_tokens=plan.prompt_tokens,
                cached_tokens=plan.cached_tokens,
                generated_tokens=plan.generated_tokens,
            )
        refused.append(against)
    return None
