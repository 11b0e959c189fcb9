"""The worker of the command line: runs tasks with an engine if one is needed, shows them, stops when asked to."""

import asyncio
import os
import shlex
import signal
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

from flowstate_local.cli.report import show_error, write_json
from flowstate_local.cli.roots import (
    EngineChoice,
    opened_engine,
)
from flowstate_local.cli.task.log_view import event_line
from flowstate_local.cli.task.opened import (
    Parts,
    check_tools,
    family_of,
    held_by,
    needs_engine,
    parts_since,
    task_json,
)
from flowstate_local.cli.task.options import EXIT, GRACE_S, INTERRUPTED, POLL_S
from flowstate_local.cli.task.state_view import progress_view, title_line
from flowstate_local.cli.task.words import error_text, one_line, value_text
from flowstate_local.errors import FlowStateError, StoreBusy
from flowstate_local.loop import Agent
from flowstate_local.task_events import (
    TASK_EVENT,
    Planned,
    TaskCreated,
    TaskEvent,
    TaskId,
    TaskStatus,
    WorkflowSpec,
)
from flowstate_local.task_state import TaskState
from flowstate_local.tasks.manager import TaskManager
from flowstate_local.tasks.planner import GraphPlanner
from flowstate_local.tasks.runner import Runner
from flowstate_local.tools import Toolbox


@dataclass
class Worker:
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
                await asyncio.wait({*under_way, stopped}, timeout=POLL_S, return_when=asyncio.FIRST_COMPLETED)
                for done in [one for one in under_way if one.done()]:
                    del under_way[done]
                    done.result()
            await asyncio.gather(*under_way)
        finally:
            for late in (stopped, *under_way):
                late.cancel()
            await asyncio.gather(stopped, *under_way, return_exceptions=True)

    def _runnable(self, taken: set[TaskId]) -> Iterator[TaskId]:
        for task in self._runner("plain").runnable():
            if task not in taken and not held_by(self.manager, task):
                yield task

    async def _take(
        self, task: TaskId, ended: dict[TaskId, TaskState], left: dict[TaskId, FlowStateError]
    ) -> None:
        try:
            workflow = self.manager.get(task).workflow
            check_tools(task, workflow, self.toolbox)
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
        if not needs_engine(workflow):
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
            runner = Runner(self.manager, self.toolbox, grace_s=GRACE_S, concurrency=64, **options)
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
                self._say(f"stopping: steps under way get {GRACE_S:.0f} s to end (again: leave at once)")
            elif n_asked == 2 and main is not None:
                main.cancel()
            else:
                os._exit(INTERRUPTED)

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

        self._parts = parts_since(self.manager, self.manager.get(task).created_at)

        def table() -> Any:
            return progress_view(family_of(self.manager, task, self._parts), self.manager.clock())

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
                    write_json(TASK_EVENT.dump_python(event, mode="json"))
                elif not self._live and not isinstance(event, Planned):
                    self._console.print(event_line(event, of_task=self.of_task), soft_wrap=True)
        if self.log is not None:
            self.log(events)

    def _say(self, words: str) -> None:
        if self._live:
            self._console.print(f"[yellow]{words}[/]")
        else:
            typer.secho(words, fg="yellow", err=True)

    def conclude(self, state: TaskState, how_to: "HowTo", *, expected: TaskStatus = "completed") -> None:
        """Print how the task stands now, and what may be done next; end with the exit code of that."""
        stopped = self.interrupted and not state.finished
        if self.as_json:
            write_json(task_json(self.manager, state))
        else:
            print_end(self.manager, state, self._console)
            for line in [f"go on: {how_to.command('resume')}"] if stopped else how_to.next_lines(state):
                typer.secho(line, fg="yellow" if stopped else "bright_black", err=True)
        if stopped:
            raise typer.Exit(INTERRUPTED)
        if state.status != expected or any(step.undo == "failed" for step in state.steps.values()):
            raise typer.Exit(EXIT.get(state.status, 0))


def print_end(manager: TaskManager[Any], state: TaskState, console: Console) -> None:
    """How a task ended, or where it stands."""
    family = family_of(manager, state.id)
    if console.is_terminal:
        console.print(progress_view(family, manager.clock()))
    else:
        console.print(title_line(family), soft_wrap=True)
    if state.error is not None and state.status == "failed":
        console.print(Text(f"error   {error_text(state.error)}", "red"), soft_wrap=True)
    if state.status == "paused":
        console.print(Text(f"paused  {one_line(state.reason, 300)}", "yellow"), soft_wrap=True)
    if state.result is not None:
        console.print(Text(f"result  {value_text(state.result, 2_000)}"), soft_wrap=True)


@dataclass(frozen=True)
class HowTo:
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
