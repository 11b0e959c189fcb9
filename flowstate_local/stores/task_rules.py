"""What a store may write of tasks: the checks that come before any change. Pure, for every store."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from flowstate_local.errors import ConflictError, UsageError
from flowstate_local.stores.base import Lease, TaskHead, TaskQuery, check_task_id
from flowstate_local.task_events import (
    TaskCreated,
    TaskEvent,
    TaskForked,
    TaskId,
    TaskRecord,
    digests_of,
)


class TaskView(Protocol):
    """What the rules look up in one space, inside the transaction that will write."""

    def task_head(self, task: TaskId) -> TaskHead:
        """Where the task stands."""

    def has_blob(self, key: str) -> bool:
        """Has this space stored these raw bytes?"""

    def has_snapshot(self, task: TaskId, seq: int) -> bool:
        """Is there a snapshot of this number?"""


def plan_append(
    view: TaskView,
    events: Sequence[TaskEvent],
    blobs: Mapping[str, bytes],
    *,
    expected_seq: int,
    record: TaskRecord,
    with_snapshot: bool,
) -> tuple[TaskHead, TaskRecord]:
    """Check an append, and return head and record as they will be.

    Raises:
        ConflictError: the log doesn't end at `expected_seq`.
        UsageError: the events can't follow, or name a value that nobody stored.
    """
    task = check_task_id(record.id)
    head = view.task_head(task)
    if head.seq != expected_seq:
        problem = "exists already" if expected_seq == 0 else f"is at version {head.seq}, not {expected_seq}"
        raise ConflictError(f"task {task} {problem}")
    if not events:
        raise UsageError(f"task {task}: there are no events to append")
    for place, event in enumerate(events, start=expected_seq + 1):
        _check_event(view, task, place, event, blobs)
    seq = head.seq + len(events)
    head = replace(head, seq=seq, snapshot=seq if with_snapshot else head.snapshot)
    return head, record.model_copy(update={"seq": seq})


def _check_event(
    view: TaskView, task: TaskId, seq: int, event: TaskEvent, blobs: Mapping[str, bytes]
) -> None:
    if event.task != task:
        raise UsageError(f"{event.kind} of task {event.task} can't go into the log of task {task}")
    if isinstance(event, TaskCreated | TaskForked) != (seq == 1):
        raise UsageError(f"{event.kind} can't be event {seq} of task {task}")
    for key in digests_of(event):
        if key not in blobs and not view.has_blob(key):
            raise UsageError(f"{event.kind} of task {task} names value {key!r}, which isn't stored")


def plan_compaction(view: TaskView, task: TaskId, upto: int) -> TaskHead:
    """Check a compaction, and return the head as it will be. Raises UsageError."""
    head = view.task_head(task)
    if not view.has_snapshot(task, upto):
        raise UsageError(f"task {task} has no snapshot at event {upto} that could stand for its events")
    return replace(head, floor=max(head.floor, upto))


def check_lease(task: TaskId, current: Lease | None, replacing: str) -> None:
    """Raise ConflictError unless the current lease is the one to replace."""
    token = current.token if current else ""
    if token != replacing:
        raise ConflictError(f"task {task} is held by {current.name if current else 'nobody'}")


def check_not_compacted(task: TaskId, head: TaskHead, after: int) -> None:
    """Raise UsageError if an event that is asked for was compacted away."""
    if after < head.floor:
        raise UsageError(
            f"the first {head.floor} events of task {task} were compacted into a snapshot",
            hint=f"Ask for event {head.floor} or later.",
        )


def fits(record: TaskRecord, query: TaskQuery) -> bool:
    """Is the task one of those asked for?"""
    return (
        query.space in (None, record.space)
        and query.owner in (None, record.owner)
        and query.status in (None, record.status)
        and query.current_step in (None, record.current_step)
        and (query.created_from is None or record.created_at >= query.created_from)
        and (query.created_before is None or record.created_at < query.created_before)
    )
