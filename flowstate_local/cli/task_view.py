"""How tasks look in a terminal: lists, steps, graph, time, reasons. Nothing here decides anything, or reads a store."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from graphlib import TopologicalSorter
from typing import Literal

from pydantic import JsonValue
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from flowstate_local.stores.base import Fault
from flowstate_local.task_events import (
    Change,
    CompensationStarted,
    Planned,
    PlannedAction,
    StepError,
    StepName,
    StepSpec,
    TaskCreated,
    TaskEvent,
    TaskForked,
    TaskLogged,
    TaskRecord,
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
)
from flowstate_local.task_state import StepState, TaskState
from flowstate_local.tasks import graph
from flowstate_local.tasks.history import Decision, Frame
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


# --- words --------------------------------------------------------------------------------------------------------


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


# --- lists and heads ----------------------------------------------------------------------------------------------


def tasks_table(records: Sequence[TaskRecord], now: float, width: int) -> Table:
    """One row per task; a sub-task stands under the task it belongs to, if that is listed.

    Args:
        records: the tasks.
        now: seconds since the epoch.
        width: columns of the terminal; a narrow one goes without the workflow's name.
    """
    with_workflow = width >= 100
    with_owner = any(record.owner for record in records)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), expand=True)
    table.add_column("task", no_wrap=True, overflow="ellipsis")
    if with_workflow:
        table.add_column("workflow", no_wrap=True)
    table.add_column("status", no_wrap=True, min_width=11)
    table.add_column("step", no_wrap=True)
    table.add_column("done", no_wrap=True, min_width=4)
    table.add_column("age", no_wrap=True, justify="right", min_width=4)
    if with_owner:
        table.add_column("owner", no_wrap=True)
    table.add_column("", no_wrap=True, overflow="ellipsis", ratio=1)
    for depth, record in _nested(records):
        cells: list[RenderableType] = [Text("  " * depth + record.id, "" if depth else "bold")]
        cells += [Text(one_line(record.workflow, 24))] if with_workflow else []
        cells += [
            status_text(record.status),
            Text(one_line(record.current_step, 20)),
            f"{record.steps_done}/{record.steps_total}",
            age_text(now - record.created_at),
        ]
        cells += [Text(one_line(record.owner, 16))] if with_owner else []
        archived = Text("archived " if record.archived else "", "dim")
        table.add_row(*cells, archived.append(one_line(record.error, 200), "red"))
    return table


def _nested(records: Sequence[TaskRecord]) -> Iterator[tuple[int, TaskRecord]]:
    listed = {record.id for record in records}

    def below(parent: str | None, depth: int) -> Iterator[tuple[int, TaskRecord]]:
        for record in records:
            owner = record.parent.task if record.parent and record.parent.task in listed else None
            if owner == parent:
                yield depth, record
                yield from below(record.id, depth + 1)

    return below(None, 0)


def task_view(family: Family, now: float) -> RenderableType:
    """A task whole: its head, its steps, and how they hang together."""
    return Group(
        head_view(family, now),
        "",
        Padding(steps_table(family, now), (0, 0, 0, 1)),
        "",
        Padding(graph_tree(family.state), (0, 0, 0, 1)),
    )


def head_view(family: Family, now: float) -> RenderableType:
    """Which task this is, where it stands and why, and what came of it."""
    rows = Table.grid(padding=(0, 2))
    rows.add_column(style="dim", no_wrap=True, min_width=8)
    rows.add_column(overflow="fold")
    for title, text in _head_rows(family, now):
        rows.add_row(title, text)
    return Group(title_line(family), Padding(rows, (0, 0, 0, 1)))


def title_line(family: Family) -> Text:
    """One line: which task, its status, and how far it is."""
    state = family.state
    done = sum(step.status == "completed" for step in state.steps.values())
    n_undone = sum(step.undo == "completed" for step in state.steps.values())
    undone = f", {n_undone} undone" if n_undone else ""
    colour = STATUS_COLOUR[state.status]
    return Text.assemble(
        (state.id, "bold"),
        " ",
        (f"{STATUS_MARK[state.status]} {_status_words(family)}", f"bold {colour}"),
        (
            f"  {done} of {len(state.steps)} steps{undone} · {seconds_text(state.updated_at - state.created_at)}",
            "dim",
        ),
        (f" · version {state.seq}", "dim"),
    )


def _status_words(family: Family) -> str:
    state = family.state
    words: list[str] = [state.status]
    if not state.finished:
        words += ["being undone"] if state.compensating else ["to be cancelled"] if state.cancelled else []
    if state.status == "running" and not family.held_by and not family.past:
        words.append("but nobody works on it")
    return ", ".join(words)


def _head_rows(family: Family, now: float) -> Iterator[tuple[str, RenderableType]]:
    state = family.state
    goal = f": {one_line(state.workflow.goal, 300)}" if state.workflow.goal else ""
    yield "workflow", Text(state.workflow.name + goal)
    if state.owner:
        yield "owner", Text(one_line(state.owner, 100))
    created = f"{clock_text(state.created_at, day=True)}, {age_text(now - state.created_at)} ago"
    yield "created", Text(created)
    if state.parent is not None:
        yield "part of", Text(f"step {state.parent.step} of task {state.parent.task}")
    if state.origin is not None:
        yield "fork of", Text(f"task {state.origin} at version {state.origin_seq}")
    if state.params:
        yield "params", Text(one_line(canonical_json(state.params), 300))
    if state.state:
        yield "state", Text(one_line(canonical_json(state.state), 300))
    yield from _standing(family)


def _standing(family: Family) -> Iterator[tuple[str, RenderableType]]:
    state = family.state
    if family.held_by:
        yield "worker", Text(family.held_by, "cyan")
    elif state.status == "running" and not family.past:
        yield "worker", Text("none: it stopped or died; `flowstate task resume` goes on", "yellow")
    if state.status == "paused":
        yield "paused", Text(one_line(state.reason, 300), "yellow")
    if state.error is not None:
        where = f"{state.failed_step}: " if state.failed_step else ""
        yield "error", Text(where + error_text(state.error), "red")
    undone = [name for name, step in state.steps.items() if step.undo == "completed"]
    stuck = [name for name, step in state.steps.items() if step.undo == "failed"]
    if undone:
        yield "undone", Text(", ".join(undone), "blue")
    if stuck:
        yield "not undone", Text(f"{', '.join(stuck)}: `flowstate task retry` goes on undoing", "red")
    if state.result is not None:
        yield "result", Text(value_text(state.result, 1_000))


# --- steps --------------------------------------------------------------------------------------------------------


def steps_table(family: Family, now: float) -> Table:
    """One row per step, those of sub-tasks indented under theirs."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), expand=True)
    table.add_column("step", no_wrap=True, overflow="ellipsis", max_width=28)
    table.add_column("status", no_wrap=True, min_width=11)
    table.add_column("tries", no_wrap=True, justify="right")
    table.add_column("time", no_wrap=True, justify="right", min_width=6)
    table.add_column("output, or what holds it up", no_wrap=True, overflow="ellipsis", ratio=1)
    for row in _step_rows(family, now, 0):
        table.add_row(*row)
    return table


