"""`flowstate task ls | show | log | gantt | why | diff | replay | verify`."""

import asyncio
from collections import deque
from dataclasses import asdict
from typing import Annotated, Any, get_args

import typer
from rich.console import Console

from flowstate_local.cli.report import write_json
from flowstate_local.cli.roots import (
    Json,
    Space,
    StorePath,
)
from flowstate_local.cli.task.chart import Gantt
from flowstate_local.cli.task.log_view import (
    changes_view,
    decision_tree,
    event_line,
    faults_view,
    frames_view,
)
from flowstate_local.cli.task.opened import family_of, opened_tasks
from flowstate_local.cli.task.options import At, TaskArgument, app
from flowstate_local.cli.task.state_view import task_view, tasks_table
from flowstate_local.cli.task.typed import moment_of, version_of
from flowstate_local.cli.task.words import Family
from flowstate_local.errors import UsageError
from flowstate_local.stores.base import check_task_id
from flowstate_local.task_events import (
    TASK_EVENT,
    TaskStatus,
)
from flowstate_local.tasks import graph, history
from flowstate_local.tasks.verification import verify as faults_of


@app.command(
    "ls",
    epilog="Examples: `flowstate task ls --status failed --since 2d` · `flowstate task ls --owner ana --json`",
)
def ls(
    owner: Annotated[str | None, typer.Option("--owner", help="Only those of this owner.")] = None,
    status: Annotated[
        str | None, typer.Option("--status", help="pending, running, paused, completed or failed.")
    ] = None,
    step: Annotated[str | None, typer.Option("--step", help="Only those that are at this step.")] = None,
    since: Annotated[
        str | None, typer.Option("--since", metavar="WHEN", help="Created since: an age (2h, 30d) or a date.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Only the newest.")] = 50,
    space: Space = "default",
    store: StorePath = None,
    as_json: Json = False,
) -> None:
    """List the tasks of the space, the newest first."""
    with opened_tasks(store, space, as_json=as_json) as manager:
        if status is not None and status not in get_args(TaskStatus):
            raise UsageError(f"unknown status {status!r}", hint=f"Use {', '.join(get_args(TaskStatus))}.")
        now = manager.clock()
        created_from = moment_of(since, now) if since else None
        found = manager.tasks(owner=owner, status=status, current_step=step, created_from=created_from)
        records = list(reversed(deque(found, maxlen=limit)))
        if as_json:
            write_json([record.model_dump(mode="json") for record in records])
        elif records:
            console = Console(highlight=False)
            console.print(tasks_table(records, now, console.width))
        else:
            typer.echo("no tasks", err=True)


@app.command(
    "show", epilog="Examples: `flowstate task show trip-1` · `flowstate task show trip-1 --at 14 --json`"
)
def show(
    task: TaskArgument,
    at: At = None,
    space: Space = "default",
    store: StorePath = None,
    as_json: Json = False,
) -> None:
    """Show where a task stands: its steps, what blocks what, errors, outputs; with --at, as it was then."""
    with opened_tasks(store, space, as_json=as_json) as manager:
        family = family_of(manager, task) if at is None else Family(manager.at(task, at), past=True)
        state = family.state
        if as_json:
            write_json(
                {
                    "task": state.model_dump(mode="json"),
                    "blocked": graph.blocked(state),
                    "held_by": family.held_by,
                    "sub_tasks": {
                        name: [child.state.id for child in children]
                        for name, children in family.children.items()
                        if children
                    },
                }
            )
            return
        # What was under way then is timed to then.
        now = manager.clock() if at is None else state.updated_at
        Console(highlight=False).print(task_view(family, now))


@app.command(
    "log", epilog="Examples: `flowstate task log trip-1` · `flowstate task log trip-1 --after 20 --json`"
)
def log_of(
    task: TaskArgument,
    after: Annotated[int, typer.Option("--after", min=0, help="Only events after this one.")] = 0,
    space: Space = "default",
    store: StorePath = None,
    as_json: Annotated[bool, typer.Option("--json", help="Write one JSON line per event.")] = False,
) -> None:
    """Show the events of a task, one per line, with the numbers that --at takes."""
    with opened_tasks(store, space, as_json=as_json) as manager:
        console = Console(highlight=False)
        events = manager.events(task, after=after)
        floor = manager.store.task_head(space, check_task_id(task)).floor
        if floor > after and not as_json:
            typer.echo(f"events up to {floor} were archived", err=True)
        for event in events:
            if as_json:
                write_json(TASK_EVENT.dump_python(event, mode="json"))
                continue
            line = event_line(event)
            if console.is_terminal:
                line.truncate(console.width, overflow="ellipsis")
            console.print(line, soft_wrap=True)


