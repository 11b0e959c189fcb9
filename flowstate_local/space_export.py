"""A whole space as JSON lines, in the order in which a reader needs them. Raw bytes are base64. `space_import` reads it."""

import base64
import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from flowstate_local.events import EVENT, ToolFinished
from flowstate_local.stores.base import Store, TaskQuery
from flowstate_local.task_events import TASK_EVENT, digests_of

FORMAT = 1
"""Of the lines as a whole; nodes and events carry their own `schema_version`."""


def exported(store: Store, space: str) -> Iterator[dict[str, Any]]:
    """Requests with their raw results, nodes, other raw results, events, tasks."""
    reader = store.reader(space)
    head = store.head(space)
    yield {"kind": "space", "format": FORMAT, "space": space, **asdict(head)}
    told: set[str] = set()
    for record in store.requests(space):
        yield {"kind": "request", **record.model_dump(mode="json")}
        for evidence_id in record.evidence:
            found = reader.evidence(evidence_id)
            if found is not None:
                told.add(found.digest)
                raw = _base64(reader.blob(found.digest))
                yield {"kind": "evidence", **found.model_dump(mode="json"), "base64": raw}
    for node in store.nodes(space):
        yield {"kind": "node", **node.model_dump(mode="json")}
    for digest in _named(store, space, head.seq):
        if digest not in told:
            told.add(digest)
            yield {"kind": "blob", "digest": digest, "base64": _base64(reader.blob(digest))}
    for event in store.events(space, upto=head.seq):
        yield {"kind": "event", "event": EVENT.dump_python(event, mode="json")}
    yield from _exported_tasks(store, space)


def _named(store: Store, space: str, upto: int) -> Iterator[str]:
    """Digests that events name, of the space and of its tasks."""
    for event in store.events(space, upto=upto):
        if isinstance(event, ToolFinished):
            yield event.digest
    for record in store.tasks(TaskQuery(space=space)):
        for task_event in store.task_events(space, record.id, after=store.task_head(space, record.id).floor):
            yield from digests_of(task_event)


def _base64(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def _exported_tasks(store: Store, space: str) -> Iterator[dict[str, Any]]:
    for record in store.tasks(TaskQuery(space=space)):
        yield {"kind": "task", **record.model_dump(mode="json")}
        floor = store.task_head(space, record.id).floor
        snapshot = store.snapshot(space, record.id, upto=floor) if floor else None
        if snapshot is not None:
            yield {"kind": "task_snapshot", "task": record.id, "seq": floor, "state": json.loads(snapshot[1])}
        for event in store.task_events(space, record.id, after=floor):
            yield {"kind": "task_event", "event": TASK_EVENT.dump_python(event, mode="json")}