def progress_view(family: Family, now: float) -> RenderableType:
    """What a running task shows of itself."""
    return Group(title_line(family), Padding(steps_table(family, now), (0, 0, 0, 1)))


def _step_rows(family: Family, now: float, depth: int) -> Iterator[tuple[RenderableType, ...]]:
    steps = Steps(family.state)
    for name, step in family.state.steps.items():
        seen = steps.look(name)
        yield (
            Text("  " * depth + name, "bold" if seen.word == "blocked" or steps.broke_the_task(name) else ""),
            Text(f"{seen.mark} {seen.word}", seen.colour),
            Text(str(step.attempt) if step.attempt else "", "yellow" if step.attempt > 1 else ""),
            Text(_time_of(step, now)),
            steps.detail(name, now),
        )
        for child in family.children.get(name, ()):
            if len(family.children[name]) > 1:
                yield Text("  " * (depth + 1) + child.state.id, "dim"), status_text(child.state.status)
            yield from _step_rows(child, now, depth + 1)


def _time_of(step: StepState, now: float) -> str:
    if step.status == "running":
        return seconds_text(now - step.started_at)
    if not step.started_at or step.finished_at < step.started_at:
        return ""
    return seconds_text(step.finished_at - step.started_at)


def graph_tree(state: TaskState) -> Tree:
    """The steps under what they need. One with several needs stands under the last of them, and names the others."""
    tree = Tree(Text(f"{state.workflow.name}: what needs what", "dim"), guide_style="dim")
    steps = Steps(state)
    place = {name: i for i, name in enumerate(steps.specs)}
    depth: dict[StepName, int] = {}
    for name in TopologicalSorter({name: steps.before(name) for name in place}).static_order():
        depth[name] = 1 + max((depth[need] for need in steps.before(name)), default=0)

    def rank(name: StepName) -> tuple[int, int]:
        return depth[name], place[name]

    nodes: dict[StepName, Tree] = {}
    for name in sorted(place, key=rank):
        before = sorted(steps.before(name), key=rank)
        above = nodes[before[-1]] if before else tree
        nodes[name] = above.add(_graph_label(steps, name, before[:-1]))
    return tree


