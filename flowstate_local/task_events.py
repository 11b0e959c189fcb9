"""Durable tasks: what they are made of, and the events of their logs. Pure values, like `events` and `nodes`.

A task is a workflow that runs. Its log is a stream of its own (`space/task`) in the store that holds the space, so
its sequence numbers have no gaps and two tasks never wait for each other. Its state is a fold over it (`task_state`).
"""

import re
from functools import cached_property
from typing import Annotated, Any, Literal, NewType

from pydantic import Field, JsonValue, TypeAdapter

from flowstate_local.events import SCHEMA_VERSION, Refusal
from flowstate_local.nodes import Frozen

TaskId = NewType("TaskId", str)
StepName = NewType("StepName", str)

TASK_ID = re.compile(r"^[a-z0-9][a-z0-9_.-]{0,63}$")
STEP_NAME = re.compile(r"^[a-z][a-z0-9_]{0,63}$")

TaskStatus = Literal["pending", "running", "paused", "completed", "failed"]
FINISHED: frozenset[TaskStatus] = frozenset({"completed", "failed"})

MAX_INLINE_BYTES = 1_024
"""A larger value goes to a blob, and the event carries its digest: bytes per step stay flat."""


class Value(Frozen):
    """A result or an input: small ones inline, big ones by the digest of their blob, to be loaded when asked for."""

    form: Literal["json", "text", "bytes"] = "json"
    inline: JsonValue = None
    digest: str = ""
    """SHA-256 (hex) of the blob; "" if the value is inline."""
    size_bytes: int = 0


class StepError(Frozen):
    """How a step went wrong, as state."""

    kind: str
    """As the tool said, or "timeout", "raised", "bad_arguments", "unknown_outcome", "cancelled", and so on."""
    message: str
    retryable: bool = False
    attempt: int = 1


# --- what a workflow is made of -----------------------------------------------------------------------------------


class RetryRule(Frozen):
    """What to do about errors of some kinds. Of a step's rules the first that fits decides."""

    kinds: tuple[str, ...] = ("*",)
    """Kinds of error; "retryable" fits every error that says so of itself, "*" every error."""
    then: Literal["now", "later", "fallback", "give_up", "ask"] = "later"
    """now and later try again, give_up fails the step, fallback hands over to the step's fallback, ask pauses the
    task for its operator."""
    times: Annotated[int, Field(ge=1)] = 3
    """Tries in all, the first included."""
    delay_s: Annotated[float, Field(ge=0)] = 1.0
    """Seconds before the second try."""
    factor: Annotated[float, Field(ge=1)] = 2.0
    """By which the delay grows from try to try."""
    max_delay_s: Annotated[float, Field(ge=0)] = 60.0
    jitter: Annotated[float, Field(ge=0, le=1)] = 0.1
    """Part of the delay that is drawn by chance, so that many tasks don't return at the same moment."""


class ToolAction(Frozen):
    """Call a tool."""

    kind: Literal["tool"] = "tool"
    tool: str
    arguments: dict[str, JsonValue] = {}
    """May hold references such as `${steps.fetch.output.price}`."""


class AgentAction(Frozen):
    """Ask a FlowState agent; the output is its reply."""

    kind: Literal["agent"] = "agent"
    request: str
    """May hold references."""
    space: str = ""
    """Memory of the agent; by default that of the task."""
    date: str | None = None


class TaskAction(Frozen):
    """Run a task of its own (a sub-goal); the output is its result."""

    kind: Literal["task"] = "task"
    workflow: "WorkflowSpec"
    params: dict[str, JsonValue] = {}
    """May hold references."""


def template_of(action: ToolAction | AgentAction | TaskAction) -> JsonValue:
    """What of an action may hold references."""
    if isinstance(action, ToolAction):
        return action.arguments
    return action.request if isinstance(action, AgentAction) else action.params


class ToolUse(Frozen):
    """A tool call beside the step's own: to undo it, or to find out whether it took effect."""

    tool: str
    arguments: dict[str, JsonValue] = {}
    """May hold references; `${output}` is the step's output, `${key}` its idempotency key."""


