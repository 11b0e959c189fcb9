"""Workflows and tools for the tests of tasks."""

from collections.abc import Sequence
from typing import Any

from flowstate_local.stores.base import Store
from flowstate_local.task_events import (
    StepSpec,
    TaskCreated,
    TaskEvent,
    TaskId,
    TaskRecord,
    ToolAction,
    WorkflowSpec,
)
from flowstate_local.task_state import TaskState, fold, record_of


def call(name: str, tool: str = "say", needs: Sequence[str] = (), **fields: Any) -> StepSpec:
    """A step that calls a tool; `args` are its arguments."""
    arguments = fields.pop("args", {})
    return StepSpec.model_validate(
        {"name": name, "action": ToolAction(tool=tool, arguments=arguments), "needs": tuple(needs), **fields}
    )


def flow(*steps: StepSpec, **fields: Any) -> WorkflowSpec:
    return WorkflowSpec(name="flow", steps=steps, **fields)


def created(
    task: str = "t", workflow: WorkflowSpec | None = None, at: float = 1.0, **fields: Any
) -> TaskCreated:
    return TaskCreated(task=TaskId(task), at=at, workflow=workflow or flow(call("a")), **fields)


def put(
    store: Store,
    events: Sequence[TaskEvent],
    state: TaskState | None = None,
    *,
    space: str = "s",
    blobs: dict[str, bytes] | None = None,
    snapshot: bool = False,
) -> TaskState:
    """Append events to the log of a task as a manager would."""
    after = fold(state, events)
    store.append_task(
        space,
        events,
        blobs,
        expected_seq=state.seq if state else 0,
        record=record(after, space),
        snapshot=after.model_dump_json().encode() if snapshot else None,
    )
    return after


def record(state: TaskState, space: str = "s") -> TaskRecord:
    return record_of(state, space)
