"""The state of a task: a fold over its events, which is also where an event that may not come is found out.

Nothing here waits, reads a clock or chooses: the same events give the same state, always.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Literal, cast

from pydantic import JsonValue

from flowstate_local.errors import IllegalTransition
from flowstate_local.nodes import Frozen
from flowstate_local.task_events import (
    FINISHED,
    CancelRequested,
    Change,
    CompensationStarted,
    Parent,
    Planned,
    StepError,
    StepName,
    StepSpec,
    TaskCreated,
    TaskEvent,
    TaskForked,
    TaskId,
    TaskLogged,
    TaskRecord,
    TaskResultSet,
    TaskStatus,
    TaskStatusChanged,
    TaskStepFailed,
    TaskStepFinished,
    TaskStepReset,
    TaskStepStarted,
    TaskUpdated,
    UndoFailed,
    UndoFinished,
    UndoStarted,
    Value,
    WorkflowSpec,
)

StepStatus = Literal["pending", "running", "paused", "completed", "failed"]
"""Those of a task, per step; a paused step waits for its operator to say what became of it."""


class StepState(Frozen):
    """Where one step stands."""

    status: StepStatus = "pending"
    attempt: int = 0
    """Tries so far, the running one included."""
    idempotency_key: str = ""
    """Of the last try."""
    idempotent: bool = False
    started_at: float = 0.0
    finished_at: float = 0.0
    inputs: dict[str, Value] = {}
    output: Value | None = None
    error: StepError | None = None
    """Of the last try that failed."""
    retry_at: float = 0.0
    handed_over: bool = False
    """Whether it gave up in favour of its fallback."""
    place: int = 0
    """Its place in the order in which steps completed, from 1; 0 before."""
    request: str = ""
    """The agent request of its last try."""
    child: str = ""
    """The sub-task of its last try."""
    undo: Literal["", "running", "pending", "completed", "failed"] = ""
    """Of its compensation."""
    undo_attempt: int = 0
    undo_key: str = ""
    undo_error: StepError | None = None
    undo_retry_at: float = 0.0


class TaskState(Frozen):
    """Where a task stands after event `seq`."""

    id: TaskId
    seq: int = 0
    workflow: WorkflowSpec
    params: dict[str, JsonValue] = {}
    owner: str = ""
    status: TaskStatus = "pending"
    reason: str = ""
    """Why it has this status."""
    steps: dict[StepName, StepState] = {}
    """In the order of the workflow."""
    state: dict[str, JsonValue] = {}
    """The user's own."""
    state_version: int = 1
    extras: dict[str, JsonValue] = {}
    result: Value | None = None
    error: StepError | None = None
    """Why it failed, or is about to."""
    failed_step: str = ""
    compensating: bool = False
    """Whether what it did is being undone."""
    cancelled: str = ""
    """Why it is to end, if somebody asked for that."""
    parent: Parent | None = None
    origin: TaskId | None = None
    """The task it was forked from, at `origin_seq`."""
    origin_seq: int = 0
    created_at: float = 0.0
    updated_at: float = 0.0
    n_logs: int = 0
    schema_version: int = 1

    @property
    def finished(self) -> bool:
        """Has it ended?"""
        return self.status in FINISHED

    def spec(self, step: StepName) -> StepSpec:
        """The step's part of the workflow. Raises KeyError."""
        return self.workflow.by_name[step]

    @property
    def running(self) -> list[StepName]:
        """Steps that were started and have not ended."""
        return [name for name, step in self.steps.items() if step.status == "running"]


def fold(state: TaskState | None, events: Iterable[TaskEvent]) -> TaskState:
    """The state after `events`.

    Raises:
        IllegalTransition: an event that may not come where it does.
    """
    for event in events:
        state = apply(state, event)
    if state is None:
        raise IllegalTransition("a task without events has no state")
    return state


def apply(state: TaskState | None, event: TaskEvent) -> TaskState:
    """The state after one more event. Raises IllegalTransition."""
    if isinstance(event, TaskCreated | TaskForked):
        if state is not None:
            raise IllegalTransition(f"task {event.task} begins twice")
        return _created(event) if isinstance(event, TaskCreated) else _forked(event)
    if state is None:
        raise IllegalTransition(f"the log of task {event.task} begins with {event.kind}")
    changes = _CHANGES[type(event)](state, event)
    # Clocks go backwards; time in the log does not.
    at = max(state.updated_at, event.at)
    return state.model_copy(update={"seq": state.seq + 1, "updated_at": at, **changes})


