"""The runner: many tasks at once in one process. On start it takes up what was running when the last one ended."""

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Any

from pydantic import JsonValue

from flowstate_local.engines.base import Engine
from flowstate_local.errors import FlowStateError, IllegalTransition, StoreBusy, UnknownTask, UsageError
from flowstate_local.loop import Agent
from flowstate_local.task_events import (
    Parent,
    StepName,
    TaskAction,
    TaskEvent,
    TaskId,
    TaskStepFinished,
    TaskStepReset,
    WorkflowSpec,
)
from flowstate_local.task_state import TaskState
from flowstate_local.tasks.executor import Executor
from flowstate_local.tasks.manager import TaskManager
from flowstate_local.tasks.model_planner import ModelPlanner
from flowstate_local.tasks.planner import GraphPlanner, Planner
from flowstate_local.tasks.run import TaskRun
from flowstate_local.tasks.values import to_value
from flowstate_local.tools import Toolbox

logger = logging.getLogger(__name__)


class Runner:
    """Runs the tasks of one space.

    Args:
        manager: the tasks.
        toolbox: the tools that their steps may call.
        agent: answers agent steps; None if there are none.
        engine: the model of model-driven planners; by default the agent's.
        planner: decides for all tasks, whatever their workflows say.
        concurrency: tasks at once. A sub-task doesn't count: its parent waits for it.
        on_finish: called with the state of each task that ended; what it raises is logged.
        poll_s: seconds between two looks at what other processes wrote.
        grace_s: seconds that running steps get to end after `stop`.
        name: of the worker, for those who find a task held.
    """

    def __init__(
        self,
        manager: TaskManager[Any],
        toolbox: Toolbox,
        *,
        agent: Agent | None = None,
        engine: Engine | None = None,
        planner: Planner | None = None,
        concurrency: int = 8,
        on_finish: Callable[[TaskState], None] | None = None,
        poll_s: float = 1.0,
        grace_s: float = 10.0,
        name: str = "runner",
    ) -> None:
        if concurrency < 1:
            raise UsageError(f"concurrency is {concurrency}; at least one task must be able to run")
        self.manager = manager
        self._executor = Executor(manager, toolbox, agent, self)
        self._engine = engine or (agent.engine if agent else None)
        self._planner = planner
        self._slots = asyncio.Semaphore(concurrency)
        self._on_finish = on_finish
        self._poll_s = poll_s
        self._grace_s = grace_s
        self._name = name
        self._stop = asyncio.Event()

    def stop(self) -> None:
        """Let nothing new start; `run` and `drain` return when the steps under way have ended, or after `grace_s`."""
        self._stop.set()

    async def run(self, task: str) -> TaskState:
        """Work on one task until it ends, pauses, or `stop` is called.

        Raises:
            UnknownTask: there is no such task.
            StoreBusy: somebody else works on it.
            UsageError: its workflow needs a planner or an agent that this runner has not.
        """
        state = self.manager.get(task)
        if state.finished:
            return state
        async with self._slots:
            return await self._run(state)

    async def drain(self) -> list[TaskState]:
        """Run every task that can run, those that a dead worker left included, until none is left; their states."""
        ended: dict[TaskId, TaskState] = {}
        under_way: dict[asyncio.Task[TaskState | None], TaskId] = {}
        while not self._stop.is_set():
            for task in self.runnable():
                if task not in ended and task not in under_way.values():
                    under_way[asyncio.ensure_future(self._try(task))] = task
            if not under_way:
                break
            done, _ = await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
            for one in done:
                task, state = under_way.pop(one), one.result()
                ended[task] = state or self.manager.get(task)
        for late in await asyncio.gather(*under_way):
            if late is not None:
                ended[late.id] = late
        return list(ended.values())

    def runnable(self) -> Iterator[TaskId]:
        """Tasks that can run, whoever holds them; a sub-task is taken up by its parent, if that lives."""
        for record in chain(self.manager.tasks(status="running"), self.manager.tasks(status="pending")):
            if record.parent is None or self.manager.get(record.parent.task).finished:
                yield record.id

    async def serve(self, *, idle_s: float = 1.0) -> None:
        """As `drain`, but wait for new tasks until `stop` is called."""
        while not self._stop.is_set():
            await self.drain()
            try:
                await asyncio.wait_for(self._stop.wait(), idle_s)
            except TimeoutError:
                continue

    # --- what an operator may do --------------------------------------------------------------------------

    def resume(self, task: str) -> TaskState:
        """Let a paused task go on.

        Raises:
            IllegalTransition: it has ended; `retry` a failed one.
        """

        def decide(state: TaskState) -> list[TaskEvent]:
            if state.status in ("pending", "running"):
                return []
            if state.status == "failed":
                raise _ended(state, "retry it, or fork it from an earlier version")
            if state.status == "completed":
                raise _ended(state, "fork it from an earlier version")
            return [self.manager.changed_to("running", state, "resumed")]

        state = self.manager.commit(task, decide)
        self._resume_children(state)
        return state

    def retry(self, task: str, *, step: str | None = None) -> TaskState:
        """Let a failed task, or a step that waits for its operator, try again.

        A task whose undoing got stuck goes on undoing. Otherwise what was undone is done again, and steps that failed
        get new tries.

        Args:
            task: the task.
            step: only this step; by default all that failed or wait.
        """

        def decide(state: TaskState) -> list[TaskEvent]:
            if state.status == "completed":
                raise _ended(state, "fork it from an earlier version")
            events: list[TaskEvent] = []
            if state.status != "running":
                events.append(self.manager.changed_to("running", state, "tried again"))
            if any(s.undo == "failed" for s in state.steps.values()):
                return events
            return events + self._resets(state, step)

        return self.manager.commit(task, decide)

    def settle(self, task: str, step: str, output: Any) -> TaskState:
        """Say what became of a step whose outcome is unknown: it took effect, and this is its output."""
        blobs: dict[str, bytes] = {}
        value = to_value(output, blobs, what=f"the output of {step}")

        def decide(state: TaskState) -> list[TaskEvent]:
            known = _step(state, step)
            if state.finished:
                raise _ended(state, "retry it first, if it failed")
            done = TaskStepFinished(
                task=state.id,
                at=self.manager.clock(),
                step=known,
                idempotency_key=state.steps[known].idempotency_key,
                output=value,
                by="operator",
            )
            return (
                [done]
                if state.status == "running"
                else [done, self.manager.changed_to("running", state, f"{step} settled")]
            )

        return self.manager.commit(task, decide, blobs)

    def _resets(self, state: TaskState, step: str | None) -> list[TaskEvent]:
        names = list(state.steps) if step is None else [_step(state, step)]
        stuck = [name for name in names if state.steps[name].status in ("failed", "paused")]
        return [TaskStepReset(task=state.id, at=self.manager.clock(), step=name) for name in stuck]

    def _resume_children(self, state: TaskState) -> None:
        """The sub-tasks for whose sake a task had paused go on with it."""
        for record in self.manager.tasks(status="paused"):
            if record.parent is not None and record.parent.task == state.id:
                self.resume(record.id)

    # --- inside -------------------------------------------------------------------------------------------

    async def run_child(
        self,
        action: TaskAction,
        params: Mapping[str, JsonValue],
        child: TaskId,
        parent: tuple[TaskId, StepName],
    ) -> TaskState:
        """See `executor.SubTasks`."""
        try:
            state = self.manager.get(child)
        except UnknownTask:
            origin = self.manager.get(parent[0])
            state = self.manager.create(
                action.workflow,
                params,
                task=child,
                owner=origin.owner,
                parent=Parent(task=parent[0], step=parent[1]),
            )
        return state if state.finished else await self._run(state)

    async def _run(self, state: TaskState) -> TaskState:
        run = TaskRun(
            self.manager,
            self._executor,
            self._planner_of(state.workflow),
            stop=self._stop,
            poll_s=self._poll_s,
            grace_s=self._grace_s,
        )
        ended = await run.run(state.id, name=self._name)
        if ended.finished and self._on_finish is not None:
            try:
                self._on_finish(ended)
            except Exception:
                logger.exception("the callback of task %s failed", ended.id)
        return ended

    async def _try(self, task: TaskId) -> TaskState | None:
        """Run a task, unless somebody else does; one that can't be run harms no other."""
        try:
            return await self.run(task)
        except StoreBusy:
            return None
        except FlowStateError as error:
            logger.error("task %s can't go on: %s", task, error)
            return None

    def _planner_of(self, workflow: WorkflowSpec) -> Planner:
        if self._planner is not None:
            return self._planner
        if workflow.planner == "graph":
            return GraphPlanner()
        if self._engine is None:
            raise UsageError(f"workflow {workflow.name} is planned by a model, and there is none")
        return ModelPlanner(self._engine, self.manager)


def _step(state: TaskState, step: str) -> StepName:
    if step not in state.steps:
        raise UnknownTask(f"task {state.id} has no step {step!r}; it has {', '.join(state.steps)}")
    return StepName(step)


def _ended(state: TaskState, hint: str) -> UsageError:
    return IllegalTransition(f"task {state.id} is {state.status}", hint=f"You may {hint}.")
