"""A whole space as JSON lines, in the order in which a reader needs them. Raw bytes are base64."""

import base64
import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from flowstate_local.events import EVENT
from flowstate_local.stores.base import Store, TaskQuery
from flowstate_local.task_events import TASK_EVENT


def exported(store: Store, space: str) -> Iterator[dict[str, Any]]:
    """Requests with their raw results, nodes, events, tasks."""
    reader = store.reader(space)
    yield {"kind": "space", "space": space, **asdict(store.head(space))}
    for record in store.requests(space):
        yield {"kind": "request", **record.model_dump(mode="json")}
        for evidence_id in record.evidence:
            found = reader.evidence(evidence_id)
            if found is not None:
                raw = base64.b64encode(reader.blob(found.digest)).decode()
                yield {"kind": "evidence", **found.model_dump(mode="json"), "base64": raw}
    for node in store.nodes(space):
        yield {"kind": "node", **node.model_dump(mode="json")}
    for event in store.events(space):
        yield {"kind": "event", "event": EVENT.dump_python(event, mode="json")}
    yield from _exported_tasks(store, space)


def _exported_tasks(store: Store, space: str) -> Iterator[dict[str, Any]]:
    for record in store.tasks(TaskQuery(space=space)):
        yield {"kind": "task", **record.model_dump(mode="json")}
        floor = store.task_head(space, record.id).floor
        snapshot = store.snapshot(space, record.id, upto=floor) if floor else None
        if snapshot is not None:
            yield {"kind": "task_snapshot", "task": record.id, "seq": floor, "state": json.loads(snapshot[1])}
        for event in store.task_events(space, record.id, after=floor):
            yield {"kind": "task_event", "event": TASK_EVENT.dump_python(event, mode="json")}
