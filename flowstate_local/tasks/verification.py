"""Verification of tasks: derive from each log what the rest should say, and list where it doesn't."""

from collections.abc import Iterator
from typing import Any

from flowstate_local.errors import FlowStateError
from flowstate_local.stores.base import Fault, TaskHead, TaskQuery
from flowstate_local.task_events import TaskEvent, TaskRecord, digests_of
from flowstate_local.task_state import TaskState, apply, record_of
from flowstate_local.tasks.manager import TaskManager


def verify(manager: TaskManager[Any]) -> list[Fault]:
    """Everything about the tasks of a space that isn't as their logs say; [] means whole."""
    return [
        Fault(manager.space, f"task {record.id}", problem)
        for record in list(manager.tasks())
        for problem in (*_problems(manager, record), *_index_problems(manager, record))
    ]


def _problems(manager: TaskManager[Any], record: TaskRecord) -> Iterator[str]:
    head = manager.store.task_head(manager.space, record.id)
    try:
        state = manager.at(record.id, head.floor) if head.floor else None
        for event in manager.events(record.id, upto=head.seq):
            state = apply(state, event)
            yield from _missing(manager, event)
            yield from _snapshot_problem(manager, state, event.seq)
    except FlowStateError as error:
        yield str(error)
        return
    yield from _record_problems(state, head, record, manager.space)


def _missing(manager: TaskManager[Any], event: TaskEvent) -> Iterator[str]:
    reader = manager.store.reader(manager.space)
    for key in digests_of(event):
        try:
            reader.blob(key)
        except FlowStateError as error:
            yield f"{event.kind} {event.seq}: {error}"


def _snapshot_problem(manager: TaskManager[Any], state: TaskState, seq: int) -> Iterator[str]:
    found = manager.store.snapshot(manager.space, state.id, upto=seq)
    if found is not None and found[0] == seq and TaskState.model_validate_json(found[1]) != state:
        yield f"the snapshot at {seq} is not what the log leads to"


def _record_problems(
    state: TaskState | None, head: TaskHead, record: TaskRecord, space: str
) -> Iterator[str]:
    if state is None or state.seq != head.seq:
        yield f"its log ends at {state.seq if state else 0}, its head says {head.seq}"
        return
    if record_of(state, space).model_copy(update={"archived": record.archived}) != record:
        yield "its line in the indices is not what its log leads to"


def _index_problems(manager: TaskManager[Any], record: TaskRecord) -> Iterator[str]:
    queries = {
        "owner": TaskQuery(space=manager.space, owner=record.owner),
        "status": TaskQuery(space=manager.space, status=record.status),
        "current step": TaskQuery(space=manager.space, current_step=record.current_step),
    }
    for name, query in queries.items():
        at = TaskQuery(
            **{**vars(query), "created_from": record.created_at, "created_before": record.created_at + 0.001}
        )
        if record.id not in [found.id for found in manager.store.tasks(at)]:
            yield f"the index on {name} doesn't find it"
