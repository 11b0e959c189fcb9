"""The executor: does what one step says, and turns whatever happens into an outcome. It writes no events.

A tool call, a request to an agent, or a task of its own. After a crash `recover` finds out what became of a step that
was under way, without ever doing anything twice that must not be done twice.
"""

import asyncio
import time
from collections.abc import Awaitable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from flowstate_local.errors import FlowStateError, IllegalTransition, UnknownTask
from flowstate_local.events import Cause
from flowstate_local.history import cause_of
from flowstate_local.loop import Agent, RequestResult
from flowstate_local.protocol import ToolCall
from flowstate_local.repository import RequestRecord
from flowstate_local.stores.base import Store
from flowstate_local.task_events import (
    AgentAction,
    StepError,
    StepName,
    StepSpec,
    TaskAction,
    TaskId,
    ToolAction,
    ToolUse,
    Value,
)
from flowstate_local.task_state import StepState, TaskState
from flowstate_local.tasks import retry
from flowstate_local.tasks.inputs import resolved
from flowstate_local.tasks.manager import TaskManager
from flowstate_local.tasks.values import from_value, raw_value
from flowstate_local.tools import Toolbox, ToolContext, ToolResult


@dataclass(frozen=True)
class Outcome:
    """How one try of a step, or of its undoing, ended."""

    step: StepName
    key: str
    """Its idempotency key."""
    output: Value | None = None
    error: StepError | None = None
    """One of the two is set, unless it is suspended."""
    suspended: str = ""
    """Why the step neither ended nor failed: its sub-task is paused."""
    blobs: Mapping[str, bytes] = field(default_factory=dict)
    duration_s: float = 0.0
    request: str = ""
    child: str = ""
    by: str = ""


class SubTasks(Protocol):
    """Who runs a task that is a step of another."""

    async def run_child(
        self, action: TaskAction, params: Mapping[str, Any], child: TaskId, parent: tuple[TaskId, StepName]
    ) -> TaskState:
        """Make the task if it isn't there yet, and run it until it ends or pauses."""