def _graph_label(steps: Steps, name: StepName, others: Sequence[StepName]) -> Text:
    seen = steps.look(name)
    label = Text.assemble((f"{seen.mark} {name}", seen.colour))
    if seen.word == "blocked":
        label.append(f" BLOCKED by {', '.join(steps.blocked[name])}", "bold magenta")
    elif steps.broke_the_task(name):
        label.append(f" {seen.word.upper()}", f"bold {seen.colour}")
    elif seen.word != "stand-in":
        label.append(f" {seen.word}", "dim")
    owners, title = steps.stands_in_for.get(name, []), steps.specs[name].title
    notes = [one_line(title, 60)] if title else []
    notes += [f"stands in for {', '.join(owners)}"] if owners else []
    notes += ["optional"] if steps.specs[name].optional else []
    needs = [other for other in others if other not in owners]
    notes += [f"also needs {', '.join(needs)}"] if needs else []
    return label.append(f"  {' · '.join(notes)}" if notes else "", "dim")


# --- events -------------------------------------------------------------------------------------------------------


def event_line(event: TaskEvent, *, of_task: bool = False) -> Text:
    """One event in one line: its number, when, what. With the task, where several are shown."""
    words, colour = event_words(event)
    line = Text.assemble((f"{event.seq:>5} ", "dim"), (f"{clock_text(event.at)} ", "dim"))
    if of_task:
        line.append(f"{event.task} ", "bold")
    return line.append(one_line(words, 400), colour)


def event_words(event: TaskEvent) -> tuple[str, str]:
    """What an event says, and its colour."""
    words = _step_event_words(event) or _undo_event_words(event)
    if words is not None:
        return words
    if isinstance(event, TaskCreated):
        owner = f" for {event.owner}" if event.owner else ""
        return f"task created{owner}: {event.workflow.name}, {len(event.workflow.steps)} steps", "default"
    if isinstance(event, TaskForked):
        return f"task forked from {event.origin} at {event.origin_seq}", "default"
    if isinstance(event, Planned):
        against = "".join(f"; refused {r.subject}: {r.advice}" for r in event.refused)
        return f"decided by {event.by}: {planned_text(event.choice)}, {event.reason}{against}", "dim"
    if isinstance(event, TaskStatusChanged):
        why = f": {event.reason}" if event.reason else ""
        return f"task {event.status}{why}", STATUS_COLOUR[event.status]
    if isinstance(event, TaskUpdated):
        changed = ", ".join(change_text(change) for change in event.changes)
        return f"state changed: {changed}" + (f" ({event.reason})" if event.reason else ""), "default"
    if isinstance(event, TaskLogged):
        where = f"{event.step}: " if event.step else ""
        fields = f" {canonical_json(event.fields)}" if event.fields else ""
        colour = {"warning": "yellow", "error": "red", "debug": "dim"}.get(event.level, "default")
        return f"{where}noted ({event.level}): {event.message}{fields}", colour
    if event.kind == "TaskResultSet":
        return f"result: {value_text(event.result)}", "default"
    assert event.kind == "CancelRequested"
    return f"cancellation asked for: {event.reason}", "yellow"