class StepSpec(Frozen):
    """One step of a workflow."""

    name: StepName
    action: Annotated[ToolAction | AgentAction | TaskAction, Field(discriminator="kind")]
    title: str = ""
    needs: tuple[StepName, ...] = ()
    """Steps that come before, those it refers to included."""
    retry: tuple[RetryRule, ...] = ()
    timeout_s: Annotated[float, Field(gt=0)] | None = None
    """Of one try; None leaves it to the tool."""
    fallback: StepName | None = None
    """A step that runs only if this one gives up, and whose output then stands for this one's."""
    optional: bool = False
    """Whether the task goes on without it; references to its output are then null."""
    undo: ToolUse | None = None
    """Run in reverse order over completed steps when the task fails."""
    probe: ToolUse | None = None
    """Asked after a crash whether the call took effect: null for no, anything else is the output."""


class WorkflowSpec(Frozen):
    """Steps and how they hang together; checked by `tasks.workflow` before a task is made of it."""

    name: str
    goal: str = ""
    steps: tuple[StepSpec, ...]
    result: JsonValue = None
    """What the task hands up; may hold references."""
    planner: Literal["graph", "model"] = "graph"
    parallel: Annotated[int, Field(ge=1, le=64)] = 4
    """Steps that may run at once."""

    @cached_property
    def by_name(self) -> dict[StepName, StepSpec]:
        """The steps by their names."""
        return {step.name: step for step in self.steps}

    @cached_property
    def stands_in_for(self) -> dict[StepName, tuple[StepName, ...]]:
        """Fallback -> the steps it stands in for."""
        names = {step.fallback for step in self.steps if step.fallback is not None}
        return {name: tuple(s.name for s in self.steps if s.fallback == name) for name in names}


# --- events -------------------------------------------------------------------------------------------------------


class _TaskEvent(Frozen):
    seq: int = 0
    """Position in the log of its task, from 1, without gaps; 0 until the store has assigned it."""
    task: TaskId
    at: float
    """Seconds since the epoch, UTC."""
    schema_version: int = SCHEMA_VERSION


class Parent(Frozen):
    """The step of another task that this task is a sub-goal of."""

    task: TaskId
    step: StepName


class TaskCreated(_TaskEvent):
    """A task was accepted."""

    kind: Literal["TaskCreated"] = "TaskCreated"
    workflow: WorkflowSpec
    params: dict[str, JsonValue] = {}
    owner: str = ""
    state: dict[str, JsonValue] = {}
    """The user's own state, beside the steps."""
    state_version: int = 1
    extras: dict[str, JsonValue] = {}
    parent: Parent | None = None


class TaskForked(_TaskEvent):
    """A task begins where another one stood; what came later there is not part of it."""

    kind: Literal["TaskForked"] = "TaskForked"
    origin: TaskId
    origin_seq: int
    state: dict[str, Any]
    """The origin's state at that number, whole, so that the fork outlives the origin."""


class PlannedAction(Frozen):
    """One thing a planner may decide."""

    do: Literal["run", "complete", "fail"]
    step: str = ""
    """For run."""
    reason: str = ""
    """For fail."""


class Planned(_TaskEvent):
    """What is done next, why, and what else was considered; durable before it is done."""

    kind: Literal["Planned"] = "Planned"
    choice: PlannedAction
    alternatives: tuple[PlannedAction, ...] = ()
    """Considered and not needed."""
    refused: tuple[Refusal, ...] = ()
    """Considered before the choice, and against a rule."""
    reason: str
    by: str
    """"graph", "operator", or "model NAME"."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0


class TaskStepStarted(_TaskEvent):
    """RUNNING, durable before anything runs."""

    kind: Literal["TaskStepStarted"] = "TaskStepStarted"
    step: StepName
    attempt: int
    idempotency_key: str
    """The same for every try of the step, until somebody resets it."""
    idempotent: bool
    inputs: dict[str, Value] = {}
    """What its references led to, by reference; never copies of big values."""


class TaskStepFinished(_TaskEvent):
    """A step's output, durable before anything builds on it."""

    kind: Literal["TaskStepFinished"] = "TaskStepFinished"
    step: StepName
    idempotency_key: str
    output: Value
    duration_s: float = 0.0
    request: str = ""
    """The agent request that brought it, if one did."""
    child: str = ""
    """The sub-task that brought it, if one did."""
    by: str = ""
    """"probe" or "operator" if it was found out after a crash rather than returned."""


