"""How tasks look as they stand: lists, heads, steps, the graph of needs."""

from collections.abc import Iterator, Sequence
from graphlib import TopologicalSorter

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from flowstate_local.cli.task.words import (
    STATUS_COLOUR,
    STATUS_MARK,
    Family,
    Steps,
    age_text,
    clock_text,
    error_text,
    one_line,
    seconds_text,
    status_text,
    value_text,
)
from flowstate_local.task_events import (
    StepName,
    TaskRecord,
)
from flowstate_local.task_state import StepState, TaskState
from flowstate_local.tools import canonical_json


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
