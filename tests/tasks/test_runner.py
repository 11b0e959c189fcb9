"""Tasks from end to end: what runs when, what follows from failures, and what an operator may do."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from made import call, flow

from flowstate_local import Agent
from flowstate_local.errors import (
    EngineUnavailable,
    IllegalTransition,
    StoreBusy,
    ToolError,
    UnknownTask,
    UsageError,
)
from flowstate_local.stores.base import Store
from flowstate_local.stores.lmdb import LmdbStore
from flowstate_local.stores.memory import MemoryStore
from flowstate_local.task_events import (
    AgentAction,
    RetryRule,
    StepName,
    StepSpec,
    TaskAction,
    TaskStepFailed,
    TaskStepStarted,
    ToolUse,
    WorkflowSpec,
)
from flowstate_local.task_state import TaskState
from flowstate_local.tasks.manager import TaskManager
from flowstate_local.tasks.runner import Runner
from flowstate_local.tasks.verification import verify
from flowstate_local.testing import ScriptedEngine, step
from flowstate_local.tools import Toolbox, ToolContext, tool

pytestmark = pytest.mark.anyio

QUICK = RetryRule(kinds=("*",), then="later", times=3, delay_s=0.01)


class World:
    """Tools that remember what was asked of them, and fail as told."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.keys: list[str] = []
        self.failures: dict[str, list[ToolError]] = {}
        self.running = 0
        self.most_at_once = 0
        self.gate = asyncio.Event()
        self.gate.set()

    @property
    def toolbox(self) -> Toolbox:
        @tool(idempotent=True, for_model=False)
        async def say(context: ToolContext, text: Any = None, wait: float = 0.0) -> Any:
            """Say something."""
            return await self._called("say", context, text, wait)

        @tool
        async def pay(context: ToolContext, text: str | None = None, wait: float = 0.0) -> Any:
            """Pay, which must not happen twice."""
            return await self._called("pay", context, text, wait)

        @tool(idempotent=True, for_model=False)
        async def unsay(context: ToolContext, text: Any = None) -> Any:
            """Undo it."""
            return await self._called("unsay", context, text, 0.0)

        return Toolbox([say, pay, unsay])

    async def _called(self, name: str, context: ToolContext, text: Any, wait: float) -> Any:
        self.calls.append(f"{name} {context.step}")
        self.keys.append(context.idempotency_key)
        self.running += 1
        self.most_at_once = max(self.most_at_once, self.running)
        try:
            await asyncio.sleep(wait)
            await self.gate.wait()
            failures = self.failures.get(f"{name} {context.step}", [])
            if failures:
                raise failures.pop(0)
            return context.step if text is None else text
        finally:
            self.running -= 1