class TaskStepFailed(_TaskEvent):
    """A structured failure, and what follows from it."""

    kind: Literal["TaskStepFailed"] = "TaskStepFailed"
    step: StepName
    idempotency_key: str
    error: StepError
    then: Literal["retry", "fallback", "give_up", "ask"]
    retry_at: float = 0.0
    """Not before this time; 0 is at once."""
    duration_s: float = 0.0
    request: str = ""
    child: str = ""


class TaskStepReset(_TaskEvent):
    """Somebody lets a step that failed or whose outcome is unknown run again, with tries as at first."""

    kind: Literal["TaskStepReset"] = "TaskStepReset"
    step: StepName
    reason: str = ""


class CompensationStarted(_TaskEvent):
    """The task can't succeed; what it has done is undone, last first, and then it is failed."""

    kind: Literal["CompensationStarted"] = "CompensationStarted"
    error: StepError
    step: str = ""


class UndoStarted(_TaskEvent):
    """Durable before the undoing of a step runs."""

    kind: Literal["UndoStarted"] = "UndoStarted"
    step: StepName
    attempt: int
    idempotency_key: str


class UndoFinished(_TaskEvent):
    """A step's effect is gone."""

    kind: Literal["UndoFinished"] = "UndoFinished"
    step: StepName
    output: Value = Value()


class UndoFailed(_TaskEvent):
    """A step's effect may still be there; `flowstate task retry` goes on from here."""

    kind: Literal["UndoFailed"] = "UndoFailed"
    step: StepName
    error: StepError
    then: Literal["retry", "give_up"]
    retry_at: float = 0.0


class Change(Frozen):
    """One difference between two JSON values."""

    path: tuple[str, ...]
    op: Literal["add", "remove", "replace"]
    before: JsonValue = None
    after: JsonValue = None


class TaskUpdated(_TaskEvent):
    """The user's state changed."""

    kind: Literal["TaskUpdated"] = "TaskUpdated"
    changes: tuple[Change, ...]
    reason: str = ""
    state_version: int = 1


class TaskLogged(_TaskEvent):
    """Something worth remembering about a task or one of its steps."""

    kind: Literal["TaskLogged"] = "TaskLogged"
    step: str = ""
    level: Literal["debug", "info", "warning", "error"] = "info"
    message: str
    fields: dict[str, JsonValue] = {}


class TaskResultSet(_TaskEvent):
    """What the task hands up."""

    kind: Literal["TaskResultSet"] = "TaskResultSet"
    result: Value


class CancelRequested(_TaskEvent):
    """Somebody wants the task to end; whoever works on it winds it up."""

    kind: Literal["CancelRequested"] = "CancelRequested"
    reason: str = ""


class TaskStatusChanged(_TaskEvent):
    """Pending, running, paused, completed, failed."""

    kind: Literal["TaskStatusChanged"] = "TaskStatusChanged"
    status: TaskStatus
    reason: str = ""


TaskEvent = Annotated[
    TaskCreated
    | TaskForked
    | Planned
    | TaskStepStarted
    | TaskStepFinished
    | TaskStepFailed
    | TaskStepReset
    | CompensationStarted
    | UndoStarted
    | UndoFinished
    | UndoFailed
    | TaskUpdated
    | TaskLogged
    | TaskResultSet
    | CancelRequested
    | TaskStatusChanged,
    Field(discriminator="kind"),
]

TASK_EVENT: TypeAdapter[TaskEvent] = TypeAdapter(TaskEvent)
"""Parses and dumps one event of a task, of any kind."""


def digests_of(event: TaskEvent) -> list[str]:
    """The blobs that an event names."""
    values: list[Value] = []
    if isinstance(event, TaskStepStarted):
        values = list(event.inputs.values())
    elif isinstance(event, TaskStepFinished | UndoFinished):
        values = [event.output]
    elif isinstance(event, TaskResultSet):
        values = [event.result]
    return [value.digest for value in values if value.digest]


class TaskRecord(Frozen):
    """One line about a task: what the indices hold, and lists show. Derived from its state."""

    id: TaskId
    space: str
    workflow: str
    owner: str
    status: TaskStatus
    current_step: str
    """Running or next to run; the step that failed, once the task has; "" before and after."""
    created_at: float
    updated_at: float
    seq: int
    """Of the last event: the version."""
    steps_done: int
    steps_total: int
    error: str = ""
    parent: Parent | None = None
    archived: bool = False
