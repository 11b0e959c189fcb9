"""How the log of a task looks: events, differences, reasons, replays, faults."""

from collections.abc import Iterable, Sequence

from pydantic import JsonValue
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from flowstate_local.cli.task.words import (
    STATUS_COLOUR,
    clock_text,
    error_text,
    one_line,
    seconds_text,
    value_text,
)
from flowstate_local.stores.base import Fault
from flowstate_local.task_events import (
    Change,
    CompensationStarted,
    Planned,
    PlannedAction,
    StepError,
    TaskCreated,
    TaskEvent,
    TaskForked,
    TaskLogged,
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
from flowstate_local.tasks.history import Decision, Frame
from flowstate_local.tools import canonical_json


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