def _step_event_words(event: TaskEvent) -> tuple[str, str] | None:
    if isinstance(event, TaskStepStarted):
        again = f", try {event.attempt}" if event.attempt > 1 else ""
        return f"{event.step} started{again}", "cyan"
    if isinstance(event, TaskStepFinished):
        by = f" (found out by {event.by})" if event.by else ""
        took = f" in {seconds_text(event.duration_s)}" if event.duration_s else ""
        return f"{event.step} completed{took}{by}: {value_text(event.output)}", "green"
    if isinstance(event, TaskStepFailed):
        then = {
            "retry": f"tried again in {seconds_text(event.retry_at - event.at)}"
            if event.retry_at
            else "tried again",
            "fallback": "its fallback stands in",
            "give_up": "given up",
            "ask": "its operator has to say what became of it",
        }[event.then]
        return f"{event.step} failed, try {event.error.attempt}: {error_text(event.error)} → {then}", "red"
    if isinstance(event, TaskStepReset):
        return f"{event.step} may be tried again{f': {event.reason}' if event.reason else ''}", "yellow"
    return None


def _undo_event_words(event: TaskEvent) -> tuple[str, str] | None:
    if isinstance(event, CompensationStarted):
        where = f"{event.step}: " if event.step else ""
        return f"the task can't succeed, what it did is undone ({where}{error_text(event.error)})", "red"
    if isinstance(event, UndoStarted):
        again = f", try {event.attempt}" if event.attempt > 1 else ""
        return f"undoing {event.step}{again}", "blue"
    if isinstance(event, UndoFinished):
        return f"{event.step} undone", "blue"
    if isinstance(event, UndoFailed):
        then = "tried again" if event.then == "retry" else "given up"
        return f"{event.step} could not be undone: {error_text(event.error)} → {then}", "red"
    return None


def planned_text(action: PlannedAction) -> str:
    """What a planner decided, in few words."""
    if action.do == "run":
        return f"run {action.step}"
    return f"{action.do}: {action.reason}" if action.reason else action.do


# --- differences --------------------------------------------------------------------------------------------------


def change_text(change: Change) -> str:
    """A difference in one line."""
    path = ".".join(change.path)
    before, after = (_changed_text(change.path[-1], value, 80) for value in (change.before, change.after))
    return {
        "add": f"{path} = {after}",
        "remove": f"{path} removed",
        "replace": f"{path}: {before} → {after}",
    }[change.op]


def changes_view(changes: Sequence[Change]) -> RenderableType:
    """Differences, those of a step or of the user's state together."""
    if not changes:
        return Text("no difference")
    rows = Table.grid(padding=(0, 2))
    rows.add_column(no_wrap=True)
    rows.add_column(overflow="fold")
    heading = ""
    for change in changes:
        *above, last = change.path
        if above and heading != (heading := " ".join(above).replace("steps ", "step ", 1)):
            rows.add_row(Text(heading, "bold"), "")
        before, after = (_changed_text(last, value, 300) for value in (change.before, change.after))
        words = Text.assemble((before, "red"), " → ", (after, "green"))
        words = Text(f"+ {after}", "green") if change.op == "add" else words
        words = Text(f"- {before}", "red") if change.op == "remove" else words
        rows.add_row(Text(f"  {last}" if above else last), words)
    return rows


def _changed_text(name: str, value: JsonValue, limit: int) -> str:
    if name in ("output", "result") and isinstance(value, dict):
        return value_text(Value.model_validate(value), limit)
    if name.endswith("error") and isinstance(value, dict):
        return error_text(StepError.model_validate(value))
    if name.endswith("_at") and isinstance(value, int | float) and value:
        return clock_text(value, day=True)
    return one_line(canonical_json(value), limit)


# --- reasons ------------------------------------------------------------------------------------------------------