@pytest.fixture(params=["memory", "lmdb"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    store: Store = MemoryStore() if request.param == "memory" else LmdbStore.open(tmp_path / "store")
    yield store
    store.close()


@pytest.fixture
def manager(store: Store) -> Iterator[TaskManager[Any]]:
    manager = TaskManager[Any](store, "s")
    yield manager
    assert verify(manager) == []


@pytest.fixture
def world() -> World:
    return World()


def runner_of(manager: TaskManager[Any], world: World, **options: Any) -> Runner:
    return Runner(manager, world.toolbox, **{"poll_s": 0.02, "grace_s": 0.5, **options})


async def run(manager: TaskManager[Any], world: World, workflow: WorkflowSpec, **options: Any) -> TaskState:
    params = options.pop("params", None)
    state = manager.create(workflow, params, task="t")
    return await runner_of(manager, world, **options).run(state.id)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.005)


def unavailable(times: int = 1) -> list[ToolError]:
    return [ToolError("not now", kind="unavailable", retryable=True) for _ in range(times)]


# --- what runs when -----------------------------------------------------------------------------------------


async def test_steps_run_in_order_of_need_and_outputs_go_on(manager: TaskManager[Any], world: World) -> None:
    workflow = flow(
        call("c", needs=["a", "b"], args={"text": {"sum": ["${steps.a.output}", "${steps.b.output.n}"]}}),
        call("a", args={"text": "${params.city}"}),
        call("b", args={"text": {"n": 2}}),
        result={"all": "${steps.c.output}", "text": "in ${params.city}: ${steps.b.output}"},
    )
    state = await run(manager, world, workflow, params={"city": "Rome"})
    assert state.status == "completed"
    assert manager.load(state.result) == {"all": {"sum": ["Rome", 2]}, "text": 'in Rome: {"n":2}'}
    assert world.calls[2] == "say c"
    assert set(world.calls[:2]) == {"say a", "say b"}


async def test_independent_steps_run_at_once_but_not_more_than_allowed(
    manager: TaskManager[Any], world: World
) -> None:
    steps = [call(f"s{i}", args={"wait": 0.05}) for i in range(6)]
    state = await run(manager, world, flow(*steps, parallel=3))
    assert state.status == "completed"
    assert world.most_at_once == 3


async def test_a_start_is_durable_before_the_tool_runs(manager: TaskManager[Any], world: World) -> None:
    world.gate.clear()
    task = asyncio.ensure_future(run(manager, world, flow(call("a", "pay"))))
    await until(lambda: world.calls == ["pay a"])
    state = TaskManager[Any](manager.store, "s").get("t")
    assert state.steps[StepName("a")].status == "running"
    assert state.steps[StepName("a")].started_at > 0
    assert state.steps[StepName("a")].idempotency_key == world.keys[0]
    world.gate.set()
    assert (await task).status == "completed"


async def test_big_outputs_go_on_by_reference(manager: TaskManager[Any], world: World) -> None:
    big = "x" * 1_000_000
    workflow = flow(
        call("a", args={"text": "${params.big}"}), call("b", needs=["a"], args={"text": "${steps.a.output}"})
    )
    state = await run(manager, world, workflow, params={"big": big})
    output = state.steps[StepName("b")].output
    assert output is not None
    assert (output.size_bytes, output.inline) == (len(big), None)
    started = [e for e in manager.events("t") if isinstance(e, TaskStepStarted)]
    assert started[1].inputs["steps.a.output"].digest == output.digest


# --- what follows from failures -----------------------------------------------------------------------------


async def test_a_retryable_failure_is_tried_again_with_the_same_key(
    manager: TaskManager[Any], world: World
) -> None:
    world.failures["say a"] = unavailable(2)
    state = await run(manager, world, flow(call("a", retry=(QUICK,))))
    assert state.status == "completed"
    assert state.steps[StepName("a")].attempt == 3
    assert len(set(world.keys)) == 1


async def test_after_its_last_try_a_step_gives_up_and_the_task_fails(
    manager: TaskManager[Any], world: World
) -> None:
    world.failures["say a"] = unavailable(9)
    state = await run(manager, world, flow(call("a", retry=(QUICK,)), call("b", needs=["a"])))
    assert (state.status, state.failed_step, len(world.calls)) == ("failed", "a", 3)
    assert state.error is not None
    assert (state.error.kind, state.error.attempt) == ("unavailable", 3)


@pytest.mark.parametrize(
    ("rule", "calls"),
    [
        (RetryRule(kinds=("unavailable",), then="now", times=2), 2),
        (RetryRule(kinds=("other",), then="now", times=2), 1),
        (RetryRule(kinds=("retryable",), then="give_up"), 1),
        (RetryRule(kinds=("*",), then="later", times=4, delay_s=0.001), 4),
    ],
)
async def test_the_kind_of_the_error_decides(
    manager: TaskManager[Any], world: World, rule: RetryRule, calls: int
) -> None:
    world.failures["say a"] = unavailable(9)
    give_up = RetryRule(kinds=("*",), then="give_up")
    state = await run(manager, world, flow(call("a", retry=(rule, give_up))))
    assert (state.status, len(world.calls)) == ("failed", calls)


async def test_a_fallback_stands_in_and_sleeps_otherwise(manager: TaskManager[Any], world: World) -> None:
    workflow = flow(
        call("a", fallback="spare"),
        call("spare", args={"text": "spare"}),
        call("b", needs=["a"], args={"text": "${steps.a.output}"}),
        result="${steps.b.output}",
    )
    world.failures["say a"] = [ToolError("no", kind="gone")]
    state = await run(manager, world, workflow)
    assert (state.status, manager.load(state.result)) == ("completed", "spare")
    manager.create(workflow, task="t2")
    quiet = await runner_of(manager, world).run("t2")
    assert (quiet.status, quiet.steps[StepName("spare")].status) == ("completed", "pending")


async def test_an_optional_step_may_fail_and_its_output_is_null(
    manager: TaskManager[Any], world: World
) -> None:
    world.failures["say a"] = [ToolError("no", kind="gone")]
    workflow = flow(
        call("a", optional=True),
        call(
            "b", needs=["a"], args={"text": [None, "${steps.a.output.deep.inside}", "${steps.a.error.kind}"]}
        ),
    )
    state = await run(manager, world, workflow)
    assert state.status == "completed"
    assert manager.load(state.steps[StepName("b")].output) == [None, None, "gone"]


async def test_a_step_that_takes_too_long_is_a_timeout(manager: TaskManager[Any], world: World) -> None:
    state = await run(manager, world, flow(call("a", "pay", timeout_s=0.05, args={"wait": 5.0})))
    assert state.status == "failed"
    assert state.error is not None
    assert (state.error.kind, state.error.retryable) == ("timeout", False)


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        ({"nope": 1}, "bad_arguments"),
        ({"wait": "soon"}, "bad_arguments"),
        ({"text": "${steps.b.output}"}, "usage_error"),
        ({"text": "${state.nothing}"}, "usage_error"),
        ({"text": "${node:n9}"}, "usage_error"),
        ({"text": "${evidence:t9}"}, "usage_error"),
    ],
)
async def test_bad_arguments_fail_the_step_not_the_process(
    manager: TaskManager[Any], world: World, arguments: dict[str, Any], kind: str
) -> None:
    state = await run(manager, world, flow(call("a", args=arguments)))
    assert state.status == "failed"
    assert state.error is not None
    assert state.error.kind == kind
    assert world.calls == []


