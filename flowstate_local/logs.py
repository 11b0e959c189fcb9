"""Structured logs: one JSON line per event, with the numbers that let one grep follow a thing through.

Every line carries those of task, step, space, request, request_step and seq that apply. What tools log with `logging` while a step or request
calls them gets the same numbers, if `Correlated` is a filter of its handler.
"""

import contextvars
import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from flowstate_local.events import Event
from flowstate_local.task_events import TaskEvent

logger = logging.getLogger("flowstate_local.events")

_BOUND: contextvars.ContextVar[dict[str, str] | None] = contextvars.ContextVar("log_fields", default=None)
_LONG = 500
"""Characters of a text in a line; the log of events has the whole."""
_SKIP = frozenset({"schema_version", "at", "kind", "workflow", "state", "added", "updated"})
"""What a line leaves out: it is said otherwise, or has no end."""


@contextmanager
def bound(**fields: str) -> Iterator[None]:
    """All lines written in this context, and in what it starts, carry these fields."""
    token = _BOUND.set({**(_BOUND.get() or {}), **{name: value for name, value in fields.items() if value}})
    try:
        yield
    finally:
        _BOUND.reset(token)


def add(**fields: str) -> None:
    """Lines of the innermost `bound` carry these fields too, in all that it has started; outside of one, nothing."""
    here = _BOUND.get()
    if here is not None:
        here.update({name: value for name, value in fields.items() if value})


TOLD = frozenset(
    {
        "cached_tokens",
        "duration_s",
        "evidence",
        "external",
        "fault",
        "finish_reason",
        "generated_tokens",
        "granted",
        "idempotency_key",
        "name",
        "nodes",
        "outcome",
        "prompt_tokens",
        "removed",
        "size_bytes",
        "tools",
        "total_s",
        "ttft_s",
    }
)
"""What of an event is nobody's words: numbers, ids, names of tools."""


def log_events(events: Sequence[Event | TaskEvent], *, texts: bool = True) -> None:
    """A listener for `Agent` and `TaskManager`: writes durable events to the logger `flowstate_local.events`.

    Args:
        events: in their order.
        texts: whether lines hold what people and models said; without, only what is `TOLD`.
    """
    for event in events:
        failed = "Failed" in event.kind or bool(
            getattr(event, "failure", None) or getattr(event, "fault", "")
        )
        level = logging.WARNING if failed else logging.INFO
        fields = event_fields(event)
        if not texts and "event" in fields:
            fields["event"] = {key: value for key, value in fields["event"].items() if key in TOLD}
        logger.log(level, event.kind, extra={"flowstate": fields})


def event_fields(event: Event | TaskEvent) -> dict[str, Any]:
    """What a line says of an event."""
    rest = event.model_dump(mode="json", exclude=set(_SKIP), exclude_defaults=True)
    names = (
        _REQUEST_NUMBERS
        if "request" in type(event).model_fields and not hasattr(event, "task")
        else _TASK_NUMBERS
    )
    numbers = {to: rest.pop(name) for name, to in names.items() if name in rest}
    if event.kind == "DeltaCommitted":
        rest["nodes"] = [node.id for node in (*event.added, *event.updated)]
    return numbers | ({"event": _short(rest)} if rest else {})


def _short(value: Any) -> Any:
    if isinstance(value, str) and len(value) > _LONG:
        return f"{value[:_LONG]}… ({len(value)} characters)"
    if isinstance(value, dict):
        return {key: _short(item) for key, item in value.items()}
    return [_short(item) for item in value] if isinstance(value, list) else value


_REQUEST_NUMBERS = {"request": "request", "step": "request_step", "seq": "seq"}
_TASK_NUMBERS = {"task": "task", "step": "step", "seq": "seq", "request": "request"}
"""Field of an event -> what a line calls it: the step of a request is a number, that of a task a name."""


class Correlated(logging.Filter):
    """Adds the fields of the context to every record of a handler."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Let every record pass, with the fields."""
        record.flowstate = {**(_BOUND.get() or {}), **getattr(record, "flowstate", {})}
        return True


class JsonLines(logging.Formatter):
    """One JSON object per line: time, level, logger, message, and the fields."""

    def format(self, record: logging.LogRecord) -> str:
        """The line of a record."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "flowstate", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


def write_to(path: str) -> logging.Handler:
    """Append JSON lines of everything from INFO on to a file ("-" is stderr). Returns the handler, to be removed."""
    handler: logging.Handler = (
        logging.StreamHandler() if path == "-" else logging.FileHandler(path, encoding="utf-8")
    )
    handler.setFormatter(JsonLines())
    handler.addFilter(Correlated())
    root = logging.getLogger()
    root.addHandler(handler)
    logger.setLevel(logging.INFO)
    return handler
