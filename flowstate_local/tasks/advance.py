"""From how steps ended, and what was planned, to the events that follow. Pure but for reading values.

This is the executor's half of a task's state machine: `task_state` says what may follow, this says what does.
"""

import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from flowstate_local.errors import FlowStateError
from flowstate_local.repository import Reader
from flowstate_local.task_events import (
    CompensationStarted,
    StepError,
    StepName,
    TaskEvent,
    TaskLogged,
    TaskResultSet,
    TaskStatus,
    TaskStatusChanged,
    TaskStepFailed,
    TaskStepFinished,
    TaskStepStarted,
    UndoFailed,
    UndoFinished,
    UndoStarted,
    template_of,
)
from flowstate_local.task_state import TaskState, apply
from flowstate_local.tasks import graph, retry
from flowstate_local.tasks.executor import Executor, Outcome
from flowstate_local.tasks.inputs import inputs_of, resolved
from flowstate_local.tasks.planner import Plan, decided
from flowstate_local.tasks.values import to_value


class Draft:
    """Events that will be appended together, and the state they lead to.

    Args:
        state: the newest state.
        now: seconds since the epoch, never before the state's last event.
        executor: knows which steps may be repeated.
        reader: the read side of the task's space.
    """

    def __init__(self, state: TaskState, now: float, executor: Executor, reader: Reader) -> None:
        self.state = state
        self.now = max(now, state.updated_at)
        self.events: list[TaskEvent] = []
        self.blobs: dict[str, bytes] = {}
        self._executor = executor
        self._reader = reader

    def add(self, kind: type[Any], **fields: Any) -> None:
        """Append an event. Raises IllegalTransition."""
        self._append(kind(task=self.state.id, at=self.now, **fields))

    def _append(self, event: TaskEvent) -> None:
        self.state = apply(self.state, event)
        self.events.append(event)

    # --- how steps ended ----------------------------------------------------------------------------------

    def settle(self, outcomes: Sequence[Outcome]) -> None:
        """Record outcomes. One that comes too late, because somebody else settled the step, is left out."""
        for outcome in outcomes:
            step = self.state.steps[outcome.step]
            if step.undo == "running" and step.undo_key == outcome.key:
                self._settle_undo(outcome)
            elif step.status == "running" and step.idempotency_key == outcome.key:
                self._settle_step(outcome)

    def _settle_step(self, outcome: Outcome) -> None:
        if outcome.suspended:
            self.add(TaskLogged, step=outcome.step, message=outcome.suspended)
            self._pause(outcome.suspended)
        elif outcome.error is not None:
            self._fail_step(outcome, outcome.error)
        else:
            self.blobs.update(outcome.blobs)
            self.add(
                TaskStepFinished,
                step=outcome.step,
                idempotency_key=outcome.key,
                output=outcome.output,
                duration_s=outcome.duration_s,
                request=outcome.request,
                child=outcome.child,
                by=outcome.by,
            )

    def _fail_step(self, outcome: Outcome, error: StepError) -> None:
        decision = retry.decide(self.state.spec(outcome.step), error, outcome.key)
        if self.state.cancelled:
            decision = retry.Decision("give_up")
        self.add(
            TaskStepFailed,
            step=outcome.step,
            idempotency_key=outcome.key,
            error=error,
            then=decision.then,
            retry_at=self.now + decision.delay_s if decision.delay_s else 0.0,
            duration_s=outcome.duration_s,
            request=outcome.request,
            child=outcome.child,
        )

    def _settle_undo(self, outcome: Outcome) -> None:
        if outcome.error is None:
            self.blobs.update(outcome.blobs)
            self.add(UndoFinished, step=outcome.step, output=outcome.output)
            return
        decision = retry.decide_undo(outcome.error, outcome.key)
        then = "retry" if decision.then == "retry" else "give_up"
        at = self.now + decision.delay_s
        self.add(UndoFailed, step=outcome.step, error=outcome.error, then=then, retry_at=at)

    # --- what follows -------------------------------------------------------------------------------------

    def steer(self, propose: Callable[[TaskState, float], Sequence[Plan]]) -> None:
        """Go on as far as can be without waiting: follow plans, end the task, or undo the next step.

        Args:
            propose: plans for a state and a time.
        """
        if self.state.finished:
            return
        if self.state.cancelled and not self.state.compensating:
            if not self.state.running:
                error = StepError(kind="cancelled", message=self.state.cancelled)
                self._compensate(error)
            return
        if self.state.status == "pending":
            self._status("running")
        if self.state.status != "running":
            return
        if self.state.compensating:
            self._undo_next()
        elif not self._ended():
            for plan in propose(self.state, self.now):
                self._follow(plan)

    def _ended(self) -> bool:
        """End the task if there's nothing left to do, or no way to succeed."""
        verdict = graph.verdict(self.state)
        if verdict is not None and verdict.status == "completed":
            self._complete()
            return True
        if verdict is not None:
            if not self.state.running:
                error = verdict.error or StepError(kind="failed", message=f"step {verdict.step} failed")
                self._compensate(error, verdict.step)
            return True
        waiting = [name for name, step in self.state.steps.items() if step.status == "paused"]
        if waiting and not self.state.running and graph.waiting_until(self.state) is None:
            self._pause(f"{', '.join(waiting)}: somebody has to say what became of it")
            return True
        return False

    def _follow(self, plan: Plan) -> None:
        planned = (
            None if self.state.finished or self.state.compensating else decided(plan, self.state, self.now)
        )
        if planned is None:
            return
        self._append(planned)
        if planned.choice.do == "run":
            self._start(StepName(planned.choice.step))
        elif planned.choice.do == "complete":
            self._complete()
        elif not self.state.running:
            self._compensate(StepError(kind="given_up", message=planned.choice.reason))

    def _start(self, name: StepName) -> None:
        step, spec = self.state.steps[name], self.state.spec(name)
        self.add(
            TaskStepStarted,
            step=name,
            attempt=step.attempt + 1,
            # A try that failed may have taken effect; its successor must be recognisable as the same call.
            idempotency_key=step.idempotency_key or uuid.uuid4().hex,
            idempotent=self._executor.idempotent(spec),
            inputs=inputs_of(template_of(spec.action), self.state, self._reader),
        )

    def _complete(self) -> None:
        if self.state.running:
            return
        if self.state.result is None and self.state.workflow.result is not None:
            try:
                content = resolved(self.state.workflow.result, self.state, self._reader_with_drafts())
                value = to_value(content, self.blobs, what="the result")
            except FlowStateError as error:
                self._compensate(StepError(kind="bad_result", message=str(error)))
                return
            self.add(TaskResultSet, result=value)
        self._status("completed")

    def _compensate(self, error: StepError, step: str = "") -> None:
        if self.state.status == "pending":
            self._status("running")
        self.add(CompensationStarted, error=error, step=step)
        self._undo_next()

    def _undo_next(self) -> None:
        steps = self.state.steps
        if any(step.undo == "running" for step in steps.values()):
            return
        name = graph.to_undo(self.state, self.now)
        if name is not None:
            step = steps[name]
            key = step.undo_key or uuid.uuid4().hex
            self.add(UndoStarted, step=name, attempt=step.undo_attempt + 1, idempotency_key=key)
        elif not any(step.undo == "pending" for step in steps.values()):
            self._status("failed", "; ".join(filter(None, self._epitaph())))

    def _epitaph(self) -> Iterator[str]:
        """Why the task failed, and what of it may still be there."""
        steps = self.state.steps.items()
        yield self.state.error.message if self.state.error else ""
        if left := [name for name, step in steps if step.undo == "failed"]:
            yield f"not undone: {', '.join(left)}"
        if unknown := [
            n
            for n, step in steps
            if step.error and step.status != "completed" and step.error.kind == "unknown_outcome"
        ]:
            yield f"perhaps done: {', '.join(unknown)}"

    def _pause(self, reason: str) -> None:
        if self.state.status == "running":
            self._status("paused", reason)

    def _status(self, status: TaskStatus, reason: str = "") -> None:
        self.add(TaskStatusChanged, status=status, reason=reason)

    def _reader_with_drafts(self) -> Reader:
        return _Drafted(self._reader, self.blobs)


class _Drafted:
    """A reader that also knows the blobs which are stored together with these events."""

    def __init__(self, reader: Reader, blobs: dict[str, bytes]) -> None:
        self._reader = reader
        self._blobs = blobs

    def blob(self, key: str) -> bytes:
        return self._blobs[key] if key in self._blobs else self._reader.blob(key)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)