async def test_a_result_that_leads_nowhere_fails_the_task(manager: TaskManager[Any], world: World) -> None:
    state = await run(manager, world, flow(call("a"), result="${steps.a.output.deep}"))
    assert (state.status, state.error and state.error.kind) == ("failed", "bad_result")


async def test_an_unknown_tool_is_a_failure_that_names_the_known_ones(
    manager: TaskManager[Any], world: World
) -> None:
    state = await run(manager, world, flow(call("a", "shout")))
    assert state.error is not None
    assert "tools: pay, say, unsay" in state.error.message


# --- compensation -------------------------------------------------------------------------------------------

UNDO = ToolUse(tool="unsay", arguments={"text": "${output}"})
SAGA = flow(
    call("a", undo=UNDO), call("b", needs=["a"]), call("c", needs=["b"], undo=UNDO), call("d", needs=["c"])
)


async def test_on_failure_what_was_done_is_undone_last_first(manager: TaskManager[Any], world: World) -> None:
    world.failures["say d"] = [ToolError("no", kind="gone")]
    state = await run(manager, world, SAGA)
    assert state.status == "failed"
    assert world.calls == ["say a", "say b", "say c", "say d", "unsay c", "unsay a"]
    assert [step.undo for step in state.steps.values()] == ["completed", "", "completed", ""]


