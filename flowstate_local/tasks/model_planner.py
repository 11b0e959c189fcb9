"""A planner that asks a model. The state is put to it with what failed first; it can only choose what is possible.

The prompt is laid out as the agent's is: rules and the workflow are static, what has ended is appended, and what
changes (failures, what they block, what is possible now) comes last. So the prefix cache serves most of it.
"""

import json
from collections.abc import Sequence
from typing import Any

from flowstate_local.completion import Completion, Sampling, Tokenizer
from flowstate_local.engines.base import Engine, complete
from flowstate_local.errors import OutputTruncated, PromptTooLong
from flowstate_local.plan_grammar import ANSWER_TOKENS, plan_constraint
from flowstate_local.task_events import AgentAction, PlannedAction, StepName, StepSpec, ToolAction
from flowstate_local.task_state import TaskState
from flowstate_local.tasks import graph
from flowstate_local.tasks.manager import TaskManager
from flowstate_local.tasks.planner import Plan, refusal
from flowstate_local.tools import canonical_json

RULES = """You plan a task that others carry out, one step at a time.
You read the goal, the steps of the workflow, what has ended so far, and what is possible now.
You answer with JSON:
- reason: one sentence on why this is next.
- choice: one of the actions that are possible now.
- alternatives: up to two other possible actions, in case the choice is refused.

run STEP carries out a step. complete ends the task: choose it once the goal is reached.
fail gives the task up: choose it only if what failed makes the goal impossible.
A step that failed and may be tried again is possible again; a step with a stand-in is followed by that.

Example
Goal: tell the team whether the ferry sails
Steps
- forecast: read the forecast
- tides: read the tide table
- tell: tell the team (needs forecast, tides)
Ended
1 forecast completed: "wind 9, gusts 11"
Now
possible: run tides, complete, fail
{"reason":"The tide table is still missing, and tell needs it.","choice":"run tides","alternatives":["fail"]}
"""
MAX_OUTPUT_CHARS = 400
"""Of a step's output in the prompt."""


class ModelPlanner:
    """Asks a model for each action. See `planner.Planner`.

    Args:
        engine: the model.
        manager: reads the outputs that are shown.
        sampling: decoding parameters; the default is the paper's preset.
    """

    def __init__(
        self, engine: Engine, manager: TaskManager[Any], *, sampling: Sampling | None = None
    ) -> None:
        self._engine = engine
        self._manager = manager
        self._sampling = sampling or Sampling()

    async def plan(self, state: TaskState, now: float) -> Sequence[Plan]:
        """One plan, or none while a step runs or nothing can be started.

        Raises:
            PromptTooLong: the workflow and its state leave no room in the model's window.
            OutputTruncated: the answer was cut off or is no plan.
        """
        actions = possible(state, now)
        if state.running or not any(action.startswith("run ") for action in actions):
            return []
        completion = await self._ask(state, actions)
        return [_plan(completion, self._engine.model)]

    async def _ask(self, state: TaskState, actions: Sequence[str]) -> Completion:
        ids = prompt_ids(self._engine.tokenizer, state, actions, self._manager)
        room = self._engine.context_window - len(ids)
        if room < ANSWER_TOKENS:
            raise PromptTooLong(
                f"the state of task {state.id} makes a prompt of {len(ids)} tokens; the window of "
                f"{self._engine.model} is {self._engine.context_window}, of which a plan needs {ANSWER_TOKENS}"
            )
        constraint = plan_constraint(self._engine.profile, actions, _all_actions(state))
        given = self._sampling
        sampling = Sampling(given.temperature, given.top_p, min(given.max_tokens, room), given.seed)
        return await complete(self._engine, ids, constraint, sampling)


def possible(state: TaskState, now: float) -> list[str]:
    """The actions that the rules allow now, as the model writes them."""
    actions = [f"run {step}" for step in graph.ready(state, now)]
    if refusal(PlannedAction(do="complete"), state, now) is None:
        actions.append("complete")
    return [*actions, "fail"]


def _all_actions(state: TaskState) -> list[str]:
    return [*(f"run {name}" for name in state.steps), "complete", "fail"]