def decision_tree(decision: Decision) -> Tree:
    """Why something was done, and what that rested on, decision by decision."""
    tree = Tree(_decision_label(decision), guide_style="dim")
    seen = {decision.seq}
    _reasons(tree, decision)
    if decision.failures:
        below = tree.add(Text("what had failed by then", "dim"))
        for failure in decision.failures:
            below.add(Text(one_line(failure, 300), "red"))
    _rests_on(tree, decision, seen)
    return tree


def _decision_label(decision: Decision) -> Text:
    planned = decision.planned
    return Text.assemble(
        (planned_text(planned.choice), "bold"),
        f", {one_line(planned.reason, 300)}",
        (f"  ({planned.by}, {clock_text(planned.at)}, event {decision.seq})", "dim"),
    )


def _reasons(tree: Tree, decision: Decision) -> None:
    planned = decision.planned
    for action in planned.alternatives:
        tree.add(Text.assemble(("also considered ", "dim"), planned_text(action)))
    for refused in planned.refused:
        text = f"{refused.subject} ({refused.rule}): {refused.advice}"
        tree.add(Text.assemble(("refused ", "dim"), (text, "yellow")))
    for name, value in decision.inputs.items():
        shown = (
            value_text(value, 120) if value.digest else f"{value.size_bytes:,} bytes, {value_text(value, 80)}"
        )
        tree.add(Text.assemble(("given ", "dim"), (name, "cyan"), f" = {shown}"))


def _rests_on(tree: Tree, decision: Decision, seen: set[int]) -> None:
    for below in decision.rests_on:
        if below.seq in seen:
            tree.add(Text.assemble((planned_text(below.planned.choice), "bold"), ("  (above)", "dim")))
            continue
        seen.add(below.seq)
        branch = tree.add(_decision_label(below))
        _reasons(branch, below)
        _rests_on(branch, below, seen)


# --- replay and verification --------------------------------------------------------------------------------------


def frames_view(frames: Sequence[Frame]) -> RenderableType:
    """Every event of a replay, and what would be decided otherwise now."""
    lines: list[RenderableType] = []
    for frame in frames:
        lines.append(event_line(frame.event))
        if frame.divergence:
            lines.append(Text(f"      ≠ {frame.divergence}", "bold red"))
    return Group(*lines)


def faults_view(faults: Iterable[Fault]) -> RenderableType:
    """What verification found, one line each."""
    return Group(*(Text.assemble((f.subject, "bold red"), f" {one_line(f.problem, 400)}") for f in faults))


# --- time ---------------------------------------------------------------------------------------------------------

Kind = Literal["completed", "failed", "running", "undone", "undo failed", "undoing"]


@dataclass(frozen=True)
class Bar:
    """A stretch of time in which a step was tried, or undone."""

    kind: Kind
    start: float
    """Seconds since the epoch."""
    end: float


_BAR_LOOK: dict[Kind, tuple[str, str, str]] = {
    # body, end, colour
    "completed": ("█", "█", "green"),
    "failed": ("▓", "×", "red"),
    "running": ("▒", "▒", "cyan"),
    "undone": ("░", "░", "blue"),
    "undoing": ("░", "░", "cyan"),
    "undo failed": ("░", "×", "red"),
}
_LEGEND = (
    ("█", "green", "completed"),
    ("▓×", "red", "failed try"),
    ("▒", "cyan", "running"),
    ("·", "dim", "waiting"),
    ("░", "blue", "undone"),
)


@dataclass(frozen=True)
class Lane:
    """One row of a Gantt chart."""

    label: str
    depth: int
    bars: tuple[Bar, ...]
    since: float
    """When its task began."""
    waits: bool
    """Whether it still waited at the end."""
    note: Text


def lanes_of(family: Family, now: float, depth: int = 0) -> list[Lane]:
    """The rows of a task by start, those of sub-tasks under their step."""
    state, steps = family.state, Steps(family.state)
    bars = bars_of(family, now)
    lanes: list[Lane] = []
    for name in sorted(state.steps, key=lambda n: bars[n][0].start if bars[n] else float("inf")):
        waits = state.steps[name].status == "pending"
        note = _lane_note(steps, name, now, held=bool(family.held_by))
        lanes.append(Lane(name, depth, tuple(bars[name]), state.created_at, waits, note))
        for child in family.children.get(name, ()):
            if len(family.children[name]) > 1:
                begun = child.state.created_at
                lanes.append(
                    Lane(child.state.id, depth + 1, (), begun, False, status_text(child.state.status))
                )
            lanes += lanes_of(child, now, depth + 1)
    return lanes


