"""Retention: tasks that ended long ago keep their last state and lose their log, by policy."""

from dataclasses import dataclass
from typing import Any

from flowstate_local.errors import UsageError
from flowstate_local.task_events import FINISHED, TaskId, TaskRecord
from flowstate_local.tasks.manager import TaskManager


@dataclass(frozen=True)
class Retention:
    """Which finished tasks are archived."""

    older_than_s: float = 30 * 86_400.0
    """Seconds since their last event."""
    keep_last: int = 0
    """So many of the newest stay whole, however old."""
    failed_too: bool = False
    """By default the logs of failures are kept, for whoever looks into them."""


def archive(manager: TaskManager[Any], task: str) -> TaskRecord:
    """Put a snapshot in the place of a finished task's log. Its state, result and outputs stay.

    Raises:
        UnknownTask: there is no such task.
        UsageError: it has not ended.
    """
    state = manager.get(task)
    if not state.finished:
        raise UsageError(f"task {task} is {state.status}", hint="Only tasks that ended are archived.")
    head = manager.store.task_head(manager.space, state.id)
    if head.snapshot != head.seq:
        # Something was noted after its end; its last snapshot is that much too old.
        manager.snapshot(task)
        head = manager.store.task_head(manager.space, state.id)
    manager.store.compact_task(manager.space, state.id, upto=head.seq)
    record = manager.store.task(manager.space, state.id)
    assert record is not None
    return record


def sweep(manager: TaskManager[Any], policy: Retention) -> list[TaskId]:
    """Archive every task of the space that the policy covers; their ids."""
    ended = [r for r in manager.tasks() if r.status in FINISHED and not r.archived]
    ended.sort(key=lambda record: record.updated_at, reverse=True)
    limit = manager.clock() - policy.older_than_s
    old = [r for r in ended[policy.keep_last :] if r.updated_at < limit]
    covered = [r for r in old if policy.failed_too or r.status == "completed"]
    return [archive(manager, record.id).id for record in covered]