def _created(event: TaskCreated) -> TaskState:
    return TaskState(
        id=event.task,
        seq=1,
        workflow=event.workflow,
        params=event.params,
        owner=event.owner,
        steps={spec.name: StepState() for spec in event.workflow.steps},
        state=event.state,
        state_version=event.state_version,
        extras=event.extras,
        parent=event.parent,
        created_at=event.at,
        updated_at=event.at,
    )


def _forked(event: TaskForked) -> TaskState:
    origin = TaskState.model_validate(event.state)
    steps = {name: _as_forked(step) for name, step in origin.steps.items()}
    status: TaskStatus = "paused" if any(s.status == "paused" for s in steps.values()) else "pending"
    return origin.model_copy(
        update={
            "id": event.task,
            "seq": 1,
            "status": status,
            "reason": f"forked from {event.origin} at {event.origin_seq}",
            "steps": steps,
            "parent": None,
            "result": None,
            "error": None,
            "failed_step": "",
            "compensating": False,
            "cancelled": "",
            "origin": event.origin,
            "origin_seq": event.origin_seq,
            "created_at": event.at,
            "updated_at": event.at,
        }
    )


def _as_forked(step: StepState) -> StepState:
    """What had ended stays; what was on its way belongs to the origin, and the fork begins it anew."""
    if step.status == "running":
        return StepState()
    if step.undo:
        return StepState()  # its effect is gone, or going
    return step


Changes = Mapping[str, Any]


def _step(state: TaskState, name: StepName, **changes: Any) -> Changes:
    steps = dict(state.steps)
    steps[name] = steps[name].model_copy(update=changes)
    return {"steps": steps}


def _known(state: TaskState, name: StepName, *allowed: StepStatus) -> StepState:
    step = state.steps.get(name)
    if step is None:
        raise IllegalTransition(f"task {state.id} has no step {name!r}")
    if step.status not in allowed:
        raise IllegalTransition(
            f"step {name} of task {state.id} is {step.status}, not {' or '.join(allowed)}"
        )
    return step


def _same_try(state: TaskState, name: StepName, key: str) -> StepState:
    """Only the try that is under way may end; one that lost its task to another worker may not."""
    step = _known(state, name, "running", "paused")
    if step.idempotency_key != key:
        raise IllegalTransition(f"step {name} of task {state.id} is under way by another try")
    return step


def _planned(state: TaskState, event: Planned) -> Changes:
    _check_not_finished(state, event.kind)
    return {}


def _started(state: TaskState, event: TaskStepStarted) -> Changes:
    step = _known(state, event.step, "pending")
    if state.status != "running" or state.compensating:
        raise IllegalTransition(f"task {state.id} is {state.status}; step {event.step} can't start")
    if event.attempt != step.attempt + 1:
        raise IllegalTransition(
            f"step {event.step} of task {state.id}: try {event.attempt} after {step.attempt}"
        )
    return _step(
        state,
        event.step,
        status="running",
        attempt=event.attempt,
        idempotency_key=event.idempotency_key,
        idempotent=event.idempotent,
        started_at=event.at,
        finished_at=0.0,
        inputs=event.inputs,
        retry_at=0.0,
        request="",
        child="",
    )


def _finished(state: TaskState, event: TaskStepFinished) -> Changes:
    step = _same_try(state, event.step, event.idempotency_key)
    place = max(other.place for other in state.steps.values()) + 1
    return _step(
        state,
        event.step,
        status="completed",
        finished_at=max(event.at, step.started_at),
        output=event.output,
        place=place,
        request=event.request,
        child=event.child,
    )


def _failed(state: TaskState, event: TaskStepFailed) -> Changes:
    step = _same_try(state, event.step, event.idempotency_key)
    status: StepStatus = {"retry": "pending", "ask": "paused"}.get(event.then, "failed")  # type: ignore[assignment]
    return _step(
        state,
        event.step,
        status=status,
        finished_at=max(event.at, step.started_at),
        error=event.error,
        retry_at=event.retry_at,
        handed_over=event.then == "fallback",
        request=event.request,
        child=event.child,
    )