def _lane_note(steps: Steps, name: StepName, now: float, *, held: bool) -> Text:
    """The end of a row, in words, so that it reads without colours."""
    step, seen = steps.state.steps[name], steps.look(name)
    tries = f", {step.attempt} tries" if step.attempt > 1 else ""
    if seen.word == "blocked":
        return Text(f"blocked by {', '.join(steps.blocked[name])}", seen.colour)
    if steps.broke_the_task(name):
        error = step.undo_error if seen.word == "not undone" else step.error
        return Text(f"{seen.word}{tries}: {error.kind if error else ''}", seen.colour)
    if seen.word == "failed":
        stood_in = f" → {steps.specs[name].fallback}" if step.handed_over else " (optional)"
        return Text(f"failed{stood_in}", seen.colour)
    if seen.word == "running" and not held:
        return Text("no worker", "yellow")
    took = _time_of(step, now) if seen.word in ("completed", "running") else ""
    return Text(f"{took}{tries}" if took else f"{seen.word}{tries}", seen.colour if not took else "")


def bars_of(family: Family, now: float) -> dict[StepName, list[Bar]]:
    """When each step was tried and undone, from the log; from the state alone where the log is gone."""
    state = family.state
    bars: dict[StepName, list[Bar]] = {name: [] for name in state.steps}
    if family.events and isinstance(family.events[0], TaskCreated | TaskForked):
        begun: dict[tuple[str, StepName], float] = {}
        for event in family.events:
            _follow(event, bars, begun)
        last = now if family.held_by else state.updated_at
        for (what, name), start in begun.items():
            bars[name].append(Bar("running" if what == "run" else "undoing", start, max(last, start)))
        return bars
    for name, step in state.steps.items():
        if step.started_at and step.status in ("completed", "failed"):
            kind: Kind = "completed" if step.status == "completed" else "failed"
            bars[name].append(Bar(kind, step.started_at, max(step.finished_at, step.started_at)))
    return bars


def _follow(
    event: TaskEvent, bars: dict[StepName, list[Bar]], begun: dict[tuple[str, StepName], float]
) -> None:
    if isinstance(event, TaskStepStarted):
        begun["run", event.step] = event.at
    elif isinstance(event, UndoStarted):
        begun["undo", event.step] = event.at
    elif isinstance(event, TaskStepFinished | TaskStepFailed):
        kind: Kind = "completed" if isinstance(event, TaskStepFinished) else "failed"
        start = begun.pop(("run", event.step), event.at)
        bars[event.step].append(Bar(kind, start, max(event.at, start)))
    elif isinstance(event, UndoFinished | UndoFailed):
        kind = "undone" if isinstance(event, UndoFinished) else "undo failed"
        start = begun.pop(("undo", event.step), event.at)
        bars[event.step].append(Bar(kind, start, max(event.at, start)))