def _plan(completion: Completion, model: str) -> Plan:
    if completion.finish_reason != "stop":
        raise OutputTruncated(
            f"the plan was cut off ({completion.finish_reason}); nothing of it was followed"
        )
    try:
        answer = json.loads(completion.text)
        reason = str(answer["reason"])
        actions = [_action(text, reason) for text in (answer["choice"], *answer["alternatives"])]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise OutputTruncated(f"the model's answer is no plan: {completion.text[:200]!r}") from error
    others = dict.fromkeys(a for a in actions[1:] if a != actions[0])
    return Plan(
        choice=actions[0],
        reason=reason,
        by=f"model {model.rpartition('/')[2]}",
        alternatives=tuple(others),
        prompt_tokens=completion.prompt_tokens,
        cached_tokens=completion.cached_tokens,
        generated_tokens=completion.generated_tokens,
    )


def _action(text: str, reason: str) -> PlannedAction:
    do, _, step = text.partition(" ")
    return PlannedAction.model_validate({"do": do, "step": step, "reason": reason if do == "fail" else ""})


# --- the prompt ---------------------------------------------------------------------------------------------------


def prompt_ids(
    tokenizer: Tokenizer, state: TaskState, actions: Sequence[str], manager: TaskManager[Any]
) -> list[int]:
    """The prompt as token ids, each part encoded alone, so that what is appended leaves what stood before as it was."""
    frame = tokenizer.frame
    ids = tokenizer.encode_frame(frame.system_open) + tokenizer.encode(RULES)
    ids += tokenizer.encode_frame(frame.user_open) + tokenizer.encode(workflow_text(state))
    for line in ended_lines(state, manager):
        ids += tokenizer.encode(line + "\n")
    return ids + tokenizer.encode(now_text(state, actions)) + tokenizer.encode_frame(frame.reply_open)


def workflow_text(state: TaskState) -> str:
    """What stays the same while the task runs: goal, parameters, steps."""
    lines = [f"Goal: {state.workflow.goal or state.workflow.name}"]
    if state.params:
        lines.append(f"Parameters: {canonical_json(state.params)}")
    lines.append("Steps")
    lines += [f"- {_step_text(spec)}" for spec in state.workflow.steps]
    return "\n".join(lines) + "\nEnded\n"


def _step_text(spec: StepSpec) -> str:
    notes = [f"needs {', '.join(spec.needs)}"] if spec.needs else []
    notes += [f"stand-in {spec.fallback}"] if spec.fallback else []
    notes += ["optional"] if spec.optional else []
    return f"{spec.name}: {spec.title or _what(spec)}" + (f" ({'; '.join(notes)})" if notes else "")


def _what(spec: StepSpec) -> str:
    action = spec.action
    if isinstance(action, ToolAction):
        return action.tool
    return (
        f"ask: {action.request[:80]}"
        if isinstance(action, AgentAction)
        else f"sub-task {action.workflow.name}"
    )


def ended_lines(state: TaskState, manager: TaskManager[Any]) -> list[str]:
    """One line for each step that completed, in that order."""
    done = sorted((s.place, name) for name, s in state.steps.items() if s.status == "completed")
    return [
        f"{place} {name} completed: {_shown(manager.load(state.steps[name].output))}" for place, name in done
    ]


def _shown(output: Any) -> str:
    text = f"{len(output)} bytes" if isinstance(output, bytes) else canonical_json(output)
    return text if len(text) <= MAX_OUTPUT_CHARS else f"{text[:MAX_OUTPUT_CHARS]}… ({len(text)} characters)"


def now_text(state: TaskState, actions: Sequence[str]) -> str:
    """What changes from plan to plan: failures and what they block first, then what is possible."""
    lines = ["Now"]
    held = graph.blocked(state)
    for name, step in state.steps.items():
        if step.error is not None and step.status != "completed":
            waits = [other for other, causes in held.items() if name in causes]
            blocks = f"; blocks {', '.join(waits)}" if waits else ""
            lines.append(
                f"FAILED {name} (try {step.attempt}): {step.error.kind}: {step.error.message[:200]}{blocks}"
            )
    names: list[StepName] = [name for name in state.steps if f"run {name}" in actions]
    lines.append(
        "possible: " + ", ".join([*(f"run {n}" for n in names), *(a for a in actions if " " not in a)])
    )
    return "\n".join(lines) + "\n"
