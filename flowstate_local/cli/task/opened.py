"""What a task command works on: the tasks of a space, a log file, a task with its sub-tasks."""

import base64
import logging
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from flowstate_local import logs
from flowstate_local.cli.roots import opened_space
from flowstate_local.cli.task.words import Family
from flowstate_local.errors import UsageError
from flowstate_local.task_events import (
    StepName,
    TaskId,
    ToolAction,
    WorkflowSpec,
)
from flowstate_local.task_state import TaskState, record_of
from flowstate_local.tasks import leases
from flowstate_local.tasks.manager import TaskManager
from flowstate_local.tools import Toolbox


@contextmanager
def opened_tasks(
    path: Path | None, space: str, *, as_json: bool, may: Literal["read", "change", "create"] = "read"
) -> Iterator[TaskManager[Any]]:
    """The tasks of a space. Reading never changes the store, and only `create` makes one.

    Raises:
        typer.Exit: see `roots.opened_space`.
    """
    with opened_space(path, space, as_json=as_json, may=may, maker="flowstate task run") as store:
        yield TaskManager(store, space)


@contextmanager
def logged(path: str | None) -> Iterator[Callable[[Sequence[Any]], None] | None]:
    """The listener that writes to a log file; none without one. Raises UsageError."""
    if path is None:
        yield None
        return
    try:
        handler = logs.write_to(path)
    except OSError as error:
        raise UsageError(f"can't write the log {path}: {error.strerror}") from error
    try:
        yield logs.log_events
    finally:
        logging.getLogger().removeHandler(handler)
        handler.close()


def held_by(manager: TaskManager[Any], task: TaskId) -> str:
    """Who works on a task; "" if nobody does."""
    lease = manager.store.lease(manager.space, task)
    if lease is None or not leases.alive(lease, manager.clock()):
        return ""
    return f"{lease.name or 'a worker'}, process {lease.pid}"


Parts = defaultdict[tuple[TaskId, StepName], list[TaskId]]
"""Task and step -> the sub-tasks of its tries."""


def parts_since(manager: TaskManager[Any], created_from: float) -> Parts:
    """Step of a task -> its sub-tasks, of all tasks made since then."""
    parts: Parts = defaultdict(list)
    for record in manager.tasks(created_from=created_from):
        if record.parent is not None:
            parts[record.parent.task, record.parent.step].append(record.id)
    return parts


def family_of(
    manager: TaskManager[Any], task: str, parts: Parts | None = None, *, with_events: bool = False
) -> Family:
    """A task with its sub-tasks; those not known are looked for."""
    top = manager.get(task)
    known = parts_since(manager, top.created_at) if parts is None else parts

    def of(state: TaskState) -> Family:
        children = {name: [of(manager.get(child)) for child in known[state.id, name]] for name in state.steps}
        events = tuple(manager.events(state.id)) if with_events else ()
        return Family(state, held_by(manager, state.id), events, children)

    return of(top)


def needs_engine(workflow: WorkflowSpec) -> bool:
    """Does it ask a model anything, in a sub-task perhaps?"""
    return workflow.planner == "model" or any(
        step.action.kind == "agent" or (step.action.kind == "task" and needs_engine(step.action.workflow))
        for step in workflow.steps
    )


def tools_in(workflow: WorkflowSpec) -> set[str]:
    """Names of the tools it may call, in sub-tasks too."""
    names: set[str] = set()
    for step in workflow.steps:
        names |= {use.tool for use in (step.undo, step.probe) if use is not None}
        if isinstance(step.action, ToolAction):
            names.add(step.action.tool)
        elif step.action.kind == "task":
            names |= tools_in(step.action.workflow)
    return names


def check_tools(task: str, workflow: WorkflowSpec, toolbox: Toolbox) -> None:
    """Without its tool a step would fail for good, so the task isn't begun. Raises UsageError."""
    missing = sorted(tools_in(workflow) - set(toolbox.names))
    if missing:
        raise UsageError(
            f"task {task} calls tools that --tools doesn't name: {', '.join(missing)}",
            hint="Give the module with all of its tools, as --tools module:attribute.",
        )


def task_json(manager: TaskManager[Any], state: TaskState) -> dict[str, Any]:
    """A task as JSON output says it: its line in the lists, and its result."""
    result = manager.load(state.result)
    if isinstance(result, bytes):
        result = {"base64": base64.b64encode(result).decode()}
    record = record_of(state, manager.space).model_dump(mode="json")
    return {"kind": "task", **record, "reason": state.reason, "result": result}