def _reset(state: TaskState, event: TaskStepReset) -> Changes:
    _known(state, event.step, "failed", "paused")
    _check_not_compensating(state)
    return _step(
        state, event.step, status="pending", attempt=0, idempotency_key="", retry_at=0.0, handed_over=False
    )


def _compensation(state: TaskState, event: CompensationStarted) -> Changes:
    _check_not_finished(state, event.kind)
    _check_not_compensating(state)
    if state.running:
        raise IllegalTransition(f"task {state.id} can't be undone while {', '.join(state.running)} runs")
    steps = {
        name: step.model_copy(update={"undo": "pending"})
        if step.status == "completed" and state.spec(name).undo is not None
        else step
        for name, step in state.steps.items()
    }
    return {
        "compensating": True,
        "error": event.error,
        "failed_step": event.step,
        "steps": steps,
        "status": "running",
    }


def _undo_started(state: TaskState, event: UndoStarted) -> Changes:
    step = _undoing(state, event.step, "pending")
    if event.attempt != step.undo_attempt + 1:
        raise IllegalTransition(
            f"undo of {event.step} of task {state.id}: try {event.attempt} after {step.undo_attempt}"
        )
    return _step(
        state,
        event.step,
        undo="running",
        undo_attempt=event.attempt,
        undo_key=event.idempotency_key,
        undo_retry_at=0.0,
    )


def _undo_finished(state: TaskState, event: UndoFinished) -> Changes:
    _undoing(state, event.step, "running")
    return _step(state, event.step, undo="completed", undo_error=None)


def _undo_failed(state: TaskState, event: UndoFailed) -> Changes:
    _undoing(state, event.step, "running")
    undo = "pending" if event.then == "retry" else "failed"
    return _step(state, event.step, undo=undo, undo_error=event.error, undo_retry_at=event.retry_at)


def _undoing(state: TaskState, name: StepName, *allowed: str) -> StepState:
    step = state.steps.get(name)
    if step is None or not state.compensating or step.undo not in allowed:
        undo = step.undo if step else "unknown"
        raise IllegalTransition(f"undo of {name} of task {state.id} is {undo or 'not asked for'}")
    return step


def _updated(state: TaskState, event: TaskUpdated) -> Changes:
    return {"state": patched(state.state, event.changes), "state_version": event.state_version}


def _logged(state: TaskState, _: TaskLogged) -> Changes:
    return {"n_logs": state.n_logs + 1}


def _cancel(state: TaskState, event: CancelRequested) -> Changes:
    _check_not_finished(state, event.kind)
    return {"cancelled": event.reason or "cancelled"}


def _result(state: TaskState, event: TaskResultSet) -> Changes:
    _check_not_finished(state, event.kind)
    return {"result": event.result}


_NEXT: dict[TaskStatus, frozenset[TaskStatus]] = {
    "pending": frozenset({"running", "paused", "failed"}),
    "running": frozenset({"paused", "completed", "failed"}),
    "paused": frozenset({"running", "failed"}),
    "completed": frozenset(),
    "failed": frozenset({"running"}),
}
"""failed -> running: the operator lets it go on."""


def _status(state: TaskState, event: TaskStatusChanged) -> Changes:
    if event.status not in _NEXT[state.status]:
        raise IllegalTransition(f"task {state.id} is {state.status} and can't become {event.status}")
    if event.status in FINISHED and state.running:
        raise IllegalTransition(f"task {state.id} can't end while {', '.join(state.running)} runs")
    changes: dict[str, Any] = {"status": event.status, "reason": event.reason}
    if event.status == "failed":
        changes["error"] = state.error or StepError(kind="failed", message=event.reason)
    if state.status == "failed":
        changes.update(_again(state))
    return changes


def _again(state: TaskState) -> Changes:
    """A failed task goes on: with what is left to undo, or, if nothing was undone, with its steps."""
    left = {name for name, step in state.steps.items() if step.undo == "failed"}
    if left:
        steps = {
            name: step.model_copy(update={"undo": "pending", "undo_attempt": 0}) if name in left else step
            for name, step in state.steps.items()
        }
        return {"steps": steps}
    # What was undone has to be done again.
    steps = {
        name: StepState() if step.undo == "completed" else step.model_copy(update={"undo": ""})
        for name, step in state.steps.items()
    }
    return {
        "steps": steps,
        "compensating": False,
        "cancelled": "",
        "error": None,
        "failed_step": "",
        "result": None,
    }


