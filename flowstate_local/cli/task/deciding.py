"""`flowstate task settle | pause | cancel | archive`."""

from typing import Annotated

import typer

from flowstate_local.cli.report import write_json
from flowstate_local.cli.roots import (
    EngineChoice,
    Json,
    Space,
    StorePath,
    Tools,
    toolbox_of,
)
from flowstate_local.cli.task.opened import check_tools, held_by, logged, opened_tasks, tools_in
from flowstate_local.cli.task.options import Log, TaskArgument, app
from flowstate_local.cli.task.running import report_marked
from flowstate_local.cli.task.typed import json_or_text, seconds_of
from flowstate_local.cli.task.worker import HowTo, Worker
from flowstate_local.errors import UsageError
from flowstate_local.tasks import retention
from flowstate_local.tasks.runner import Runner
from flowstate_local.tools import Toolbox


@app.command(
    "settle",
    epilog="Example: `flowstate task settle trip-1 pay '{\"receipt\": 17}'`, then `flowstate task resume trip-1 ...`",
)
def settle(
    task: TaskArgument,
    step: Annotated[str, typer.Argument(metavar="STEP", help="The step whose outcome is unknown.")],
    output: Annotated[
        str, typer.Argument(metavar="OUTPUT", help="Its output; JSON if it parses, else text.")
    ],
    space: Space = "default",
    store: StorePath = None,
    as_json: Json = False,
) -> None:
    """Say that a step took effect, and what its output is: for one whose worker died in the midst of it."""
    with opened_tasks(store, space, as_json=as_json, may="change") as manager:
        state = Runner(manager, Toolbox([])).settle(task, step, json_or_text(output))
        go_on = f"go on: {HowTo(task, space, store, None).command('resume')} --tools ..."
        report_marked(manager, state, as_json=as_json, words=go_on)


@app.command("pause", epilog="Example: `flowstate task pause trip-1 --reason 'ask Ana first'`")
def pause(
    task: TaskArgument,
    reason: Annotated[str, typer.Option("--reason", help="For the log.")] = "paused by its operator",
    space: Space = "default",
    store: StorePath = None,
    as_json: Json = False,
) -> None:
    """Let nothing more start; steps under way end first. `flowstate task resume` goes on."""
    with opened_tasks(store, space, as_json=as_json, may="change") as manager:
        report_marked(manager, manager.pause(task, reason), as_json=as_json)


@app.command(
    "cancel",
    epilog="Examples: `flowstate task cancel trip-1` · `flowstate task cancel trip-1 --tools mytools:toolbox`\n\n"
    "Exit codes: 0 asked for or done, 1 something could not be undone, 2 usage, 4 store.",
)
def cancel(
    task: TaskArgument,
    tools: Tools = None,
    reason: Annotated[str, typer.Option("--reason", help="For the log.")] = "cancelled by its operator",
    space: Space = "default",
    log: Log = None,
    store: StorePath = None,
    as_json: Json = False,
) -> None:
    """End a task: stop it and undo what it did. Its worker does that; if it has none, this does, given the tools."""
    with opened_tasks(store, space, as_json=as_json, may="change") as manager, logged(log) as listener:
        toolbox = toolbox_of(tools)
        state = manager.get(task)
        by_us = tools is not None or not tools_in(state.workflow)
        if by_us:
            check_tools(task, state.workflow, toolbox)
        if not state.cancelled or state.finished:
            state = manager.cancel(task, reason)
        how_to = HowTo(task, space, store, tools)
        holder = held_by(manager, state.id)
        if state.finished or holder or not by_us:
            winds_up = f"{holder} winds it up" if holder else ""
            nobody = f"nobody works on it; to wind it up: {how_to.command('cancel')} --tools ..."
            report_marked(manager, state, as_json=as_json, words="" if state.finished else winds_up or nobody)
            return
        worker = Worker(manager, toolbox, EngineChoice(), as_json, listener)
        ended = worker.carry_out(lambda: state, state.workflow, wind_up=True)
        worker.conclude(ended, how_to, expected="failed")


@app.command(
    "archive",
    epilog="Examples: `flowstate task archive trip-1` · "
    "`flowstate task archive --older-than 30d --keep-last 100 --failed-too`",
)
def archive(
    task: Annotated[str | None, typer.Argument(metavar="[ID]", help="A task that has ended.")] = None,
    older_than: Annotated[
        str | None,
        typer.Option("--older-than", metavar="AGE", help="All that ended so long ago: 12h, 30d, 8w."),
    ] = None,
    keep_last: Annotated[
        int, typer.Option("--keep-last", min=0, help="Keep so many of the newest whole.")
    ] = 0,
    failed_too: Annotated[bool, typer.Option("--failed-too", help="Those that failed, too.")] = False,
    space: Space = "default",
    store: StorePath = None,
    as_json: Json = False,
) -> None:
    """Give up the log of tasks that have ended; their last state, result and outputs stay."""
    with opened_tasks(store, space, as_json=as_json, may="change") as manager:
        if (task is None) == (older_than is None):
            raise UsageError("give a task, or --older-than", hint="See `flowstate task archive --help`.")
        if task is not None:
            archived = [retention.archive(manager, task).id]
        else:
            policy = retention.Retention(seconds_of(older_than or ""), keep_last, failed_too)
            archived = retention.sweep(manager, policy)
        if as_json:
            write_json({"archived": archived})
            return
        for one in archived:
            typer.echo(one)
        typer.echo(f"{len(archived)} task{'s' * (len(archived) != 1)} archived", err=True)