class Executor:
    """Runs steps.

    Args:
        manager: reads values.
        toolbox: the tools that steps may call.
        agent: answers the requests of agent steps; None if there are none.
        sub_tasks: runs the sub-tasks of task steps.
    """

    def __init__(
        self, manager: TaskManager[Any], toolbox: Toolbox, agent: Agent | None, sub_tasks: SubTasks
    ) -> None:
        self._manager = manager
        self._toolbox = toolbox
        self._agent = agent
        self._sub_tasks = sub_tasks

    def idempotent(self, spec: StepSpec) -> bool:
        """May a step be run again after a crash? An agent's log and a sub-task's log know what they have done."""
        if not isinstance(spec.action, ToolAction):
            return True
        tool = self._toolbox.get(spec.action.tool)
        return tool is None or tool.idempotent  # an unknown tool never ran

    async def run(self, state: TaskState, step: StepName) -> Outcome:
        """One try of a step that is recorded as running."""
        spec, now = state.spec(step), state.steps[step]
        return await self._timed(spec, now, self._act(state, spec, now))

    async def recover(self, state: TaskState, step: StepName) -> Outcome:
        """What became of a step that was running when its worker died; it is run again only if that is harmless."""
        spec, now = state.spec(step), state.steps[step]
        if now.idempotent:
            return await self._timed(spec, now, self._act(state, spec, now, again=True))
        if spec.probe is not None:
            return await self._timed(spec, now, self._probed(state, spec, now))
        message = f"{step} was interrupted; whether it took effect is unknown. Check before repeating it."
        return Outcome(step, now.idempotency_key, error=_error("unknown_outcome", message, now))

    async def undo(self, state: TaskState, step: StepName) -> Outcome:
        """Undo a step that completed; the undoing is recorded as running."""
        spec, now = state.spec(step), state.steps[step]
        assert spec.undo is not None
        assert now.output is not None
        work = self._use(state, spec, spec.undo, now.undo_key, attempt=now.undo_attempt)
        return await self._guarded(now.undo_key, step, now.undo_attempt, work)

    async def recover_undo(self, state: TaskState, step: StepName) -> Outcome:
        """The same for an undoing that was under way."""
        spec, now = state.spec(step), state.steps[step]
        assert spec.undo is not None
        tool = self._toolbox.get(spec.undo.tool)
        if tool is None or tool.idempotent:
            return await self.undo(state, step)
        message = (
            f"undoing {step} was interrupted; whether it took effect is unknown. Check before repeating it."
        )
        # No further try by itself: the attempt counts as the last.
        attempt = max(now.undo_attempt, retry.UNDO_RULE.times)
        return Outcome(
            step, now.undo_key, error=StepError(kind="unknown_outcome", message=message, attempt=attempt)
        )

    # --- kinds of steps -----------------------------------------------------------------------------------

    async def _act(self, state: TaskState, spec: StepSpec, now: StepState, *, again: bool = False) -> Outcome:
        action = spec.action
        if isinstance(action, ToolAction):
            own = ToolUse(tool=action.tool, arguments=action.arguments)
            return await self._use(state, spec, own, now.idempotency_key, attempt=now.attempt)
        if isinstance(action, AgentAction):
            return await self._ask(state, spec, action, now, again=again)
        return await self._delegate(state, spec, action, now)

    async def _use(
        self, state: TaskState, spec: StepSpec, use: ToolUse, key: str, *, attempt: int
    ) -> Outcome:
        """Call a tool: the step's own, or the one that undoes or probes it."""
        result = await self._call(state, spec, use, key)
        if result.failure is not None:
            failed = result.failure
            error = StepError(
                kind=failed.kind, message=failed.message, retryable=failed.retryable, attempt=attempt
            )
            return Outcome(spec.name, key, error=error, duration_s=result.duration_s)
        return _done(spec.name, key, result.raw, result.form, duration_s=result.duration_s)

    async def _call(self, state: TaskState, spec: StepSpec, use: ToolUse, key: str) -> ToolResult:
        reader = self._manager.store.reader(self._manager.space)
        step = state.steps[spec.name]
        extra: dict[str, Any] = {"key": step.idempotency_key}
        if step.output is not None:
            extra["output"] = from_value(step.output, reader)
        arguments = resolved(dict(use.arguments), state, reader, extra)
        context = ToolContext(idempotency_key=key, space=self._manager.space, task=state.id, step=spec.name)
        return await self._toolbox.run(ToolCall(name=use.tool, arguments=arguments), context)

    async def _probed(self, state: TaskState, spec: StepSpec, now: StepState) -> Outcome:
        """Ask whether the call took effect: if so, that is its output; if not, it may be made now."""
        assert spec.probe is not None
        result = await self._call(state, spec, spec.probe, now.idempotency_key)
        if result.failure is not None:
            message = f"{spec.name} was interrupted, and its probe failed: {result.failure.message}"
            return Outcome(spec.name, now.idempotency_key, error=_error("unknown_outcome", message, now))
        if result.form == "json" and result.raw == b"null":
            return await self._act(state, spec, now)
        return _done(spec.name, now.idempotency_key, result.raw, result.form, by="probe")

    async def _ask(
        self, state: TaskState, spec: StepSpec, action: AgentAction, now: StepState, *, again: bool
    ) -> Outcome:
        """Ask the agent, or go on with what this step asked before: no earlier try is ever asked twice."""
        key = now.idempotency_key
        if self._agent is None:
            return Outcome(spec.name, key, error=_error("no_agent", "there is no agent to ask", now))
        space = action.space or self._manager.space
        cause = Cause(task=state.id, step=spec.name, idempotency_key=key)
        ended: RequestRecord | RequestResult | None = None
        if again or now.attempt > 1:
            ended = _find_reply(self._manager.store, space, cause) or await self._resumed(space, cause)
        if ended is None:
            text = resolved(action.request, state, self._manager.store.reader(self._manager.space))
            ended = await self._agent.run(str(text), space=space, date=action.date, cause=cause)
        if ended.outcome != "replied":
            error = _error(ended.outcome, ended.message, now)
            return Outcome(spec.name, key, error=error, request=_request_id(ended))
        return _done(spec.name, key, ended.message.encode(), "text", request=_request_id(ended))

    async def _resumed(self, space: str, cause: Cause) -> RequestResult | None:
        """The unfinished request that an earlier try left, brought to its end; None if there is none."""
        head = self._manager.store.head(space)
        if (
            head.open_request is None
            or cause_of(self._manager.store.events(space, after=head.open_seq - 1, upto=head.open_seq))
            != cause
        ):
            return None
        assert self._agent is not None
        return await self._agent.resume(space)

    async def _delegate(
        self, state: TaskState, spec: StepSpec, action: TaskAction, now: StepState
    ) -> Outcome:
        key, child = now.idempotency_key, child_of(spec, now)
        assert child is not None
        reader = self._manager.store.reader(self._manager.space)
        params = resolved(dict(action.params), state, reader)
        work = self._sub_tasks.run_child(action, params, child, (state.id, spec.name))
        ended, in_time = await self._within(work, child, spec.timeout_s)
        if not in_time:
            message = f"sub-task {child} had not ended after {spec.timeout_s:g} s, and was cancelled"
            return Outcome(spec.name, key, error=_error("timeout", message, now, retryable=True), child=child)
        if ended.status == "completed":
            return Outcome(spec.name, key, output=ended.result or Value(), child=child)
        if ended.status == "failed":
            why = f"{ended.error.kind}: {ended.error.message}" if ended.error else ended.reason
            error = _error("subtask_failed", f"{child}: {why}", now)
            return Outcome(spec.name, key, error=error, child=child)
        return Outcome(
            spec.name, key, suspended=f"sub-task {child} is {ended.status}: {ended.reason}", child=child
        )

    async def _within(
        self, work: Coroutine[Any, Any, TaskState], child: TaskId, timeout_s: float | None
    ) -> tuple[TaskState, bool]:
        """How a sub-task ended, and whether that was in time; one that wasn't is wound up first."""
        running = asyncio.ensure_future(work)
        try:
            done, _ = await asyncio.wait({running}, timeout=timeout_s)
            if not done:
                self.cancel_child(child, "its parent gave it no more time")
            return await running, bool(done)
        except asyncio.CancelledError:
            running.cancel()
            raise

    def cancel_child(self, child: TaskId, reason: str) -> None:
        """Ask a sub-task to end; it winds itself up. One that has ended, or wasn't begun yet, is left alone."""
        with suppress(IllegalTransition, UnknownTask):
            self._manager.cancel(child, reason)

    # --- whatever happens ---------------------------------------------------------------------------------

    async def _timed(self, spec: StepSpec, now: StepState, work: Awaitable[Outcome]) -> Outcome:
        async def limited() -> Outcome:
            try:
                # A sub-task is wound up when its time is over, not cut off.
                async with asyncio.timeout(None if isinstance(spec.action, TaskAction) else spec.timeout_s):
                    return await work
            except TimeoutError:
                message = f"no result after {spec.timeout_s:g} s" if spec.timeout_s else "it timed out"
                error = _error("timeout", message, now, retryable=now.idempotent)
                return Outcome(spec.name, now.idempotency_key, error=error)

        return await self._guarded(now.idempotency_key, spec.name, now.attempt, limited())

    async def _guarded(self, key: str, step: StepName, attempt: int, work: Awaitable[Outcome]) -> Outcome:
        """An exception becomes an outcome, too; only cancellation passes through."""
        started = time.monotonic()
        try:
            return await work
        except FlowStateError as error:
            kind, retryable = _kind(error), error.retryable
            failure = StepError(kind=kind, message=str(error), retryable=retryable, attempt=attempt)
        except Exception as error:
            failure = StepError(kind="raised", message=f"{type(error).__name__}: {error}", attempt=attempt)
        return Outcome(step, key, error=failure, duration_s=time.monotonic() - started)


