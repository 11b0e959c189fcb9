"""`flowstate task run | work | resume | retry | fork`."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from rich.console import Console

from flowstate_local.cli.report import exit_code, reported, write_json
from flowstate_local.cli.roots import (
    DEFAULT_MODEL,
    EngineChoice,
    EngineOption,
    Json,
    Model,
    ProfileOption,
    Space,
    StorePath,
    Tools,
    Url,
    Window,
    toolbox_of,
)
from flowstate_local.cli.task.opened import check_tools, held_by, logged, opened_tasks, task_json
from flowstate_local.cli.task.options import ENDS, INTERRUPTED, Log, NoRun, TaskArgument, app
from flowstate_local.cli.task.state_view import title_line
from flowstate_local.cli.task.typed import params_of
from flowstate_local.cli.task.words import Family
from flowstate_local.cli.task.worker import HowTo, Worker
from flowstate_local.errors import UsageError
from flowstate_local.stores.base import check_task_id
from flowstate_local.task_events import FINISHED, TaskStatus
from flowstate_local.task_state import TaskState
from flowstate_local.tasks import history
from flowstate_local.tasks.manager import TaskManager
from flowstate_local.tasks.runner import Runner
from flowstate_local.tasks.workflow import load


@app.command(
    "run",
    epilog="Examples: `flowstate task run trip.yaml --tools mytools:toolbox --param city=Lisbon --param nights=2` · "
    "`flowstate task run trip.yaml --tools mytools:toolbox --params-file trip.json --id trip-1 --json`\n\n"
    + ENDS,
)
def run(
    workflow: Annotated[
        Path, typer.Argument(metavar="WORKFLOW.yaml", help="The steps and how they hang together.")
    ],
    tools: Tools = None,
    param: Annotated[
        list[str] | None,
        typer.Option(
            "--param", "-p", metavar="NAME=VALUE", help="A parameter; JSON if it parses, else text."
        ),
    ] = None,
    params_file: Annotated[
        Path | None, typer.Option("--params-file", help="JSON object of parameters; --param goes first.")
    ] = None,
    task_id: Annotated[
        str | None, typer.Option("--id", help="Its id. Default: the workflow's name and some letters.")
    ] = None,
    owner: Annotated[str, typer.Option("--owner", help="Whose task it is, for lists.")] = "",
    space: Space = "default",
    log: Log = None,
    model: Model = DEFAULT_MODEL,
    engine: EngineOption = "vllm",
    url: Url = None,
    profile: ProfileOption = "guidance",
    window: Window = 8_192,
    store: StorePath = None,
    as_json: Json = False,
) -> None:
    """Make a task of a workflow and work on it to its end. A model is started only if the workflow asks one."""
    with reported(as_json=as_json):
        # Before there's a store: a workflow with a mistake in it leaves nothing behind.
        toolbox = toolbox_of(tools)
        template = load(workflow, toolbox)
        given = template.bind(params_of(param or [], params_file, template))
        check_tools(f"of {workflow}", template.spec, toolbox)
    with opened_tasks(store, space, as_json=as_json, may="create") as manager, logged(log) as listener:
        if task_id is not None and manager.store.task_head(space, check_task_id(task_id)).seq:
            go_on = HowTo(task_id, space, store, tools).command("resume")
            raise UsageError(
                f"there is a task {task_id!r} already", hint=f"Go on with it: {go_on}; or give another --id."
            )
        choice = EngineChoice(engine, model, url, profile, window)
        worker = Worker(manager, toolbox, choice, as_json, listener)
        state = worker.carry_out(
            lambda: manager.create(template.spec, given, task=task_id, owner=owner), template.spec
        )
        worker.conclude(state, HowTo(state.id, space, store, tools))


@app.command(
    "work",
    epilog="Examples: `flowstate task work --tools mytools:toolbox` · "
    "`flowstate task work --tools mytools:toolbox --watch --log work.jsonl`\n\n"
    "Exit codes: 0 nothing is left to do, 1 a task failed, 130 interrupted; tasks that need other tools are left alone.",
)
def work(
    tools: Tools = None,
    watch: Annotated[bool, typer.Option("--watch", help="Wait for more tasks until stopped.")] = False,
    concurrency: Annotated[int, typer.Option("--concurrency", min=1, max=64, help="Tasks at once.")] = 8,
    space: Space = "default",
    log: Log = None,
    model: Model = DEFAULT_MODEL,
    engine: EngineOption = "vllm",
    url: Url = None,
    profile: ProfileOption = "guidance",
    window: Window = 8_192,
    store: StorePath = None,
    as_json: Json = False,
) -> None:
    """Take up every task of the space that can run: new ones, and those whose worker died."""
    with opened_tasks(store, space, as_json=as_json, may="change") as manager, logged(log) as listener:
        choice = EngineChoice(engine, model, url, profile, window)
        worker = Worker(manager, toolbox_of(tools), choice, as_json, listener, of_task=True)
        states, left = worker.serve(concurrency=concurrency, watch=watch)
        if as_json:
            write_json(
                {
                    "kind": "tasks",
                    "tasks": [task_json(manager, state) for state in states],
                    "left": {task: str(error) for task, error in left.items()},
                }
            )
        else:
            typer.echo(_counted(states, len(left)))
        if worker.interrupted and any(not state.finished and state.status != "paused" for state in states):
            typer.echo("go on: run the same command again", err=True)
            raise typer.Exit(INTERRUPTED)
        if worker.interrupted:
            raise typer.Exit(0 if watch else INTERRUPTED)
        if any(state.status == "failed" for state in states):
            raise typer.Exit(1)
        raise typer.Exit(exit_code(next(iter(left.values()))) if left else 0)


def _counted(states: Sequence[TaskState], n_left: int) -> str:
    counts = {status: n for status in get_args(TaskStatus) if (n := sum(s.status == status for s in states))}
    parts = [f"{n} {status}" for status, n in counts.items()] + ([f"{n_left} left alone"] if n_left else [])
    return ", ".join(parts) or "nothing to do"


@app.command(
    "resume",
    epilog="Example: `flowstate task resume trip-1 --tools mytools:toolbox`\n\n" + ENDS,
)
def resume(
    task: TaskArgument,
    tools: Tools = None,
    no_run: NoRun = False,
    space: Space = "default",
    log: Log = None,
    model: Model = DEFAULT_MODEL,
    engine: EngineOption = "vllm",
    url: Url = None,
    profile: ProfileOption = "guidance",
    window: Window = 8_192,
    store: StorePath = None,
    as_json: Json = False,
) -> None:
    """Go on with a task that is paused, or whose worker stopped or died."""
    with opened_tasks(store, space, as_json=as_json, may="change") as manager, logged(log) as listener:
        choice = EngineChoice(engine, model, url, profile, window)
        worker = Worker(manager, toolbox_of(tools), choice, as_json, listener, quiet=no_run)
        how_to = HowTo(task, space, store, tools)
        _go_on(worker, how_to, lambda runner: runner.resume(task), refused=FINISHED, no_run=no_run)


@app.command(
    "retry",
    epilog="Examples: `flowstate task retry trip-1 --tools mytools:toolbox` · "
    "`flowstate task retry trip-1 --step pay --no-run`\n\n" + ENDS,
)
def retry(
    task: TaskArgument,
    step: Annotated[
        str | None, typer.Option("--step", help="Only this step; otherwise all that failed or wait for you.")
    ] = None,
    tools: Tools = None,
    no_run: NoRun = False,
    space: Space = "default",
    log: Log = None,
    model: Model = DEFAULT_MODEL,
    engine: EngineOption = "vllm",
    url: Url = None,
    profile: ProfileOption = "guidance",
    window: Window = 8_192,
    store: StorePath = None,
    as_json: Json = False,
) -> None:
    """Let a failed task, or a step whose outcome is unknown, try again; what completed isn't done twice."""
    with opened_tasks(store, space, as_json=as_json, may="change") as manager, logged(log) as listener:
        choice = EngineChoice(engine, model, url, profile, window)
        worker = Worker(manager, toolbox_of(tools), choice, as_json, listener, quiet=no_run)
        how_to = HowTo(task, space, store, tools)
        _go_on(
            worker,
            how_to,
            lambda runner: runner.retry(task, step=step),
            refused=frozenset({"completed"}),
            no_run=no_run,
        )