@app.command("gantt", epilog="Example: `flowstate task gantt trip-1`")
def gantt(
    task: TaskArgument, space: Space = "default", store: StorePath = None, as_json: Json = False
) -> None:
    """Draw when each step ran, waited, failed and was undone, sub-tasks included."""
    with opened_tasks(store, space, as_json=as_json) as manager:
        chart = Gantt(family_of(manager, task, with_events=True), manager.clock())
        if as_json:
            lanes = [
                {
                    "step": lane.label,
                    "depth": lane.depth,
                    "note": lane.note.plain,
                    "bars": [asdict(bar) for bar in lane.bars],
                }
                for lane in chart.lanes
            ]
            write_json({"task": task, "start": chart.start, "end": chart.end, "rows": lanes})
        else:
            Console(highlight=False).print(chart)


@app.command(
    "why", epilog="Examples: `flowstate task why trip-1 --step pay` · `flowstate task why trip-1 --at 14`"
)
def why(
    task: TaskArgument,
    step: Annotated[str | None, typer.Option("--step", help="Why this step was last run.")] = None,
    at: At = None,
    space: Space = "default",
    store: StorePath = None,
    as_json: Json = False,
) -> None:
    """Tell why a step was run, or why the last decision was taken, and what that rested on."""
    with opened_tasks(store, space, as_json=as_json) as manager:
        decision = history.why(manager, task, step=step, seq=at)
        if as_json:
            write_json(_flat(decision))
        else:
            Console(highlight=False).print(decision_tree(decision))


def _flat(decision: history.Decision) -> list[dict[str, Any]]:
    """The decision and all it rests on, each once; what it rests on is named by the numbers of the events."""
    found: dict[int, dict[str, Any]] = {}
    queue = [decision]
    for one in queue:
        if one.seq in found:
            continue
        found[one.seq] = {
            **one.planned.model_dump(mode="json"),
            "inputs": {name: value.model_dump(mode="json") for name, value in one.inputs.items()},
            "failures": one.failures,
            "rests_on": [below.seq for below in one.rests_on],
        }
        queue += one.rests_on
    return list(found.values())


@app.command(
    "diff", epilog="Examples: `flowstate task diff trip-1 10 20` · `flowstate task diff trip-1 trip-1b`"
)
def diff(
    task: TaskArgument,
    first: Annotated[str, typer.Argument(metavar="A|OTHER", help="A version; or, alone, another task.")],
    last: Annotated[str | None, typer.Argument(metavar="[B]", help="Another version.")] = None,
    space: Space = "default",
    store: StorePath = None,
    as_json: Json = False,
) -> None:
    """Show what differs between two versions of a task, or between two tasks as they stand."""
    with opened_tasks(store, space, as_json=as_json) as manager:
        if last is None:
            changes = history.compare(manager.get(task), manager.get(first))
        else:
            changes = history.diff(manager, task, version_of(first), version_of(last))
        if as_json:
            write_json([change.model_dump(mode="json") for change in changes])
        else:
            Console(highlight=False).print(changes_view(changes))


@app.command(
    "replay",
    epilog="Exit codes: 0 the same, 1 something would be decided otherwise. Example: `flowstate task replay trip-1`",
)
def replay(
    task: TaskArgument, space: Space = "default", store: StorePath = None, as_json: Json = False
) -> None:
    """Go through a recorded run again, without tools and without a model, and compare what this release decides."""
    with opened_tasks(store, space, as_json=as_json) as manager:
        frames = asyncio.run(history.replay(manager, task))
        n_divergences = sum(bool(frame.divergence) for frame in frames)
        if as_json:
            write_json(
                [
                    {
                        "seq": f.event.seq,
                        "kind": f.event.kind,
                        "status": f.state.status,
                        "divergence": f.divergence,
                    }
                    for f in frames
                ]
            )
        else:
            Console(highlight=False).print(frames_view(frames), soft_wrap=True)
            typer.echo(f"{len(frames)} events, {n_divergences} divergence{'s' * (n_divergences != 1)}")
        if n_divergences:
            raise typer.Exit(1)


@app.command(
    "verify", epilog="Exit codes: 0 whole, 1 faults found. Example: `flowstate task verify --space travel`"
)
def verify(space: Space = "default", store: StorePath = None, as_json: Json = False) -> None:
    """Derive from each log what snapshots, lists and values should say, and list where they don't."""
    with opened_tasks(store, space, as_json=as_json) as manager:
        n_tasks = sum(1 for _ in manager.tasks())
        faults = faults_of(manager)
        if as_json:
            write_json({"tasks": n_tasks, "faults": [asdict(fault) for fault in faults]})
        else:
            Console(highlight=False).print(faults_view(faults), soft_wrap=True, end="")
            counted = f"{n_tasks} task{'s' * (n_tasks != 1)} checked"
            typer.echo(f"{counted}, {len(faults)} fault{'s' * (len(faults) != 1)}")
        if faults:
            raise typer.Exit(1)
