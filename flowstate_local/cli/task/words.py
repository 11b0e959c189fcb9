"""How tasks, steps, values and times are called in a terminal. Nothing here decides anything."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from rich.text import Text

from flowstate_local.task_events import (
    StepError,
    StepName,
    StepSpec,
    TaskEvent,
    Value,
)
from flowstate_local.task_state import TaskState
from flowstate_local.tasks import graph
from flowstate_local.tools import canonical_json

STATUS_COLOUR = {
    "pending": "default",
    "running": "cyan",
    "paused": "yellow",
    "completed": "green",
    "failed": "red",
}
STATUS_MARK = {"pending": "·", "running": "►", "paused": "‖", "completed": "✓", "failed": "✗"}


@dataclass(frozen=True)
class Family:
    """A task with the sub-tasks of its steps."""

    state: TaskState
    held_by: str = ""
    """Who works on it; "" if nobody does."""
    events: Sequence[TaskEvent] = ()
    """Its log, for views that need it."""
    children: Mapping[StepName, Sequence["Family"]] = field(default_factory=dict)
    past: bool = False
    """Whether this is how it was, not how it is."""


@dataclass(frozen=True)
class Look:
    """What a step's standing is called, and how that looks."""

    word: str
    mark: str
    colour: str


_LOOKS = {
    "completed": Look("completed", "✓", "green"),
    "failed": Look("failed", "✗", "red"),
    "running": Look("running", "►", "cyan"),
    "paused": Look("paused", "‖", "yellow"),
    "waiting": Look("waiting", "·", "default"),
    "blocked": Look("blocked", "⊘", "magenta"),
    "stand-in": Look("stand-in", "◦", "dim"),
    "not run": Look("not run", "-", "dim"),
    "undoing": Look("undoing", "↺", "cyan"),
    "undone": Look("undone", "↺", "blue"),
    "not undone": Look("not undone", "✗", "red"),
}


class Steps:
    """The steps of a task, with what has to be worked out for all of them at once."""

    def __init__(self, state: TaskState) -> None:
        self.state = state
        self.specs = {spec.name: spec for spec in state.workflow.steps}
        self.blocked = graph.blocked(state)
        self.stands_in_for: defaultdict[StepName, list[StepName]] = defaultdict(list)
        """Fallback -> the steps that it stands in for."""
        for spec in state.workflow.steps:
            if spec.fallback is not None:
                self.stands_in_for[spec.fallback].append(spec.name)

    def look(self, name: StepName) -> Look:
        """The standing of a step, in the words of whoever runs the task."""
        step = self.state.steps[name]
        if step.undo:
            undo = {"completed": "undone", "failed": "not undone", "running": "undoing"}
            return _LOOKS[undo.get(step.undo, "completed")]
        if step.status != "pending":
            return _LOOKS[step.status]
        if name in self.blocked:
            return _LOOKS["blocked"]
        if self._sleeps(name):
            return _LOOKS["stand-in"]
        return _LOOKS["not run" if self.state.finished else "waiting"]

    def detail(self, name: StepName, now: float) -> Text:
        """What there is to say about a step: its output, why it failed, or what it waits for."""
        step = self.state.steps[name]
        if step.undo_error is not None and step.undo != "completed":
            return Text(error_text(step.undo_error), "red")
        if step.status == "completed":
            return Text(value_text(step.output), "dim")
        if step.status == "running":
            return Text(action_text(self.specs[name]), "dim")
        if step.status == "failed":
            return Text(error_text(step.error), "red").append(self._after_failure(name), "default")
        if step.status == "paused":
            return Text(error_text(step.error), "yellow").append(" (settle it, or retry it)", "default")
        return Text(self._waits_for(name, now), "dim")

    def before(self, name: StepName) -> list[StepName]:
        """What comes before a step: what it needs, and what it stands in for."""
        return list(dict.fromkeys([*self.specs[name].needs, *self.stands_in_for.get(name, ())]))

    def broke_the_task(self, name: StepName) -> bool:
        """Did it fail, or stop, without anything that makes up for it?"""
        word = self.look(name).word
        return word == "not undone" or (
            word in ("failed", "paused") and not graph.satisfied(self.state, name)
        )

    def _sleeps(self, name: StepName) -> bool:
        return name in self.stands_in_for and not graph.awake(self.state, name)

    def _after_failure(self, name: StepName) -> str:
        spec = self.specs[name]
        if self.state.steps[name].handed_over:
            return f" → {spec.fallback} stands in"
        return " (optional: the task goes on)" if spec.optional else ""

    def _waits_for(self, name: StepName, now: float) -> str:
        step = self.state.steps[name]
        if name in self.blocked:
            return f"blocked by {', '.join(self.blocked[name])}"
        if step.error is not None and step.attempt:
            when = f" in {seconds_text(step.retry_at - now)}" if step.retry_at > now else ""
            return f"try {step.attempt + 1}{when}, after {error_text(step.error)}"
        if self._sleeps(name):
            return f"only if {', '.join(self.stands_in_for[name])} gives up"
        missing = [need for need in self.specs[name].needs if not graph.satisfied(self.state, need)]
        return f"needs {', '.join(missing)}" if missing else "ready"


def error_text(error: StepError | None) -> str:
    """An error in one line."""
    return one_line(f"{error.kind}: {error.message}", 300) if error else ""


def action_text(spec: StepSpec) -> str:
    """What a step does, in few words."""
    action = spec.action
    if action.kind == "tool":
        return f"calls {action.tool}"
    return "asks the agent" if action.kind == "agent" else f"sub-task {action.workflow.name}"


def value_text(value: Value | None, limit: int = 200) -> str:
    """A value in one line; a big one is named by what it is, not read."""
    if value is None:
        return ""
    if value.digest:
        return f"{value.size_bytes:,} bytes of {value.form} ({value.digest[:8]})"
    text = value.inline if value.form == "text" else canonical_json(value.inline)
    return one_line(str(text), limit)


def one_line(text: str, limit: int) -> str:
    """Text on one line, without characters that steer a terminal, and cut if it's long."""
    plain = "".join(c if c.isprintable() else "�" for c in " ".join(text.split()))
    return plain if len(plain) <= limit else f"{plain[: limit - 1]}…"


def seconds_text(seconds: float) -> str:
    """A duration in the unit that fits: 20 ms, 1.5 s, 3 m 20 s, 2 h 5 m, 4 d."""
    if seconds < 0.9995:
        return f"{max(seconds, 0.0) * 1000:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for unit, size, smaller, below in (("m", 60, "s", 1), ("h", 3600, "m", 60), ("d", 86_400, "h", 3600)):
        if whole < size * (60 if unit == "m" else 24) or unit == "d":
            rest = whole % size // below
            return f"{whole // size} {unit}" + (f" {rest} {smaller}" if rest else "")
    raise AssertionError("days have no bound")


def age_text(seconds: float) -> str:
    """How long ago, roughly."""
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return f"{max(int(seconds), 0)} s"


def clock_text(at: float, *, day: bool = False) -> str:
    """A time of the log, UTC."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC" if day else "%H:%M:%S")


def status_text(status: str) -> Text:
    """The status of a task with its mark."""
    return Text(f"{STATUS_MARK[status]} {status}", STATUS_COLOUR[status])