class Gantt:
    """A chart of when each step ran, as wide as the terminal."""

    def __init__(self, family: Family, now: float) -> None:
        self._family = family
        self.lanes = lanes_of(family, now)
        state = family.state
        times = [t for lane in self.lanes for bar in lane.bars for t in (bar.start, bar.end)]
        self.start = min([state.created_at, *times])
        goes_on = not state.finished and (family.held_by or not times)
        self.end = max([now if goes_on else self.start, *times])

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = options.max_width
        n_label = min(max((len(lane.label) + 2 * lane.depth for lane in self.lanes), default=4), width // 4)
        n_note = min(max((len(lane.note) for lane in self.lanes), default=0), max(width * 3 // 10, 12))
        n_bars = max(width - n_label - n_note - 5, 10)
        span = max(self.end - self.start, 0.001)
        yield title_line(self._family)
        yield Text(f"from {clock_text(self.start, day=True)}, {seconds_text(span)} in all", "dim")
        yield ""
        ticks = _ticks(span, n_bars)
        yield Text.assemble(" " * (n_label + 2), (_axis_labels(ticks, n_bars), "dim"))
        yield Text.assemble(" " * (n_label + 1), (f"┌{_axis_line(ticks, n_bars)}┐", "dim"))
        for lane in self.lanes:
            label = Text("  " * lane.depth + lane.label)
            label.truncate(n_label, overflow="ellipsis", pad=True)
            note = lane.note.copy()
            note.truncate(n_note, overflow="ellipsis")
            yield Text.assemble(label, (" │", "dim"), self._row(lane, n_bars, span), ("│ ", "dim"), note)
        yield Text.assemble(" " * (n_label + 1), (f"└{'─' * n_bars}┘", "dim"))
        legend = Text(" " * (n_label + 2), no_wrap=True, overflow="ellipsis")
        for mark, colour, meaning in _LEGEND:
            legend.append(mark, colour).append(f" {meaning}  ", "dim")
        legend.rstrip()
        yield legend

    def _row(self, lane: Lane, n_bars: int, span: float) -> Text:
        cells: list[tuple[str, str]] = [(" ", "")] * n_bars
        for start, end in _waits(lane, self.end):
            for cell in range(self._cell(start, n_bars, span), self._cell(end, n_bars, span)):
                cells[cell] = ("·", "dim")
        free = 0
        for place, bar in enumerate(lane.bars):
            # Each has a cell at least, in order, and leaves one for those that follow.
            last = max(n_bars - (len(lane.bars) - place), 0)
            first = min(max(self._cell(bar.start, n_bars, span), free), last)
            free = min(max(self._cell(bar.end, n_bars, span), first + 1), last + 1)
            body, end_mark, colour = _BAR_LOOK[bar.kind]
            cells[first:free] = [(body, colour)] * (free - first - 1) + [(end_mark, colour)]
        return Text.assemble(*cells)

    def _cell(self, at: float, n_bars: int, span: float) -> int:
        return min(max(int((at - self.start) / span * n_bars), 0), n_bars)


def _waits(lane: Lane, end: float) -> Iterator[tuple[float, float]]:
    """When a step waited: before its first try and between tries, not between its end and its undoing."""
    since, waits = lane.since, True
    for bar in lane.bars:
        if waits:
            yield since, bar.start
        since, waits = bar.end, bar.kind != "completed"
    if lane.waits:
        yield since, end


_NICE = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14_400, 21_600, 43_200, 86_400)


def _ticks(span: float, n_cells: int) -> list[tuple[int, str]]:
    """Cells and labels of round times, eight cells apart at least."""
    most = max(n_cells // 8, 1)
    unit = next((u for u in _units() if span / u <= most), span)
    times = (i * unit for i in range(int(span / unit) + 1))
    cells = ((int(at / span * n_cells + 1e-9), at) for at in times)
    return [(cell, _tick_text(at)) for cell, at in cells if cell < n_cells]


def _units() -> Iterator[float]:
    yield from (n / 1000 for n in (1, 2, 5, 10, 20, 50, 100, 200, 500))
    yield from _NICE
    for days in range(2, 100_000):
        yield 86_400.0 * days


def _tick_text(seconds: float) -> str:
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "m"), (1, "s")):
        if seconds >= size:
            return f"{seconds / size:g}{unit}" if seconds % size == 0 or unit == "s" else _mixed(seconds)
    return f"{seconds:g}s" if seconds >= 0.1 else f"{seconds * 1000:g}ms" if seconds else "0"


def _mixed(seconds: float) -> str:
    hours, rest = divmod(round(seconds), 3600)
    return f"{hours}h{rest // 60:02}m" if hours else f"{rest // 60}m{rest % 60:02}s"


def _axis_labels(ticks: Sequence[tuple[int, str]], n_cells: int) -> str:
    line = ""
    for cell, label in ticks:
        if cell >= len(line) and cell + len(label) <= n_cells:
            line = line.ljust(cell) + label + " "
    return line.rstrip()


def _axis_line(ticks: Sequence[tuple[int, str]], n_cells: int) -> str:
    marks = {cell for cell, _ in ticks}
    return "".join("┬" if cell in marks else "─" for cell in range(n_cells))
