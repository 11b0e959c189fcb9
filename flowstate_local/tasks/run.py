"""One task, from where it stands to its end: plan, start, wait, record, again.

    outcomes = steps that ended            executor.py
    plans    = what to do next             planner.py
    events   = what follows from both      advance.py
    append them, at once or not at all     manager.py
    start what they started

Whatever kills the process, the log holds what was done; `run` goes on from there.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from flowstate_local import logs
from flowstate_local.stores.base import Lease
from flowstate_local.task_events import (
    StepError,
    StepName,
    TaskEvent,
    TaskId,
    TaskStepStarted,
    UndoStarted,
)
from flowstate_local.task_state import TaskState
from flowstate_local.tasks import graph, leases
from flowstate_local.tasks.advance import Draft
from flowstate_local.tasks.executor import Executor, Outcome, child_of
from flowstate_local.tasks.manager import TaskManager
from flowstate_local.tasks.planner import GraphPlanner, Plan, Planner

Propose = Callable[[TaskState, float], Sequence[Plan]]
"""Plans for a state and a time, at once."""


def _wait_for_plans(state: TaskState, now: float) -> Sequence[Plan]:
    """A model is asked once what has ended is durable."""
    return []


class TaskRun:
    """Works on one task. Made anew for each run; the log is what counts.

    Args:
        manager: reads and writes the task.
        executor: does the steps.
        planner: decides what is next.
        stop: once set, nothing new starts.
        poll_s: seconds between two looks at what others wrote.
        grace_s: seconds that running steps get to end after `stop`.
    """

    def __init__(
        self,
        manager: TaskManager[Any],
        executor: Executor,
        planner: Planner,
        *,
        stop: asyncio.Event,
        poll_s: float = 1.0,
        grace_s: float = 10.0,
    ) -> None:
        self._manager = manager
        self._executor = executor
        self._planner = planner
        self._stop = stop
        self._poll_s = poll_s
        self._grace_s = grace_s
        self._work: dict[asyncio.Task[Outcome], tuple[StepName, str]] = {}
        self._cancelled: set[TaskId] = set()
        """Sub-tasks that were asked to end."""
        self._stopped: asyncio.Future[Any] | None = None
        self._start_wall = 0.0
        self._start_mono = 0.0

    async def run(self, task: TaskId, *, name: str = "runner") -> TaskState:
        """Work on the task until it ends, pauses, or `stop` is set.

        Raises:
            UnknownTask: there is no such task.
            StoreBusy: somebody else works on it, or took it over.
        """
        manager = self._manager
        with manager.lease(task, name=name) as lease:
            try:
                state = manager.get(task)
                self._start_mono, self._start_wall = time.monotonic(), max(manager.clock(), state.updated_at)
                self._adopt(state)
                return await self._until_over(state, lease)
            finally:
                await self._abandon()

    def now(self) -> float:
        """Seconds since the epoch, which never go backwards while the task runs, whatever the clock does."""
        return self._start_wall + time.monotonic() - self._start_mono

    async def _until_over(self, state: TaskState, lease: Lease) -> TaskState:
        renewed = time.monotonic()
        outcomes: list[Outcome] = []
        while True:
            state = await self._turn(state, outcomes)
            if not self._work and (state.finished or state.status == "paused" or self._stop.is_set()):
                return state
            outcomes = await self._wait(state)
            if time.monotonic() - renewed > leases.TTL_S / 3:
                renewed = time.monotonic()
                lease = self._manager.renew_lease(state.id, lease)

    # --- a turn -------------------------------------------------------------------------------------------

    async def _turn(self, state: TaskState, outcomes: Sequence[Outcome]) -> TaskState:
        """Record what ended, decide what follows, and start it."""
        if not outcomes:
            state = self._manager.get(state.id)  # what others wrote
        if isinstance(self._planner, GraphPlanner):
            return await self._commit(state.id, outcomes, self._planner.propose)
        state = await self._commit(state.id, outcomes, _wait_for_plans)
        plans = await self._plans(state)
        return await self._commit(state.id, [], lambda _, now: plans) if plans else state

    async def _plans(self, state: TaskState) -> Sequence[Plan]:
        if self._stop.is_set() or state.status != "running" or state.compensating or state.cancelled:
            return []
        return await self._planner.plan(state, self.now())

    async def _commit(self, task: TaskId, outcomes: Sequence[Outcome], propose: Propose) -> TaskState:
        """Append what follows, all at once; then start what it started."""
        blobs: dict[str, bytes] = {}
        written: list[TaskEvent] = []

        def decide(state: TaskState) -> list[TaskEvent]:
            draft = self._draft(state)
            draft.settle(outcomes)
            if not self._stop.is_set():
                draft.steer(propose)
            blobs.update(draft.blobs)
            written[:] = draft.events
            return draft.events

        state = await asyncio.to_thread(self._manager.commit, task, decide, blobs)
        for event in written:
            if isinstance(event, TaskStepStarted):
                self._launch(task, event.step, event.idempotency_key, self._executor.run(state, event.step))
            elif isinstance(event, UndoStarted):
                self._launch(task, event.step, event.idempotency_key, self._executor.undo(state, event.step))
        return state

    def _draft(self, state: TaskState) -> Draft:
        reader = self._manager.store.reader(self._manager.space)
        return Draft(state, self.now(), self._executor, reader)

    # --- work in flight -----------------------------------------------------------------------------------

    def _adopt(self, state: TaskState) -> None:
        """Take over what a worker that died had under way."""
        for name, step in state.steps.items():
            if step.status == "running":
                self._launch(state.id, name, step.idempotency_key, self._executor.recover(state, name))
            if step.undo == "running":
                self._launch(state.id, name, step.undo_key, self._executor.recover_undo(state, name))

    def _launch(self, task: TaskId, step: StepName, key: str, work: Awaitable[Outcome]) -> None:
        async def correlated() -> Outcome:
            with logs.bound(task=task, step=step):
                return await work

        self._work[asyncio.ensure_future(correlated())] = (step, key)

    async def _wait(self, state: TaskState) -> list[Outcome]:
        """Until something ends, another try is due, somebody calls stop, or it's time to look around."""
        if state.cancelled and not state.compensating:
            self._cancel_work(state)
        if self._stop.is_set():
            return await self._wind_up()
        until = graph.waiting_until(state)
        timeout = self._poll_s if until is None else min(self._poll_s, max(until - self.now(), 0.0))
        if self._stopped is None:
            self._stopped = asyncio.ensure_future(self._stop.wait())
        await asyncio.wait({*self._work, self._stopped}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        return self._collect(state)

    def _cancel_work(self, state: TaskState) -> None:
        """Stop what runs; a sub-task is asked to wind itself up, and undoes what it did."""
        for work, (name, _) in self._work.items():
            child = child_of(state.spec(name), state.steps[name])
            if child is None:
                work.cancel()
            elif child not in self._cancelled:
                self._cancelled.add(child)
                self._executor.cancel_child(child, state.cancelled)

    async def _wind_up(self) -> list[Outcome]:
        """Let what runs end; what takes too long is left to whoever resumes the task."""
        if not self._work:
            return []
        done, late = await asyncio.wait(self._work, timeout=self._grace_s)
        # A sub-task that stopped on its way, as this one does, isn't paused: it goes on with its parent.
        outcomes = [work.result() for work in done if not work.result().suspended]
        for work in late:
            work.cancel()
        self._work = {}
        return outcomes

    def _collect(self, state: TaskState) -> list[Outcome]:
        outcomes = []
        for work in [w for w in self._work if w.done()]:
            step, key = self._work.pop(work)
            outcomes.append(_cancelled(state, step, key) if work.cancelled() else work.result())
        return outcomes

    async def _abandon(self) -> None:
        if self._stopped is not None:
            self._stopped.cancel()
        for work in self._work:
            work.cancel()
        await asyncio.gather(*self._work, return_exceptions=True)


def _cancelled(state: TaskState, step: StepName, key: str) -> Outcome:
    now = state.steps[step]
    kind = "cancelled" if now.idempotent else "unknown_outcome"
    message = (
        "stopped on its way" if now.idempotent else "stopped on its way; whether it took effect is unknown"
    )
    return Outcome(step, key, error=StepError(kind=kind, message=message, attempt=now.attempt))