async def test_an_undo_that_fails_is_visible_and_can_be_resumed(
    manager: TaskManager[Any], world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flowstate_local.tasks import retry

    monkeypatch.setattr(retry, "UNDO_RULE", retry.UNDO_RULE.model_copy(update={"delay_s": 0.001}))
    world.failures["say d"] = [ToolError("no", kind="gone")]
    world.failures["unsay c"] = unavailable(3)
    state = await run(manager, world, SAGA)
    assert state.status == "failed"
    assert state.reason == "no; not undone: c"
    assert [step.undo for step in state.steps.values()] == ["completed", "", "failed", ""]
    world.calls.clear()
    runner = runner_of(manager, world)
    runner.retry("t")
    state = await runner.run("t")
    assert (state.status, state.reason) == ("failed", "no")
    assert world.calls == ["unsay c"]


async def test_a_failed_task_tried_again_does_again_what_was_undone(
    manager: TaskManager[Any], world: World
) -> None:
    world.failures["say d"] = [ToolError("no", kind="gone")]
    await run(manager, world, SAGA)
    world.calls.clear()
    runner = runner_of(manager, world)
    runner.retry("t")
    state = await runner.run("t")
    assert state.status == "completed"
    assert world.calls == ["say a", "say c", "say d"], "b had nothing to undo, and stays done"


# --- the operator -------------------------------------------------------------------------------------------


async def test_pause_lets_what_runs_end_and_resume_goes_on(manager: TaskManager[Any], world: World) -> None:
    world.gate.clear()
    task = asyncio.ensure_future(run(manager, world, flow(call("a"), call("b", needs=["a"]))))
    await until(lambda: world.calls == ["say a"])
    TaskManager[Any](manager.store, "s").pause("t")
    world.gate.set()
    state = await task
    assert (state.status, state.steps[StepName("a")].status) == ("paused", "completed")
    runner = runner_of(manager, world)
    assert (await runner.run("t")).status == "paused", "running is not resuming"
    runner.resume("t")
    assert (await runner.run("t")).status == "completed"
    with pytest.raises(IllegalTransition, match="completed"):
        runner.resume("t")


async def test_cancel_stops_what_runs_and_undoes_what_was_done(
    manager: TaskManager[Any], world: World
) -> None:
    task = asyncio.ensure_future(
        run(manager, world, flow(call("a", undo=UNDO), call("b", needs=["a"], args={"wait": 60.0})))
    )
    await until(lambda: world.calls == ["say a", "say b"])
    TaskManager[Any](manager.store, "s").cancel("t", "changed our mind")
    state = await asyncio.wait_for(task, 5)
    assert (state.status, state.reason) == ("failed", "changed our mind")
    assert world.calls[-1] == "unsay a"
    failed = [e for e in manager.events("t") if isinstance(e, TaskStepFailed)]
    assert [(e.step, e.error.kind) for e in failed] == [("b", "cancelled")]


async def test_two_runners_on_one_task(manager: TaskManager[Any], world: World) -> None:
    world.gate.clear()
    task = asyncio.ensure_future(run(manager, world, flow(call("a", "pay"))))
    await until(lambda: world.calls == ["pay a"])
    other = runner_of(TaskManager[Any](manager.store, "s"), world)
    with pytest.raises(StoreBusy, match="worked on by runner"):
        await other.run("t")
    assert [state.status for state in await other.drain()] == ["running"]
    world.gate.set()
    assert (await task).status == "completed"
    assert world.calls == ["pay a"]


async def test_a_step_whose_outcome_is_unknown_waits_for_its_operator(
    manager: TaskManager[Any], world: World
) -> None:
    workflow = flow(
        call("a", "pay"),
        call("b", needs=["a"], args={"text": "${steps.a.output}"}),
        result="${steps.b.output}",
    )
    await interrupted(manager, world, workflow, "pay a")
    runner = runner_of(manager, world)
    state = await runner.run("t")
    assert state.status == "paused"
    assert state.reason == "a: somebody has to say what became of it"
    assert world.calls == ["pay a"], "it was not repeated"
    with pytest.raises(UnknownTask):
        runner.settle("t", "z", 1)
    runner.settle("t", "a", {"receipt": 7})
    state = await runner.run("t")
    assert (state.status, manager.load(state.result)) == ("completed", {"receipt": 7})
    assert world.calls == ["pay a", "say b"]


async def test_or_its_operator_lets_it_run_again(manager: TaskManager[Any], world: World) -> None:
    await interrupted(manager, world, flow(call("a", "pay")), "pay a")
    runner = runner_of(manager, world)
    await runner.run("t")
    runner.retry("t", step="a")
    assert (await runner.run("t")).status == "completed"
    assert world.calls == ["pay a", "pay a"]
    assert len(set(world.keys)) == 2, "a new call, with a new key"


async def interrupted(manager: TaskManager[Any], world: World, workflow: WorkflowSpec, at: str) -> None:
    """A worker that died while a tool was running: its log and its lease are as a crash leaves them."""
    world.gate.clear()
    task = asyncio.ensure_future(run(manager, world, workflow))
    await until(lambda: at in world.calls)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    world.gate.set()
    running = manager.get("t").running
    assert running, "the step is still recorded as running"


async def test_an_idempotent_step_is_run_again_with_its_key(manager: TaskManager[Any], world: World) -> None:
    await interrupted(manager, world, flow(call("a")), "say a")
    assert (await runner_of(manager, world).run("t")).status == "completed"
    assert world.calls == ["say a", "say a"]
    assert len(set(world.keys)) == 1


@pytest.mark.parametrize(
    ("found", "calls"), [("paid", ["pay a", "say a"]), (None, ["pay a", "say a", "pay a"])]
)
async def test_a_probe_says_what_became_of_it(
    manager: TaskManager[Any], world: World, found: str | None, calls: list[str]
) -> None:
    probe = ToolUse(tool="probe", arguments={"key": "${key}"})

    @tool(idempotent=True)
    def look(context: ToolContext, key: str) -> str | None:
        """Look whether it happened."""
        world.calls.append(f"say {context.step}")
        assert key == world.keys[0]
        return found

    probe = ToolUse(tool="look", arguments={"key": "${key}"})
    await interrupted(
        manager, world, flow(call("a", "pay", probe=probe), result="${steps.a.output}"), "pay a"
    )
    state = await Runner(manager, Toolbox([*world.toolbox, look])).run("t")
    assert (state.status, manager.load(state.result)) == ("completed", found or "a")
    assert world.calls == calls


async def test_an_undo_that_must_not_be_repeated_is_left_to_the_operator(
    manager: TaskManager[Any], world: World
) -> None:
    world.failures["say b"] = [ToolError("no", kind="gone")]
    undo = ToolUse(tool="pay", arguments={"wait": 60.0})
    workflow = flow(call("a", undo=undo), call("b", needs=["a"]))
    await interrupted_undo(manager, world, workflow)
    state = await runner_of(manager, world).run("t")
    assert (state.status, state.steps[StepName("a")].undo) == ("failed", "failed")
    assert state.steps[StepName("a")].undo_error is not None
    assert world.calls.count("pay a") == 1


async def interrupted_undo(manager: TaskManager[Any], world: World, workflow: WorkflowSpec) -> None:
    task = asyncio.ensure_future(run(manager, world, workflow))
    await until(lambda: "pay a" in world.calls)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert manager.get("t").steps[StepName("a")].undo == "running"


# --- many tasks ---------------------------------------------------------------------------------------------


async def test_drain_runs_everything_with_a_limit_and_tells_who_asked(
    manager: TaskManager[Any], world: World
) -> None:
    for i in range(6):
        manager.create(flow(call("a", args={"wait": 0.02})), task=f"t{i}")
    told: list[str] = []

    def hear(state: TaskState) -> None:
        told.append(state.id)
        raise RuntimeError("a callback that fails harms nobody")

    ended = await runner_of(manager, world, concurrency=2, on_finish=hear).drain()
    assert sorted(state.id for state in ended) == sorted(told) == [f"t{i}" for i in range(6)]
    assert world.most_at_once == 2
    assert await runner_of(manager, world).drain() == []


async def test_a_runner_takes_up_what_a_dead_one_left(manager: TaskManager[Any], world: World) -> None:
    await interrupted(manager, world, flow(call("a"), call("b", needs=["a"])), "say a")
    (state,) = await runner_of(manager, world).drain()
    assert state.status == "completed"


async def test_stop_lets_steps_end_and_starts_no_more(manager: TaskManager[Any], world: World) -> None:
    state = manager.create(flow(call("a", args={"wait": 0.1}), call("b", needs=["a"])), task="t")
    runner = runner_of(manager, world)
    task = asyncio.ensure_future(runner.run(state.id))
    await until(lambda: world.calls == ["say a"])
    runner.stop()
    state = await task
    assert (state.status, state.steps[StepName("a")].status, state.running) == ("running", "completed", [])
    assert (await runner_of(manager, world).run("t")).status == "completed"


async def test_serve_waits_for_new_tasks(manager: TaskManager[Any], world: World) -> None:
    runner = runner_of(manager, world)
    serving = asyncio.ensure_future(runner.serve(idle_s=0.02))
    await asyncio.sleep(0.05)
    manager.create(flow(call("a")), task="t")
    await until(lambda: manager.get("t").finished)
    runner.stop()
    await asyncio.wait_for(serving, 5)


async def test_fifty_owners_at_once_stay_apart(store: Store, world: World) -> None:
    managers = [TaskManager[Any](store, f"space{i}") for i in range(50)]
    for i, manager in enumerate(managers):
        manager.create(flow(call("a", args={"text": i}), result="${steps.a.output}"), task="t")
    await asyncio.gather(*(runner_of(m, world).drain() for m in managers))
    assert [m.load(m.get("t").result) for m in managers] == list(range(50))
    assert [len(list(m.tasks())) for m in managers] == [1] * 50


async def test_a_runner_needs_at_least_one_place(manager: TaskManager[Any], world: World) -> None:
    with pytest.raises(UsageError):
        runner_of(manager, world, concurrency=0)


# --- sub-tasks and agents -----------------------------------------------------------------------------------


def delegating(inner: WorkflowSpec) -> WorkflowSpec:
    sub = StepSpec(
        name=StepName("sub"),
        action=TaskAction(workflow=inner, params={"x": "${steps.a.output}"}),
        needs=(StepName("a"),),
    )
    return flow(call("a"), sub, result="${steps.sub.output}")


async def test_a_sub_task_has_its_own_log_and_hands_its_result_up(
    manager: TaskManager[Any], world: World
) -> None:
    inner = flow(call("inside", args={"text": "from ${params.x}"}), result="${steps.inside.output}")
    state = await run(manager, world, delegating(inner))
    assert (state.status, manager.load(state.result)) == ("completed", "from a")
    child = manager.get(state.steps[StepName("sub")].child)
    assert child.parent is not None
    assert (child.parent.task, child.parent.step, child.status) == ("t", "sub", "completed")
    assert "inside" not in state.steps


async def test_a_failed_sub_task_fails_its_step(manager: TaskManager[Any], world: World) -> None:
    world.failures["say inside"] = [ToolError("no", kind="gone")]
    state = await run(manager, world, delegating(flow(call("inside"))))
    assert state.error is not None
    assert (state.status, state.error.kind) == ("failed", "subtask_failed")
    assert "gone: no" in state.error.message


async def test_a_paused_sub_task_pauses_its_parent_and_resumes_with_it(
    manager: TaskManager[Any], world: World
) -> None:
    inner = flow(
        call("inside", args={"wait": 0.2}), call("later", needs=["inside"]), result="${steps.later.output}"
    )
    manager.create(delegating(inner), task="t")
    task = asyncio.ensure_future(runner_of(manager, world).run("t"))
    await until(lambda: "say inside" in world.calls)
    (child,) = [r.id for r in manager.tasks() if r.parent is not None]
    manager.pause(child)
    state = await task
    assert state.status == "paused"
    assert child in state.reason
    runner = runner_of(manager, world)
    runner.resume("t")
    assert (await runner.run("t")).status == "completed"
    assert world.calls == ["say a", "say inside", "say later"]


async def test_an_agent_step_asks_and_its_reply_goes_on(manager: TaskManager[Any], world: World) -> None:
    engine = ScriptedEngine(lambda prompt: step(message="keep it" if "cheaper" in prompt else "what?"))
    agent = Agent(engine, manager.store, [])
    ask = StepSpec(
        name=StepName("ask"),
        action=AgentAction(request="B is cheaper than ${steps.a.output}"),
        needs=(StepName("a"),),
    )
    workflow = flow(
        call("a"),
        ask,
        call("b", needs=["ask"], args={"text": "${steps.ask.output}"}),
        result="${steps.b.output}",
    )
    state = await run(manager, world, workflow, agent=agent)
    assert manager.load(state.result) == "keep it"
    request = state.steps[StepName("ask")].request
    record = manager.store.reader("s").request(request)  # type: ignore[arg-type]
    assert record is not None
    assert record.text == "B is cheaper than a"


async def test_an_agent_step_whose_engine_failed_goes_on_with_its_request(
    manager: TaskManager[Any], world: World
) -> None:
    """The request's own log knows what it did; it isn't asked twice, and its tools aren't called twice."""
    replies = [step(calls=[("pay", {})]), None, step(message="paid")]
    engine = ScriptedEngine(lambda prompt: _next_of(replies), check=False)
    agent = Agent(engine, manager.store, world.toolbox)
    ask = StepSpec(name=StepName("ask"), action=AgentAction(request="pay"), retry=(QUICK,))
    state = await run(manager, world, flow(ask, result="${steps.ask.output}"), agent=agent)
    assert (state.status, manager.load(state.result)) == ("completed", "paid")
    assert state.steps[StepName("ask")].attempt == 2
    assert len(world.calls) == 1
    assert [r.id for r in manager.store.requests("s")] == ["r1"]


def _next_of(replies: list[Any]) -> Any:
    reply = replies.pop(0)
    if reply is None:
        raise EngineUnavailable("it died")
    return reply


async def test_an_interrupted_agent_step_goes_on_with_its_request(
    manager: TaskManager[Any], world: World
) -> None:
    ask = StepSpec(name=StepName("ask"), action=AgentAction(request="pay"))
    manager.create(flow(ask, result="${steps.ask.output}"), task="t")
    world.gate.clear()
    first = Agent(ScriptedEngine([step(calls=[("pay", {})])], check=False), manager.store, world.toolbox)
    task = asyncio.ensure_future(runner_of(manager, world, agent=first).run("t"))
    await until(lambda: len(world.calls) == 1)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    second = Agent(ScriptedEngine([step(message="unknown")], check=False), manager.store, world.toolbox)
    state = await runner_of(manager, world, agent=second).run("t")
    assert (state.status, manager.load(state.result)) == ("completed", "unknown")
    assert len(world.calls) == 1, "whether it was paid is for the model to find out"
    assert [r.id for r in manager.store.requests("s")] == ["r1"]


async def test_a_request_that_ended_before_the_crash_is_not_asked_again(
    manager: TaskManager[Any], world: World
) -> None:
    engine = ScriptedEngine([step(message="forty-two")])
    agent = Agent(engine, manager.store, [])
    ask = StepSpec(name=StepName("ask"), action=AgentAction(request="how many?"))
    manager.create(flow(ask, result="${steps.ask.output}"), task="t")
    real = manager.store.append_task

    def full(*args: Any, **kwargs: Any) -> Any:
        if any(e.kind == "TaskStepFinished" for e in args[1]):
            raise KeyboardInterrupt  # dies after the reply, before it is recorded
        return real(*args, **kwargs)

    manager.store.append_task = full  # type: ignore[method-assign]
    with pytest.raises(BaseException):  # noqa: B017, PT011
        await runner_of(manager, world, agent=agent).run("t")
    manager.store.append_task = real  # type: ignore[method-assign]
    state = await runner_of(manager, world, agent=agent).run("t")
    assert (state.status, manager.load(state.result)) == ("completed", "forty-two")
    assert len(engine.prompts) == 1


async def test_an_agent_step_without_an_agent_fails_with_words(
    manager: TaskManager[Any], world: World
) -> None:
    ask = StepSpec(name=StepName("ask"), action=AgentAction(request="pay"))
    state = await run(manager, world, flow(ask))
    assert state.error is not None
    assert state.error.kind == "no_agent"


# --- what a second pair of eyes found -----------------------------------------------------------------------


def nested(**fields: Any) -> WorkflowSpec:
    """A task whose only step is a sub-task that books and then takes its time."""
    inner = flow(call("book", undo=UNDO), call("wait", needs=["book"], args={"wait": 60.0}))
    sub = StepSpec(name=StepName("sub"), action=TaskAction(workflow=inner), **fields)
    return flow(sub)


async def test_cancelling_a_task_winds_up_its_sub_task(manager: TaskManager[Any], world: World) -> None:
    manager.create(nested(), task="t")
    task = asyncio.ensure_future(runner_of(manager, world).run("t"))
    await until(lambda: "say wait" in world.calls)
    manager.cancel("t", "changed our mind")
    state = await asyncio.wait_for(task, 5)
    assert (state.status, state.reason) == ("failed", "changed our mind")
    (child,) = [r for r in manager.tasks() if r.parent is not None]
    assert child.status == "failed"
    assert world.calls[-1] == "unsay book"


async def test_a_sub_task_that_takes_too_long_is_wound_up_before_the_next_try(
    manager: TaskManager[Any], world: World
) -> None:
    again = RetryRule(kinds=("timeout",), then="now", times=2)
    manager.create(nested(timeout_s=0.1, retry=(again,)), task="t")
    state = await asyncio.wait_for(runner_of(manager, world).run("t"), 10)
    assert state.error is not None
    assert (state.status, state.error.kind) == ("failed", "timeout")
    children = [r for r in manager.tasks() if r.parent is not None]
    assert [child.status for child in children] == ["failed", "failed"]
    assert world.calls.count("unsay book") == 2


async def test_a_stop_leaves_a_parent_running_with_its_sub_task(
    manager: TaskManager[Any], world: World
) -> None:
    inner = flow(call("one", args={"wait": 0.1}), call("two", needs=["one"]))
    sub = StepSpec(name=StepName("sub"), action=TaskAction(workflow=inner))
    manager.create(flow(sub), task="t")
    runner = runner_of(manager, world)
    task = asyncio.ensure_future(runner.run("t"))
    await until(lambda: "say one" in world.calls)
    runner.stop()
    assert (await task).status == "running"
    (state,) = await runner_of(manager, world).drain()
    assert state.status == "completed"
    assert world.calls == ["say one", "say two"]


async def test_a_task_that_cannot_run_harms_no_other(manager: TaskManager[Any], world: World) -> None:
    manager.create(flow(call("a"), planner="model"), task="bad")
    manager.create(flow(call("a")), task="good")
    states = {state.id: state.status for state in await runner_of(manager, world).drain()}
    assert states == {"bad": "pending", "good": "completed"}


async def test_a_cancelled_task_cannot_be_settled_and_says_what_may_have_happened(
    manager: TaskManager[Any], world: World
) -> None:
    await interrupted(manager, world, flow(call("a", "pay"), call("b", needs=["a"])), "pay a")
    runner = runner_of(manager, world)
    assert (await runner.run("t")).status == "paused"
    manager.cancel("t", "enough")
    (state,) = await runner.drain()
    assert (state.status, state.reason) == ("failed", "enough; perhaps done: a")
    with pytest.raises(IllegalTransition, match="failed"):
        runner.settle("t", "a", 1)
    assert manager.get("t").status == "failed"
