"""Time travel, differences, forks, reasons, replay, retention and verification of tasks."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from made import call, flow

from flowstate_local.errors import ConflictError, ToolError, UnknownTask, UsageError
from flowstate_local.stores.base import Store
from flowstate_local.stores.lmdb import LmdbStore
from flowstate_local.stores.memory import MemoryStore
from flowstate_local.task_events import Planned, RetryRule, StepName, TaskId, TaskStepFinished, ToolUse
from flowstate_local.task_state import TaskState, fold
from flowstate_local.tasks import history
from flowstate_local.tasks.manager import TaskManager
from flowstate_local.tasks.retention import Retention, archive, sweep
from flowstate_local.tasks.runner import Runner
from flowstate_local.tasks.verification import verify
from flowstate_local.tools import Toolbox, ToolContext, tool

pytestmark = pytest.mark.anyio

calls: list[str] = []
broken: set[str] = set()


@tool(idempotent=True, for_model=False)
def say(context: ToolContext, text: Any = None) -> Any:
    """Say something."""
    calls.append(context.step)
    if context.step in broken:
        raise ToolError("not now", kind="unavailable", retryable=True)
    return context.step if text is None else text


TOOLS = Toolbox([say])
WORKFLOW = flow(
    call("news", optional=True, retry=(RetryRule(then="now", times=2),)),
    call("prices", fallback="cache", retry=(RetryRule(kinds=("retryable",), then="now"),)),
    call("cache"),
    call(
        "report",
        needs=["news", "prices"],
        args={"text": ["${steps.news.output}", "${steps.prices.output}", "${params.topic}"]},
    ),
    result="${steps.report.output}",
    parallel=1,
)


@pytest.fixture(params=["memory", "lmdb"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    store: Store = MemoryStore() if request.param == "memory" else LmdbStore.open(tmp_path / "store")
    yield store
    store.close()


@pytest.fixture
def manager(store: Store) -> Iterator[TaskManager[Any]]:
    calls.clear()
    broken.clear()
    manager = TaskManager[Any](store, "s")
    yield manager
    assert verify(manager) == []


async def done(manager: TaskManager[Any], *, down: tuple[str, ...] = (), task: str = "t") -> TaskState:
    broken.update(down)
    manager.create(WORKFLOW, {"topic": "tea"}, task=task)
    return await Runner(manager, TOOLS).run(task)


def seq_of(manager: TaskManager[Any], step: str) -> int:
    found = (e.seq for e in manager.events("t") if isinstance(e, TaskStepFinished) and e.step == step)
    return next(found)


# --- time travel and differences ----------------------------------------------------------------------------


async def test_every_version_is_what_the_task_was_then(manager: TaskManager[Any]) -> None:
    last = await done(manager)
    events = list(manager.events("t"))
    for seq in range(1, last.seq + 1):
        assert manager.at("t", seq) == fold(None, events[:seq])


async def test_a_difference_names_what_changed(manager: TaskManager[Any]) -> None:
    state = await done(manager)
    changes = history.diff(manager, "t", seq_of(manager, "prices"), state.seq)
    changed = {".".join(change.path) for change in changes}
    assert "status" in changed
    assert "steps.report.output" in changed
    assert not any(path.startswith("steps.prices") for path in changed)
    assert history.diff(manager, "t", 3, 3) == []
    back = history.diff(manager, "t", state.seq, seq_of(manager, "prices"))
    assert {c.path for c in back} == {c.path for c in changes}
    with pytest.raises(UnknownTask, match="no version 99"):
        history.diff(manager, "t", 1, 99)


# --- forks --------------------------------------------------------------------------------------------------


async def test_a_fork_sees_nothing_newer_and_runs_nothing_again(manager: TaskManager[Any]) -> None:
    await done(manager)
    calls.clear()
    fork = history.fork(manager, "t", seq_of(manager, "prices"), new="f")
    assert (fork.status, fork.origin, fork.result) == ("pending", "t", None)
    assert fork.steps[StepName("report")].status == "pending"
    state = await Runner(manager, TOOLS).run("f")
    assert calls == ["report"]
    assert manager.load(state.result) == ["news", "prices", "tea"]
    assert [c.path for c in history.compare(manager.get("t"), state)][0] == ("id",)
    with pytest.raises(ConflictError):
        history.fork(manager, "t", 3, new="f")
    with pytest.raises(UnknownTask):
        history.fork(manager, "t", 99)


async def test_a_fork_in_mid_step_begins_that_step_anew(manager: TaskManager[Any]) -> None:
    await done(manager)
    at = next(e.seq for e in manager.events("t") if e.kind == "TaskStepStarted" and e.step == "report")
    fork = history.fork(manager, "t", at)
    assert fork.running == []
    assert (await Runner(manager, TOOLS).run(fork.id)).status == "completed"


async def test_a_fork_outlives_its_origin(manager: TaskManager[Any]) -> None:
    await done(manager)
    fork = history.fork(manager, "t", seq_of(manager, "prices"), new="f")
    archive(manager, "t")
    with pytest.raises(UnknownTask, match="compacted"):
        history.fork(manager, "t", 3)
    assert TaskManager[Any](manager.store, "s").get("f") == fork


async def test_any_version_can_be_forked_and_run_to_an_end(manager: TaskManager[Any]) -> None:
    last = await done(manager, down=("news", "prices"))
    for seq in range(1, last.seq + 1):
        state = await Runner(manager, TOOLS).run(history.fork(manager, "t", seq).id)
        assert state.status == "completed"
        assert manager.load(state.result) == manager.load(last.result) == [None, "cache", "tea"]


# --- why ----------------------------------------------------------------------------------------------------


async def test_why_leads_from_a_decision_to_what_it_rests_on(manager: TaskManager[Any]) -> None:
    await done(manager, down=("news", "prices"))
    reason = history.why(manager, "t", step="report")
    assert reason.planned.reason == "done: news, prices (without news)"
    assert reason.planned.by == "graph"
    assert reason.inputs["steps.prices.output"].inline == "cache"
    assert [failure.split(":")[0] for failure in reason.failures] == [
        "news (try 1)",
        "news (try 2)",
        "prices (try 1)",
        "prices (try 2)",
        "prices (try 3)",
    ] or "prices (try 1): unavailable: not now → retry" in reason.failures
    assert [decision.step for decision in reason.rests_on] == ["news", "prices", "cache"]
    assert history.why(manager, "t", step="cache").planned.reason == "stands in for prices"
    assert history.why(manager, "t").step == "report"
    earlier = history.why(manager, "t", seq=4)
    assert earlier.step == "news"


async def test_why_of_what_was_never_decided(manager: TaskManager[Any]) -> None:
    await done(manager)
    with pytest.raises(UnknownTask, match="no step 'z'"):
        history.why(manager, "t", step="z")
    with pytest.raises(UnknownTask, match="nothing was decided to run cache"):
        history.why(manager, "t", step="cache")
    manager.create(WORKFLOW, task="new")
    with pytest.raises(UnknownTask, match="nothing was decided"):
        history.why(manager, "new")


# --- replay -------------------------------------------------------------------------------------------------


async def test_a_replay_calls_nothing_and_decides_the_same(manager: TaskManager[Any]) -> None:
    state = await done(manager, down=("news", "prices"))
    calls.clear()
    frames = await history.replay(manager, "t")
    assert calls == []
    assert frames[-1].state == state
    assert [frame.divergence for frame in frames if frame.divergence] == []


async def test_a_replay_tells_where_the_rules_have_changed(
    manager: TaskManager[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from flowstate_local.tasks import retry

    await done(manager, down=("prices",))
    monkeypatch.setattr(retry, "decide", lambda *of: retry.Decision("give_up"))
    frames = await history.replay(manager, "t")
    assert "this failure would now lead to give_up" in [frame.divergence for frame in frames]


# --- retention ----------------------------------------------------------------------------------------------


async def test_an_archived_task_keeps_its_state_and_loses_its_log(manager: TaskManager[Any]) -> None:
    state = await done(manager)
    record = archive(manager, "t")
    assert record.archived
    fresh = TaskManager[Any](manager.store, "s")
    assert fresh.get("t") == state
    assert fresh.load(fresh.get("t").result) == ["news", "prices", "tea"]
    assert list(fresh.events("t")) == []
    with pytest.raises(UnknownTask, match="compacted"):
        fresh.at("t", 3)
    assert fresh.at("t", state.seq) == state


async def test_what_was_noted_after_the_end_is_archived_too(manager: TaskManager[Any]) -> None:
    await done(manager)
    manager.log_event("t", "seen by the auditor")
    archive(manager, "t")
    assert TaskManager[Any](manager.store, "s").get("t").n_logs == 2
    manager.log_event("t", "and once more")
    assert len(list(manager.events("t"))) == 1


async def test_only_what_has_ended_is_archived(manager: TaskManager[Any]) -> None:
    manager.create(WORKFLOW, task="t")
    with pytest.raises(UsageError, match="pending"):
        archive(manager, "t")
    with pytest.raises(UnknownTask):
        archive(manager, "nobody")


async def test_a_policy_says_which(store: Store) -> None:
    now = [0.0]
    manager = TaskManager[Any](store, "s", clock=lambda: now[0])
    calls.clear()
    broken.clear()
    for i in range(4):
        now[0] = i * 100.0
        await done(manager, task=f"t{i}")
    manager.create(WORKFLOW, task="open")
    now[0] = 400.0
    policy = Retention(older_than_s=150.0, keep_last=1)
    assert sorted(sweep(manager, policy)) == ["t0", "t1", "t2"]
    assert sweep(manager, policy) == []
    assert [r.id for r in manager.tasks() if not r.archived] == ["open", "t3"]


# --- verification -------------------------------------------------------------------------------------------


async def test_a_line_that_the_log_does_not_lead_to_is_found(store: Store) -> None:
    manager = TaskManager[Any](store, "s")
    calls.clear()
    await done(manager)
    head, record = store.task_head("s", TaskId("t")), store.task("s", TaskId("t"))
    assert record is not None
    event = Planned.model_validate(
        {"task": "t", "at": 1.0, "choice": {"do": "complete"}, "reason": "", "by": "nobody"}
    )
    store.append_task("s", [event], expected_seq=head.seq, record=record)
    assert "is completed; Planned can't follow" in verify(manager)[0].problem


async def test_a_lost_value_is_found(tmp_path: Path) -> None:
    import lmdb

    big = {"rows": ["x"] * 2_000}
    with LmdbStore.open(tmp_path / "store") as store:
        manager = TaskManager[Any](store, "s")
        manager.create(flow(call("a", args={"text": big}, undo=ToolUse(tool="say"))), task="t")
        await Runner(manager, TOOLS).run("t")
        assert verify(manager) == []
    env = lmdb.open(str(tmp_path / "store"), max_dbs=24, lib_version=0)
    with env.begin(write=True) as txn:
        txn.drop(env.open_db(b"blobs", txn=txn), delete=False)
    env.close()
    with LmdbStore.open(tmp_path / "store") as store:
        (fault,) = verify(TaskManager[Any](store, "s"))
        assert "not in this space" in fault.problem


async def test_why_explains_each_decision_once_however_many_ways_lead_there(
    manager: TaskManager[Any],
) -> None:
    layers = [[f"l{i:02}x{j}" for j in range(4)] for i in range(12)]
    steps = [call(name, needs=layers[i - 1] if i else ()) for i, layer in enumerate(layers) for name in layer]
    manager.create(flow(*steps), task="t")
    await Runner(manager, TOOLS).run("t")
    reason = history.why(manager, "t", step="l11x0")
    assert reason.rests_on[0].rests_on[0] is reason.rests_on[1].rests_on[0]
