"""`flowstate task`: durable tasks. Run them, look into them, decide about them."""

import asyncio
import base64
import json
import logging
import os
import re
import shlex
import signal
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from itertools import chain, islice
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import typer
from pydantic import JsonValue
from rich.console import Console
from rich.live import Live
from rich.text import Text

from flowstate_local import logs
from flowstate_local.cli import task_view as view
from flowstate_local.cli.report import exit_code, reported, show_error
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
    data_home,
    open_store,
    opened_engine,
    toolbox_of,
)
from flowstate_local.errors import FlowStateError, StoreBusy, UsageError
from flowstate_local.loop import Agent
from flowstate_local.stores.base import check_space_name, check_task_id
from flowstate_local.task_events import (
    TASK_EVENT,
    Planned,
    StepName,
    TaskCreated,
    TaskEvent,
    TaskId,
    TaskStatus,
    ToolAction,
    WorkflowSpec,
)
from flowstate_local.task_state import TaskState, record_of
from flowstate_local.tasks import graph, history, leases, retention
from flowstate_local.tasks.manager import TaskManager
from flowstate_local.tasks.planner import GraphPlanner
from flowstate_local.tasks.runner import Runner
from flowstate_local.tasks.verification import verify as faults_of
from flowstate_local.tasks.workflow import Template, load
from flowstate_local.tools import Toolbox

