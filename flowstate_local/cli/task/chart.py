"""The Gantt chart of a task, in characters that read without colour."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from flowstate_local.cli.task.state_view import _time_of, title_line
from flowstate_local.cli.task.words import Family, Steps, clock_text, seconds_text, status_text
from flowstate_local.task_events import (
    StepName,
    TaskCreated,
    TaskEvent,
    TaskForked,
    TaskStepFailed,
    TaskStepFinished,
    TaskStepStarted,
    UndoFailed,
    UndoFinished,
    UndoStarted,
)

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