def child_of(spec: StepSpec, now: StepState) -> TaskId | None:
    """The id of the sub-task of a step's present try; None if the step has no sub-task."""
    if not isinstance(spec.action, TaskAction):
        return None
    return TaskId(f"{spec.name[:40]}-{now.idempotency_key[:8]}-{now.attempt}")


def _done(step: StepName, key: str, raw: bytes, form: str, **more: Any) -> Outcome:
    blobs: dict[str, bytes] = {}
    return Outcome(step, key, output=raw_value(raw, form, blobs), blobs=blobs, **more)


def _error(kind: str, message: str, now: StepState, *, retryable: bool = False) -> StepError:
    return StepError(kind=kind, message=message, retryable=retryable, attempt=now.attempt)


def _kind(error: FlowStateError) -> str:
    """`StoreBusy` -> "store_busy": kinds that retry rules can name."""
    name = type(error).__name__
    return "".join(f"_{c.lower()}" if c.isupper() and i else c.lower() for i, c in enumerate(name))


def _request_id(ended: RequestResult | RequestRecord) -> str:
    return ended.id if isinstance(ended, RequestRecord) else ended.request


def _find_reply(store: Store, space: str, cause: Cause) -> RequestRecord | None:
    """The request with which an earlier try got its reply, if it got that far."""
    for record in store.requests(space):
        if (
            record.outcome == "replied"
            and cause_of(store.events(space, after=record.first_seq - 1, upto=record.first_seq)) == cause
        ):
            return record
    return None