app = typer.Typer(
    name="task",
    help="Durable tasks: workflows that go on where they stood, whatever happened. Run them, look into them.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)

_ENDS = (
    "Exit codes: 0 completed, 1 failed, 2 usage, 3 model or engine, 4 store, 6 paused, 130 interrupted "
    "(`flowstate task resume` goes on)."
)
_EXIT: dict[TaskStatus, int] = {"failed": 1, "paused": 6}
_INTERRUPTED = 130
_GRACE_S = 10.0
"""Seconds that steps under way get to end after the first Ctrl-C."""
_POLL_S = 1.0

TaskArgument = Annotated[str, typer.Argument(metavar="ID", help="A task; `flowstate task ls` shows them.")]
Log = Annotated[
    str | None, typer.Option("--log", help="Append one JSON line per event to this file (- is stderr).")
]
At = Annotated[int | None, typer.Option("--at", min=1, help="As it was just after this event.")]
NoRun = Annotated[bool, typer.Option("--no-run", help="Only mark it; a worker goes on with it.")]


# --- what a command works on --------------------------------------------------------------------------------------


@contextmanager
def _tasks(
    path: Path | None, space: str, *, as_json: bool, may: Literal["read", "change", "create"] = "read"
) -> Iterator[TaskManager[Any]]:
    """The tasks of a space. Reading never changes the store, and only `create` makes one.

    Raises:
        UsageError: there's no store, or nothing of that space in it.
    """
    with reported(as_json=as_json):
        check_space_name(space)
        folder = path or data_home()
        if may != "create" and not folder.is_dir():
            raise UsageError(
                f"no store at {folder}", hint="`flowstate task run` makes one; --store names another."
            )
        store = open_store(folder, create=may == "create", readonly=may == "read")
        try:
            if may != "create" and space not in store.spaces():
                known = ", ".join(store.spaces()[:20]) or "none"
                raise UsageError(f"no space {space!r} in {folder}", hint=f"Spaces there: {known}.")
            yield TaskManager(store, space)
        finally:
            store.close()


@contextmanager
def _logged(path: str | None) -> Iterator[Callable[[Sequence[Any]], None] | None]:
    """The listener that writes to a log file; none without one. Raises UsageError."""
    if path is None:
        yield None
        return
    try:
        handler = logs.write_to(path)
    except OSError as error:
        raise UsageError(f"can't write the log {path}: {error.strerror}") from error
    try:
        yield logs.log_events
    finally:
        logging.getLogger().removeHandler(handler)
        handler.close()


def _held_by(manager: TaskManager[Any], task: TaskId) -> str:
    """Who works on a task; "" if nobody does."""
    lease = manager.store.lease(manager.space, task)
    if lease is None or not leases.alive(lease, manager.clock()):
        return ""
    return f"{lease.name or 'a worker'}, process {lease.pid}"


Parts = defaultdict[tuple[TaskId, StepName], list[TaskId]]
"""Task and step -> the sub-tasks of its tries."""


def _parts_since(manager: TaskManager[Any], created_from: float) -> Parts:
    parts: Parts = defaultdict(list)
    for record in manager.tasks(created_from=created_from):
        if record.parent is not None:
            parts[record.parent.task, record.parent.step].append(record.id)
    return parts


def _family(
    manager: TaskManager[Any], task: str, parts: Parts | None = None, *, with_events: bool = False
) -> view.Family:
    """A task with its sub-tasks; those not known are looked for."""
    top = manager.get(task)
    known = _parts_since(manager, top.created_at) if parts is None else parts

    def of(state: TaskState) -> view.Family:
        children = {name: [of(manager.get(child)) for child in known[state.id, name]] for name in state.steps}
        events = tuple(manager.events(state.id)) if with_events else ()
        return view.Family(state, _held_by(manager, state.id), events, children)

    return of(top)


def _needs_engine(workflow: WorkflowSpec) -> bool:
    """Does it ask a model anything, in a sub-task perhaps?"""
    return workflow.planner == "model" or any(
        step.action.kind == "agent" or (step.action.kind == "task" and _needs_engine(step.action.workflow))
        for step in workflow.steps
    )


def _tools_of(workflow: WorkflowSpec) -> set[str]:
    """Names of the tools it may call, in sub-tasks too."""
    names: set[str] = set()
    for step in workflow.steps:
        names |= {use.tool for use in (step.undo, step.probe) if use is not None}
        if isinstance(step.action, ToolAction):
            names.add(step.action.tool)
        elif step.action.kind == "task":
            names |= _tools_of(step.action.workflow)
    return names


def _check_tools(task: str, workflow: WorkflowSpec, toolbox: Toolbox) -> None:
    """Without its tool a step would fail for good, so the task isn't begun. Raises UsageError."""
    missing = sorted(_tools_of(workflow) - set(toolbox.names))
    if missing:
        raise UsageError(
            f"task {task} calls tools that --tools doesn't name: {', '.join(missing)}",
            hint="Give the module with all of its tools, as --tools module:attribute.",
        )


def _task_json(manager: TaskManager[Any], state: TaskState) -> dict[str, Any]:
    """A task as JSON output says it: its line in the lists, and its result."""
    result = manager.load(state.result)
    if isinstance(result, bytes):
        result = {"base64": base64.b64encode(result).decode()}
    record = record_of(state, manager.space).model_dump(mode="json")
    return {"kind": "task", **record, "reason": state.reason, "result": result}


def _json(value: object) -> None:
    typer.echo(json.dumps(value, ensure_ascii=False))


# --- running ------------------------------------------------------------------------------------------------------


@dataclass
class _Worker:
    """Runs tasks for one command: has an engine if one is needed, shows what becomes durable, stops when asked to."""

    manager: TaskManager[Any]
    toolbox: Toolbox
    choice: EngineChoice
    as_json: bool
    log: Callable[[Sequence[Any]], None] | None = None
    of_task: bool = False
    """Whether lines name their task."""
    quiet: bool = False
    """Whether events are only logged."""
    interrupted: bool = False
    """Whether somebody asked it to stop."""
    _console: Console = field(default_factory=lambda: Console(highlight=False))
    _stopped: asyncio.Event = field(default_factory=asyncio.Event)
    _stack: AsyncExitStack = field(default_factory=AsyncExitStack)
    _starting: asyncio.Lock = field(default_factory=asyncio.Lock)
    _runners: dict[str, Runner] = field(default_factory=dict)
    _printing: threading.Lock = field(default_factory=threading.Lock)
    _live: bool = False
    _parts: Parts = field(default_factory=lambda: defaultdict(list))

    def __post_init__(self) -> None:
        self.manager.listener = self._show

    def carry_out(
        self, begin: Callable[[], TaskState], workflow: WorkflowSpec, *, wind_up: bool = False
    ) -> TaskState:
        """Begin a task and work on it until it ends, pauses, or somebody stops it.

        Args:
            begin: makes the task or finds it; called once there is all that its workflow needs.
            workflow: of the task.
            wind_up: whether it's only to be ended, for which no model is asked.
        """
        begun: list[TaskState] = []

        async def work() -> TaskState:
            async with self._stack:
                runner = (
                    self._runner("wind up", planner=GraphPlanner())
                    if wind_up
                    else await self._runner_for(workflow)
                )
                begun.append(begin())
                with self._stoppable(), self._shown(begun[0].id):
                    return await runner.run(begun[0].id)

        try:
            return asyncio.run(work())
        except (KeyboardInterrupt, asyncio.CancelledError):
            if not begun:
                raise KeyboardInterrupt from None
            self.interrupted = True
            return self.manager.get(begun[0].id)

    def serve(self, *, concurrency: int, watch: bool) -> tuple[list[TaskState], dict[TaskId, FlowStateError]]:
        """Work on every task that can run, at most so many at once; the states they came to, and what was left alone.

        Args:
            concurrency: tasks at once.
            watch: whether to wait for more until somebody asks to stop.
        """
        ended: dict[TaskId, TaskState] = {}
        left: dict[TaskId, FlowStateError] = {}

        async def work() -> None:
            async with self._stack:
                with self._stoppable():
                    await self._take_up(ended, left, concurrency, watch)

        try:
            asyncio.run(work())
        except (KeyboardInterrupt, asyncio.CancelledError):
            self.interrupted = True
        return [self.manager.get(task) for task in ended], left

    async def _take_up(
        self,
        ended: dict[TaskId, TaskState],
        left: dict[TaskId, FlowStateError],
        concurrency: int,
        watch: bool,
    ) -> None:
        # Runner.drain takes every task; this leaves alone those whose tools or model it hasn't got.
        under_way: dict[asyncio.Task[None], TaskId] = {}
        stopped = asyncio.ensure_future(self._stopped.wait())
        try:
            while not self._stopped.is_set():
                taken = {*under_way.values(), *left}
                for task in islice(self._runnable(taken), concurrency - len(under_way)):
                    under_way[asyncio.ensure_future(self._take(task, ended, left))] = task
                if not under_way and not watch:
                    return
                await asyncio.wait(
                    {*under_way, stopped}, timeout=_POLL_S, return_when=asyncio.FIRST_COMPLETED
                )
                for done in [one for one in under_way if one.done()]:
                    del under_way[done]
                    done.result()
            await asyncio.gather(*under_way)
        finally:
            for late in (stopped, *under_way):
                late.cancel()
            await asyncio.gather(stopped, *under_way, return_exceptions=True)

    def _runnable(self, taken: set[TaskId]) -> Iterator[TaskId]:
        for record in chain(self.manager.tasks(status="running"), self.manager.tasks(status="pending")):
            own = record.parent is None and record.id not in taken
            if own and not _held_by(self.manager, record.id):
                yield record.id

    async def _take(
        self, task: TaskId, ended: dict[TaskId, TaskState], left: dict[TaskId, FlowStateError]
    ) -> None:
        try:
            workflow = self.manager.get(task).workflow
            _check_tools(task, workflow, self.toolbox)
            runner = await self._runner_for(workflow)
            ended[task] = self.manager.get(task)
            ended[task] = await runner.run(task)
        except StoreBusy:
            ended.pop(task, None)  # another worker was first
        except FlowStateError as error:
            ended.pop(task, None)
            left[task] = error
            if not self.as_json:
                show_error(error)

    async def _runner_for(self, workflow: WorkflowSpec) -> Runner:
        """A runner that has what a workflow needs; the engine is started for the first one that asks a model."""
        if not _needs_engine(workflow):
            return self._runner("plain")
        async with self._starting:
            if "model" not in self._runners:
                engine = await self._stack.enter_async_context(
                    opened_engine(self.choice, Console(stderr=True))
                )
                agent = Agent(engine, self.manager.store, self.toolbox, listener=self.log)
                self._runner("model", agent=agent)
        return self._runners["model"]

    def _runner(self, name: str, **options: Any) -> Runner:
        if name not in self._runners:
            runner = Runner(self.manager, self.toolbox, grace_s=_GRACE_S, concurrency=64, **options)
            self._runners[name] = runner
            if self._stopped.is_set():
                runner.stop()
        return self._runners[name]

    @contextmanager
    def _stoppable(self) -> Iterator[None]:
        """The first SIGINT or SIGTERM lets steps under way end, the second leaves them, the third ends the process."""
        loop, main = asyncio.get_running_loop(), asyncio.current_task()
        n_asked = 0

        def asked() -> None:
            nonlocal n_asked
            n_asked += 1
            self.interrupted = True
            if n_asked == 1:
                self._stopped.set()
                for runner in self._runners.values():
                    runner.stop()
                self._say(f"stopping: steps under way get {_GRACE_S:.0f} s to end (again: leave at once)")
            elif n_asked == 2 and main is not None:
                main.cancel()
            else:
                os._exit(_INTERRUPTED)

        signals = (signal.SIGINT, signal.SIGTERM)
        for one in signals:
            loop.add_signal_handler(one, asked)
        try:
            yield
        finally:
            for one in signals:
                loop.remove_signal_handler(one)

    @contextmanager
    def _shown(self, task: TaskId) -> Iterator[None]:
        """On a terminal, keep a table of the steps up to date; elsewhere `_show` prints lines."""
        if self.as_json or not self._console.is_terminal:
            yield
            return

        self._parts = _parts_since(self.manager, self.manager.get(task).created_at)

        def table() -> Any:
            return view.progress_view(_family(self.manager, task, self._parts), self.manager.clock())

        self._live = True
        try:
            with Live(get_renderable=table, console=self._console, refresh_per_second=4, transient=True):
                yield
        finally:
            self._live = False

    def _show(self, events: Sequence[TaskEvent]) -> None:
        """Tell what became durable. Called from whichever thread committed it."""
        with self._printing:
            for event in () if self.quiet else events:
                if isinstance(event, TaskCreated) and event.parent is not None:
                    self._parts[event.parent.task, event.parent.step].append(event.task)
                if self.as_json:
                    _json(TASK_EVENT.dump_python(event, mode="json"))
                elif not self._live and not isinstance(event, Planned):
                    self._console.print(view.event_line(event, of_task=self.of_task), soft_wrap=True)
        if self.log is not None:
            self.log(events)

    def _say(self, words: str) -> None:
        if self._live:
            self._console.print(f"[yellow]{words}[/]")
        else:
            typer.secho(words, fg="yellow", err=True)

    def conclude(self, state: TaskState, how_to: "_HowTo", *, expected: TaskStatus = "completed") -> None:
        """Print how the task stands now, and what may be done next; end with the exit code of that."""
        stopped = self.interrupted and not state.finished
        if self.as_json:
            _json(_task_json(self.manager, state))
        else:
            _print_end(self.manager, state, self._console)
            for line in [f"go on: {how_to.command('resume')}"] if stopped else how_to.next_lines(state):
                typer.secho(line, fg="yellow" if stopped else "bright_black", err=True)
        if stopped:
            raise typer.Exit(_INTERRUPTED)
        if state.status != expected or any(step.undo == "failed" for step in state.steps.values()):
            raise typer.Exit(_EXIT.get(state.status, 0))


def _print_end(manager: TaskManager[Any], state: TaskState, console: Console) -> None:
    family = _family(manager, state.id)
    if console.is_terminal:
        console.print(view.progress_view(family, manager.clock()))
    else:
        console.print(view.title_line(family), soft_wrap=True)
    if state.error is not None and state.status == "failed":
        console.print(Text(f"error   {view.error_text(state.error)}", "red"), soft_wrap=True)
    if state.status == "paused":
        console.print(Text(f"paused  {view.one_line(state.reason, 300)}", "yellow"), soft_wrap=True)
    if state.result is not None:
        console.print(Text(f"result  {view.value_text(state.result, 2_000)}"), soft_wrap=True)


@dataclass(frozen=True)
class _HowTo:
    """The commands that may come next, as they'd be typed."""

    task: str
    space: str
    store: Path | None
    tools: str | None

    def command(self, verb: str, *words: str, runs: bool = True) -> str:
        """`flowstate task VERB ID`, with the options of this command."""
        options = ["--space", self.space] if self.space != "default" else []
        options += ["--store", str(self.store)] if self.store else []
        options += ["--tools", self.tools] if self.tools and runs else []
        return shlex.join(["flowstate", "task", verb, self.task, *words, *options])

    def next_lines(self, state: TaskState) -> Iterator[str]:
        """What an operator may want to do about a task that stands there."""
        asks = [name for name, step in state.steps.items() if step.status == "paused"]
        if state.status == "paused" and asks:
            yield f"it took effect: {self.command('settle', asks[0], runs=False)} OUTPUT"
            yield f"it did not:     {self.command('retry', '--step', asks[0])}"
        elif state.status == "paused":
            yield f"go on: {self.command('resume')}"
        elif state.status == "failed":
            yield f"look into it: {self.command('why', runs=False)}"
            yield f"try again:    {self.command('retry')}"


# --- commands that run --------------------------------------------------------------------------------------------


@app.command(
    "run",
    epilog="Examples: `flowstate task run trip.yaml --tools mytools:toolbox --param city=Lisbon --param nights=2` · "
    "`flowstate task run trip.yaml --tools mytools:toolbox --params-file trip.json --id trip-1 --json`\n\n"
    + _ENDS,
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
        given = template.bind(_params(param or [], params_file, template))
        _check_tools(f"of {workflow}", template.spec, toolbox)
    with _tasks(store, space, as_json=as_json, may="create") as manager, _logged(log) as listener:
        if task_id is not None and manager.store.task_head(space, check_task_id(task_id)).seq:
            go_on = _HowTo(task_id, space, store, tools).command("resume")
            raise UsageError(
                f"there is a task {task_id!r} already", hint=f"Go on with it: {go_on}; or give another --id."
            )
        choice = EngineChoice(engine, model, url, profile, window)
        worker = _Worker(manager, toolbox, choice, as_json, listener)
        state = worker.carry_out(
            lambda: manager.create(template.spec, given, task=task_id, owner=owner), template.spec
        )
        worker.conclude(state, _HowTo(state.id, space, store, tools))


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
    with _tasks(store, space, as_json=as_json, may="change") as manager, _logged(log) as listener:
        choice = EngineChoice(engine, model, url, profile, window)
        worker = _Worker(manager, toolbox_of(tools), choice, as_json, listener, of_task=True)
        states, left = worker.serve(concurrency=concurrency, watch=watch)
        if as_json:
            _json(
                {
                    "kind": "tasks",
                    "tasks": [_task_json(manager, state) for state in states],
                    "left": {task: str(error) for task, error in left.items()},
                }
            )
        else:
            typer.echo(_counted(states, len(left)))
        if worker.interrupted and any(not state.finished and state.status != "paused" for state in states):
            typer.echo("go on: run the same command again", err=True)
            raise typer.Exit(_INTERRUPTED)
        if worker.interrupted:
            raise typer.Exit(0 if watch else _INTERRUPTED)
        if any(state.status == "failed" for state in states):
            raise typer.Exit(1)
        raise typer.Exit(exit_code(next(iter(left.values()))) if left else 0)


def _counted(states: Sequence[TaskState], n_left: int) -> str:
    counts = {status: n for status in get_args(TaskStatus) if (n := sum(s.status == status for s in states))}
    parts = [f"{n} {status}" for status, n in counts.items()] + ([f"{n_left} left alone"] if n_left else [])
    return ", ".join(parts) or "nothing to do"


@app.command(
    "resume",
    epilog="Example: `flowstate task resume trip-1 --tools mytools:toolbox`\n\n" + _ENDS,
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
    with _tasks(store, space, as_json=as_json, may="change") as manager, _logged(log) as listener:
        toolbox = toolbox_of(tools)
        before = manager.get(task)
        if not (no_run or before.finished):
            _check_tools(task, before.workflow, toolbox)
        choice = EngineChoice(engine, model, url, profile, window)
        worker = _Worker(manager, toolbox, choice, as_json, listener, quiet=no_run)
        state = Runner(manager, toolbox).resume(task)
        _go_on(worker, state, _HowTo(task, space, store, tools), no_run=no_run)


@app.command(
    "retry",
    epilog="Examples: `flowstate task retry trip-1 --tools mytools:toolbox` · "
    "`flowstate task retry trip-1 --step pay --no-run`\n\n" + _ENDS,
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
    with _tasks(store, space, as_json=as_json, may="change") as manager, _logged(log) as listener:
        toolbox = toolbox_of(tools)
        before = manager.get(task)
        if not (no_run or before.status == "completed"):
            _check_tools(task, before.workflow, toolbox)
        choice = EngineChoice(engine, model, url, profile, window)
        worker = _Worker(manager, toolbox, choice, as_json, listener, quiet=no_run)
        state = Runner(manager, toolbox).retry(task, step=step)
        _go_on(worker, state, _HowTo(task, space, store, tools), no_run=no_run)


def _go_on(worker: _Worker, state: TaskState, how_to: _HowTo, *, no_run: bool) -> None:
    if no_run:
        _marked(worker.manager, state, as_json=worker.as_json)
    else:
        worker.conclude(worker.carry_out(lambda: state, state.workflow), how_to)


def _marked(manager: TaskManager[Any], state: TaskState, *, as_json: bool, words: str = "") -> None:
    """Print where a task stands that was changed and not run."""
    if as_json:
        _json(_task_json(manager, state))
        return
    family = view.Family(state, _held_by(manager, state.id))
    Console(highlight=False).print(view.title_line(family), soft_wrap=True)
    if words:
        typer.echo(words, err=True)


@app.command(
    "fork",
    epilog="Example: `flowstate task fork trip-1 --at 14 --id trip-1b --run --tools mytools:toolbox`; "
    "`flowstate task log trip-1` shows the numbers.\n\n" + _ENDS,
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
    with _tasks(store, space, as_json=as_json, may="change") as manager, _logged(log) as listener:
        toolbox = toolbox_of(tools)
        workflow = manager.get(task).workflow
        if new is not None and manager.store.task_head(space, check_task_id(new)).seq:
            raise UsageError(f"there is a task {new!r} already", hint="Give another --id.")
        if run_it:
            _check_tools(task, workflow, toolbox)
        worker = _Worker(
            manager, toolbox, EngineChoice(engine, model, url, profile, window), as_json, listener
        )
        if not run_it:
            state = history.fork(manager, task, at, new=new)
            how_to = _HowTo(state.id, space, store, tools)
            _marked(manager, state, as_json=as_json, words=f"run it: {how_to.command('resume')}")
            return
        state = worker.carry_out(lambda: history.fork(manager, task, at, new=new), workflow)
        worker.conclude(state, _HowTo(state.id, space, store, tools))


# --- commands that decide -----------------------------------------------------------------------------------------


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
    with _tasks(store, space, as_json=as_json, may="change") as manager:
        state = Runner(manager, Toolbox([])).settle(task, step, _value(output))
        go_on = f"go on: {_HowTo(task, space, store, None).command('resume')} --tools ..."
        _marked(manager, state, as_json=as_json, words=go_on)


@app.command("pause", epilog="Example: `flowstate task pause trip-1 --reason 'ask Ana first'`")
def pause(
    task: TaskArgument,
    reason: Annotated[str, typer.Option("--reason", help="For the log.")] = "paused by its operator",
    space: Space = "default",
    store: StorePath = None,
    as_json: Json = False,
) -> None:
    """Let nothing more start; steps under way end first. `flowstate task resume` goes on."""
    with _tasks(store, space, as_json=as_json, may="change") as manager:
        _marked(manager, manager.pause(task, reason), as_json=as_json)


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
    with _tasks(store, space, as_json=as_json, may="change") as manager, _logged(log) as listener:
        toolbox = toolbox_of(tools)
        state = manager.get(task)
        by_us = tools is not None or not _tools_of(state.workflow)
        if by_us:
            _check_tools(task, state.workflow, toolbox)
        if not state.cancelled or state.finished:
            state = manager.cancel(task, reason)
        how_to = _HowTo(task, space, store, tools)
        held_by = _held_by(manager, state.id)
        if state.finished or held_by or not by_us:
            winds_up = f"{held_by} winds it up" if held_by else ""
            nobody = f"nobody works on it; to wind it up: {how_to.command('cancel')} --tools ..."
            _marked(manager, state, as_json=as_json, words="" if state.finished else winds_up or nobody)
            return
        worker = _Worker(manager, toolbox, EngineChoice(), as_json, listener)
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
    with _tasks(store, space, as_json=as_json, may="change") as manager:
        if (task is None) == (older_than is None):
            raise UsageError("give a task, or --older-than", hint="See `flowstate task archive --help`.")
        if task is not None:
            archived = [retention.archive(manager, task).id]
        else:
            policy = retention.Retention(_duration_s(older_than or ""), keep_last, failed_too)
            archived = retention.sweep(manager, policy)
        if as_json:
            _json({"archived": archived})
            return
        for one in archived:
            typer.echo(one)
        typer.echo(f"{len(archived)} task{'s' * (len(archived) != 1)} archived", err=True)


# --- commands that show -------------------------------------------------------------------------------------------


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
    with _tasks(store, space, as_json=as_json) as manager:
        if status is not None and status not in get_args(TaskStatus):
            raise UsageError(f"unknown status {status!r}", hint=f"Use {', '.join(get_args(TaskStatus))}.")
        now = manager.clock()
        created_from = _since(since, now) if since else None
        found = manager.tasks(owner=owner, status=status, current_step=step, created_from=created_from)
        records = list(reversed(deque(found, maxlen=limit)))
        if as_json:
            _json([record.model_dump(mode="json") for record in records])
        elif records:
            console = Console(highlight=False)
            console.print(view.tasks_table(records, now, console.width))
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
    with _tasks(store, space, as_json=as_json) as manager:
        family = _family(manager, task) if at is None else view.Family(manager.at(task, at), past=True)
        state = family.state
        if as_json:
            _json(
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
        Console(highlight=False).print(view.task_view(family, now))


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
    with _tasks(store, space, as_json=as_json) as manager:
        console = Console(highlight=False)
        events = manager.events(task, after=after)
        floor = manager.store.task_head(space, check_task_id(task)).floor
        if floor > after and not as_json:
            typer.echo(f"events up to {floor} were archived", err=True)
        for event in events:
            if as_json:
                _json(TASK_EVENT.dump_python(event, mode="json"))
                continue
            line = view.event_line(event)
            if console.is_terminal:
                line.truncate(console.width, overflow="ellipsis")
            console.print(line, soft_wrap=True)


@app.command("gantt", epilog="Example: `flowstate task gantt trip-1`")
def gantt(
    task: TaskArgument, space: Space = "default", store: StorePath = None, as_json: Json = False
) -> None:
    """Draw when each step ran, waited, failed and was undone, sub-tasks included."""
    with _tasks(store, space, as_json=as_json) as manager:
        chart = view.Gantt(_family(manager, task, with_events=True), manager.clock())
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
            _json({"task": task, "start": chart.start, "end": chart.end, "rows": lanes})
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
    with _tasks(store, space, as_json=as_json) as manager:
        decision = history.why(manager, task, step=step, seq=at)
        if as_json:
            _json(_flat(decision))
        else:
            Console(highlight=False).print(view.decision_tree(decision))


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
    with _tasks(store, space, as_json=as_json) as manager:
        if last is None:
            changes = history.compare(manager.get(task), manager.get(first))
        else:
            changes = history.diff(manager, task, _version(first), _version(last))
        if as_json:
            _json([change.model_dump(mode="json") for change in changes])
        else:
            Console(highlight=False).print(view.changes_view(changes))


@app.command(
    "replay",
    epilog="Exit codes: 0 the same, 1 something would be decided otherwise. Example: `flowstate task replay trip-1`",
)
def replay(
    task: TaskArgument, space: Space = "default", store: StorePath = None, as_json: Json = False
) -> None:
    """Go through a recorded run again, without tools and without a model, and compare what this release decides."""
    with _tasks(store, space, as_json=as_json) as manager:
        frames = asyncio.run(history.replay(manager, task))
        n_divergences = sum(bool(frame.divergence) for frame in frames)
        if as_json:
            _json(
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
            Console(highlight=False).print(view.frames_view(frames), soft_wrap=True)
            typer.echo(f"{len(frames)} events, {n_divergences} divergence{'s' * (n_divergences != 1)}")
        if n_divergences:
            raise typer.Exit(1)


@app.command(
    "verify", epilog="Exit codes: 0 whole, 1 faults found. Example: `flowstate task verify --space travel`"
)
def verify(space: Space = "default", store: StorePath = None, as_json: Json = False) -> None:
    """Derive from each log what snapshots, lists and values should say, and list where they don't."""
    with _tasks(store, space, as_json=as_json) as manager:
        n_tasks = sum(1 for _ in manager.tasks())
        faults = faults_of(manager)
        if as_json:
            _json({"tasks": n_tasks, "faults": [asdict(fault) for fault in faults]})
        else:
            Console(highlight=False).print(view.faults_view(faults), soft_wrap=True, end="")
            counted = f"{n_tasks} task{'s' * (n_tasks != 1)} checked"
            typer.echo(f"{counted}, {len(faults)} fault{'s' * (len(faults) != 1)}")
        if faults:
            raise typer.Exit(1)


# --- what is typed ------------------------------------------------------------------------------------------------


def _params(pairs: Sequence[str], file: Path | None, template: Template) -> dict[str, JsonValue]:
    """The parameters of the command line over those of the file. Raises UsageError."""
    given: dict[str, JsonValue] = {}
    if file is not None:
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise UsageError(f"can't read parameters from {file}: {error}") from error
        if not isinstance(content, dict):
            raise UsageError(f"{file} holds a {type(content).__name__}, not an object of parameters")
        given.update(content)
    for pair in pairs:
        name, sign, text = pair.partition("=")
        if not sign or not name:
            raise UsageError(f"{pair!r} is not NAME=VALUE", hint="For example --param city=Lisbon")
        value, declared = _value(text), template.params.get(name)
        # A number is a text, too, where a text is asked for.
        given[name] = text if declared and declared.type == "string" and not isinstance(value, str) else value
    return given


def _value(text: str) -> JsonValue:
    """JSON if it is JSON, else the text."""
    try:
        value: JsonValue = json.loads(text, parse_constant=_no_constant)
    except ValueError:
        return text
    return value


def _no_constant(name: str) -> JsonValue:
    raise ValueError(f"{name} is no JSON")


def _version(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise UsageError(f"{text!r} is no version", hint="`flowstate task log ID` shows the numbers.")
    return int(text)


_DURATION = re.compile(r"^(\d+(?:\.\d+)?)\s*([smhdw])$")
_UNIT_S = {"s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0, "w": 604_800.0}


def _duration_s(text: str) -> float:
    found = _DURATION.match(text.strip().lower())
    if found is None:
        raise UsageError(f"{text!r} is no duration", hint="Write 90s, 15m, 12h, 30d or 8w.")
    return float(found[1]) * _UNIT_S[found[2]]


def _since(text: str, now: float) -> float:
    """An age or a date (UTC unless it says otherwise) as seconds since the epoch."""
    if _DURATION.match(text.strip().lower()):
        return now - _duration_s(text)
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        hint = "Write an age such as 2h or 30d, or a date such as 2026-12-01."
        raise UsageError(f"{text!r} is no time", hint=hint) from None
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