def _check_not_finished(state: TaskState, kind: str) -> None:
    if state.finished:
        raise IllegalTransition(f"task {state.id} is {state.status}; {kind} can't follow")


def _check_not_compensating(state: TaskState) -> None:
    if state.compensating:
        raise IllegalTransition(f"task {state.id} is being undone")


_CHANGES: dict[type, Any] = {
    Planned: _planned,
    TaskStepStarted: _started,
    TaskStepFinished: _finished,
    TaskStepFailed: _failed,
    TaskStepReset: _reset,
    CompensationStarted: _compensation,
    UndoStarted: _undo_started,
    UndoFinished: _undo_finished,
    UndoFailed: _undo_failed,
    TaskUpdated: _updated,
    TaskLogged: _logged,
    CancelRequested: _cancel,
    TaskResultSet: _result,
    TaskStatusChanged: _status,
}


# --- differences between JSON values ------------------------------------------------------------------------------


def changes_between(before: JsonValue, after: JsonValue, path: tuple[str, ...] = ()) -> list[Change]:
    """What leads from one JSON value to the other: objects key by key, everything else as a whole."""
    if _same(before, after):
        return []
    if not (isinstance(before, dict) and isinstance(after, dict)):
        return [Change(path=path, op="replace", before=before, after=after)]
    found: list[Change] = []
    for key in [*before, *(key for key in after if key not in before)]:
        here = (*path, key)
        if key not in after:
            found.append(Change(path=here, op="remove", before=before[key]))
        elif key not in before:
            found.append(Change(path=here, op="add", after=after[key]))
        else:
            found += changes_between(before[key], after[key], here)
    return found


def _same(before: JsonValue, after: JsonValue) -> bool:
    # In Python 1 == True == 1.0; in JSON they differ.
    if type(before) is not type(after):
        return False
    if isinstance(before, dict) and isinstance(after, dict):
        return before.keys() == after.keys() and all(_same(before[k], after[k]) for k in before)
    if isinstance(before, list) and isinstance(after, list):
        return len(before) == len(after) and all(map(_same, before, after))
    if isinstance(before, float):
        return repr(before) == repr(after)  # 0.0 and -0.0
    return before == after


def patched(value: dict[str, JsonValue], changes: Iterable[Change]) -> dict[str, JsonValue]:
    """The value after the changes; the given one stays as it is."""
    root: dict[str, JsonValue] = {"": value}
    for change in changes:
        root = cast("dict[str, JsonValue]", _patch(root, ("", *change.path), change))
    return cast("dict[str, JsonValue]", root[""])


def _patch(value: JsonValue, path: tuple[str, ...], change: Change) -> JsonValue:
    if not isinstance(value, dict) or (path[0] not in value and (len(path) > 1 or change.op != "add")):
        raise IllegalTransition(f"there is no {'.'.join(change.path)} that could be changed")
    copy = dict(value)
    if len(path) > 1:
        copy[path[0]] = _patch(value[path[0]], path[1:], change)
    elif change.op == "remove":
        del copy[path[0]]
    else:
        copy[path[0]] = change.after
    return copy


# --- what the indices hold ----------------------------------------------------------------------------------------


def record_of(state: TaskState, space: str) -> TaskRecord:
    """The line about a task that follows from its state."""
    done = sum(step.status == "completed" for step in state.steps.values())
    return TaskRecord(
        id=state.id,
        space=space,
        workflow=state.workflow.name,
        owner=state.owner,
        status=state.status,
        current_step=_current_step(state),
        created_at=state.created_at,
        updated_at=state.updated_at,
        seq=state.seq,
        steps_done=done,
        steps_total=len(state.steps),
        error=f"{state.error.kind}: {state.error.message}"[:300] if state.error else "",
        parent=state.parent,
    )


def _current_step(state: TaskState) -> str:
    if state.status == "completed":
        return ""
    if state.failed_step:
        return state.failed_step
    for status in ("running", "paused", "failed"):
        for name, step in state.steps.items():
            if step.status == status and not step.handed_over:
                return name
    return next((name for name, step in state.steps.items() if step.status == "pending"), "")
