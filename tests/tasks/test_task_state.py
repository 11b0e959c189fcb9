"""The state of a task: which event may follow where, and differences between JSON values."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made import call, created, flow

from flowstate_local.errors import IllegalTransition
from flowstate_local.task_events import (
    Change,
    CompensationStarted,
    Planned,
    PlannedAction,
    StepError,
    StepName,
    TaskEvent,
    TaskForked,
    TaskId,
    TaskLogged,
    TaskStatusChanged,
    TaskStepFailed,
    TaskStepFinished,
    TaskStepReset,
    TaskStepStarted,
    TaskUpdated,
    ToolUse,
    UndoFailed,
    UndoFinished,
    UndoStarted,
    Value,
)
from flowstate_local.task_state import (
    TaskState,
    apply,
    changes_between,
    fold,
    patched,
    record_of,
)

T, A, B = TaskId("t"), StepName("a"), StepName("b")
WORKFLOW = flow(call("a", undo=ToolUse(tool="unsay")), call("b", needs=["a"]))


def begin() -> TaskState:
    return fold(None, [created(workflow=WORKFLOW), status("running")])


def status(to: str, at: float = 2.0) -> TaskStatusChanged:
    return TaskStatusChanged.model_validate({"task": T, "at": at, "status": to})


def started(step: StepName = A, attempt: int = 1, key: str = "k", at: float = 3.0) -> TaskStepStarted:
    return TaskStepStarted(task=T, at=at, step=step, attempt=attempt, idempotency_key=key, idempotent=False)


def finished(step: StepName = A, key: str = "k", at: float = 4.0) -> TaskStepFinished:
    return TaskStepFinished(task=T, at=at, step=step, idempotency_key=key, output=Value(inline=1))


def failed(then: str = "give_up", step: StepName = A, key: str = "k") -> TaskStepFailed:
    return TaskStepFailed.model_validate(
        {
            "task": T,
            "at": 4.0,
            "step": step,
            "idempotency_key": key,
            "error": ERROR.model_dump(),
            "then": then,
        }
    )


ERROR = StepError(kind="raised", message="no")
COMPENSATION = CompensationStarted(task=T, at=5.0, error=ERROR)
UNDO = UndoStarted(task=T, at=6.0, step=A, attempt=1, idempotency_key="u")
UNDONE = UndoFinished(task=T, at=7.0, step=A)


def test_the_life_of_a_task() -> None:
    state = fold(begin(), [started(), finished(), started(B), finished(B)])
    assert [step.status for step in state.steps.values()] == ["completed", "completed"]
    assert [step.place for step in state.steps.values()] == [1, 2]
    assert apply(state, status("completed")).finished


ILLEGAL: dict[str, tuple[list[TaskEvent], TaskEvent]] = {
    "begins twice": ([], created()),
    "unknown step": ([], started(StepName("z"))),
    "starts twice": ([started()], started(attempt=2)),
    "skips a try": ([], started(attempt=2)),
    "ends without a start": ([], finished()),
    "ends by another try": ([started(key="mine")], finished(key="other")),
    "ends twice": ([started(), finished()], finished()),
    "fails after its end": ([started(), finished()], failed()),
    "starts in a pause": ([status("paused")], started()),
    "task ends in mid-step": ([started()], status("completed")),
    "task fails in mid-step": ([started()], status("failed")),
    "undone in mid-step": ([started()], COMPENSATION),
    "undone twice": ([COMPENSATION], COMPENSATION),
    "undo without compensation": ([started(), finished()], UNDO),
    "undo of what was never done": ([COMPENSATION], UNDO),
    "undo ends without a start": ([started(), finished(), COMPENSATION], UNDONE),
    "starts while being undone": ([COMPENSATION], started()),
    "reset of a pending step": ([], TaskStepReset(task=T, at=9.0, step=A)),
    "back to pending": ([], status("pending")),
    "after completion": (
        [started(), finished(), started(B), finished(B), status("completed")],
        status("running"),
    ),
    "plan after the end": (
        [status("failed")],
        Planned(task=T, at=9.0, choice=PlannedAction(do="complete"), reason="", by="graph"),
    ),
    "patch of nothing": (
        [],
        TaskUpdated(task=T, at=9.0, changes=(Change(path=("no", "such"), op="replace", after=1),)),
    ),
    "fork in the middle": ([], TaskForked(task=T, at=9.0, origin=T, origin_seq=1, state={})),
}


@pytest.mark.parametrize("name", list(ILLEGAL))
def test_what_may_not_follow_is_refused(name: str) -> None:
    before, event = ILLEGAL[name]
    state = fold(begin(), before)
    with pytest.raises(IllegalTransition):
        apply(state, event)


def test_a_log_begins_with_its_creation() -> None:
    with pytest.raises(IllegalTransition, match="begins with TaskLogged"):
        apply(None, TaskLogged(task=T, at=1.0, message="x"))
    with pytest.raises(IllegalTransition):
        fold(None, [])


def test_time_in_the_log_never_goes_backwards() -> None:
    state = fold(begin(), [started(at=100.0), finished(at=50.0)])
    assert state.updated_at == 100.0
    assert state.steps[A].finished_at == 100.0


def test_a_failed_try_leaves_its_error_and_the_next_one_clears_the_time() -> None:
    state = fold(begin(), [started(), failed("retry")])
    assert state.steps[A].status == "pending"
    assert state.steps[A].error == ERROR
    assert fold(state, [started(attempt=2)]).steps[A].attempt == 2


def test_compensation_undoes_what_completed_and_a_stuck_undo_goes_on_after_a_retry() -> None:
    stuck = UndoFailed(task=T, at=7.0, step=A, error=ERROR, then="give_up")
    state = fold(begin(), [started(), finished(), COMPENSATION, UNDO, stuck, status("failed")])
    assert state.steps[A].undo == "failed"
    again = fold(state, [status("running"), UNDO, UNDONE])
    assert again.steps[A].undo == "completed"
    assert again.compensating
    # Tried once more after everything was undone, the task does it again.
    anew = fold(again, [status("failed"), status("running")])
    assert anew.steps[A].status == "pending"
    assert not anew.compensating


def test_the_line_in_the_indices() -> None:
    state = fold(begin(), [started()])
    line = record_of(state, "s")
    assert (line.status, line.current_step, line.steps_done, line.steps_total, line.seq) == (
        "running",
        "a",
        0,
        2,
        3,
    )
    assert record_of(fold(state, [finished()]), "s").current_step == "b"


def test_a_snapshot_is_the_state() -> None:
    state = fold(begin(), [started(), finished(), started(B)])
    assert TaskState.model_validate_json(state.model_dump_json()) == state


# --- differences --------------------------------------------------------------------------------------------

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=12,
)
objects = st.dictionaries(st.text(max_size=3), plain, max_size=4)


@given(before=objects, after=objects)
def test_a_difference_leads_from_one_to_the_other_and_back(before: dict, after: dict) -> None:  # type: ignore[type-arg]
    changes = changes_between(before, after)
    assert repr(patched(before, changes)) == repr(_ordered_like(after, patched(before, changes)))
    assert changes_between(patched(before, changes), after) == []
    assert changes_between(before, before) == []


def _ordered_like(value: object, like: object) -> object:
    if isinstance(value, dict) and isinstance(like, dict):
        return {key: _ordered_like(value[key], like[key]) for key in like}
    return value


def test_true_is_not_one() -> None:
    assert changes_between({"x": 1}, {"x": True}) == [Change(path=("x",), op="replace", before=1, after=True)]