def _go_on(
    worker: Worker,
    how_to: HowTo,
    mark: Callable[[Runner], TaskState],
    *,
    refused: frozenset[TaskStatus],
    no_run: bool,
) -> None:
    """Mark a task to go on, and work on it unless only that was asked for.

    Args:
        worker: has the tools.
        how_to: names the task.
        mark: marks it; refuses a task of one of the statuses in `refused`, whatever the tools.
        refused: those statuses.
        no_run: whether marking is all.
    """
    manager, task = worker.manager, how_to.task
    before = manager.get(task)
    if not (no_run or before.status in refused):
        check_tools(task, before.workflow, worker.toolbox)
    state = mark(Runner(manager, worker.toolbox))
    if no_run:
        report_marked(worker.manager, state, as_json=worker.as_json)
    else:
        worker.conclude(worker.carry_out(lambda: state, state.workflow), how_to)


def report_marked(manager: TaskManager[Any], state: TaskState, *, as_json: bool, words: str = "") -> None:
    """Print where a task stands that was changed and not run."""
    if as_json:
        write_json(task_json(manager, state))
        return
    family = Family(state, held_by(manager, state.id))
    Console(highlight=False).print(title_line(family), soft_wrap=True)
    if words:
        typer.echo(words, err=True)


@app.command(
    "fork",
    epilog="Example: `flowstate task fork trip-1 --at 14 --id trip-1b --run --tools mytools:toolbox`; "
    "`flowstate task log trip-1` shows the numbers.\n\n" + ENDS,
)
def fork(
    task: TaskArgument,
    at: Annotated[int, typer.Option("--at", min=1, help="Begin where it stood just after this event.")],
    new: Annotated[str | None, typer.Option("--id", help="Id of the new task.")] = None,
    run_it: Annotated[bool, typer.Option("--run", help="Work on it at once.")] = False,
    tools: Tools = None,
    space: Space = "default",
    log: Log = None,
    model: Model = DEFAULT_MODEL,
    engine: EngineOption = "vllm",
    url: Url = None,
    profile: ProfileOption = "guidance",
    window: Window = 8_192,
    store: StorePath = None,
    as_json: Json = False,
) -> None:
    """Make a new task that begins where another one stood. What had ended by then is not run again."""
    with opened_tasks(store, space, as_json=as_json, may="change") as manager, logged(log) as listener:
        toolbox = toolbox_of(tools)
        workflow = manager.get(task).workflow
        if new is not None and manager.store.task_head(space, check_task_id(new)).seq:
            raise UsageError(f"there is a task {new!r} already", hint="Give another --id.")
        if run_it:
            check_tools(task, workflow, toolbox)
        worker = Worker(
            manager, toolbox, EngineChoice(engine, model, url, profile, window), as_json, listener
        )
        if not run_it:
            state = history.fork(manager, task, at, new=new)
            how_to = HowTo(state.id, space, store, tools)
            report_marked(manager, state, as_json=as_json, words=f"run it: {how_to.command('resume')}")
            return
        state = worker.carry_out(lambda: history.fork(manager, task, at, new=new), workflow)
        worker.conclude(state, HowTo(state.id, space, store, tools))
