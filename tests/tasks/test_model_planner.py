"""The planner that asks a model: what it is shown, what it may answer, and what follows."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from made import call, flow

from flowstate_local.completion import Completion
from flowstate_local.errors import OutputTruncated, PromptTooLong, ToolError, UsageError
from flowstate_local.plan_grammar import ANSWER_TOKENS, plan_constraint
from flowstate_local.stores.memory import MemoryStore
from flowstate_local.task_events import Planned, RetryRule, WorkflowSpec
from flowstate_local.task_state import TaskState
from flowstate_local.tasks import history
from flowstate_local.tasks.manager import TaskManager
from flowstate_local.tasks.runner import Runner
from flowstate_local.testing import ScriptedEngine, check_constraint
from flowstate_local.tools import Toolbox, ToolContext, tool

pytestmark = pytest.mark.anyio

called: list[str] = []
failures: dict[str, list[ToolError]] = {}


@tool(idempotent=True, for_model=False)
def say(context: ToolContext, text: Any = None) -> Any:
    """Say something."""
    called.append(context.step)
    if failures.get(context.step):
        raise failures[context.step].pop(0)
    return f"output of {context.step}"


WORKFLOW = flow(
    call("a", title="look at the sky"),
    call("b", needs=["a"]),
    call("c"),
    planner="model",
    goal="know the weather",
    result="${steps.b.output}",
)


def answer(choice: str, *alternatives: str, reason: str = "because") -> str:
    return json.dumps(
        {"reason": reason, "choice": choice, "alternatives": list(alternatives)}, separators=(",", ":")
    )


async def play(
    script: Sequence[Any], workflow: WorkflowSpec = WORKFLOW, **options: Any
) -> tuple[TaskState, ScriptedEngine, TaskManager[Any]]:
    called.clear()
    manager = TaskManager[Any](MemoryStore(), "s")
    engine = ScriptedEngine(list(script), **options)
    manager.create(workflow, {"city": "Rome"}, task="t")
    state = await Runner(manager, Toolbox([say]), engine=engine).run("t")
    return state, engine, manager


async def test_the_model_chooses_the_order_and_when_it_is_enough() -> None:
    state, _, manager = await play([answer("run c"), answer("run a"), answer("run b"), answer("complete")])
    assert called == ["c", "a", "b"]
    assert (state.status, manager.load(state.result)) == ("completed", "output of b")
    plans = list(history.decisions(manager, "t"))
    assert [plan.choice.step for plan in plans] == ["c", "a", "b"], "with nothing left to run it isn't asked"
    assert {plan.by for plan in plans} == {"model script"}
    assert all(plan.prompt_tokens > 0 and plan.generated_tokens > 0 for plan in plans)


async def test_it_may_leave_out_what_the_result_does_not_need() -> None:
    state, _, _ = await play([answer("run a"), answer("run b"), answer("complete", reason="we know enough")])
    assert (state.status, called) == ("completed", ["a", "b"])


async def test_it_may_give_up_with_a_reason() -> None:
    state, _, _ = await play([answer("fail", reason="the sky is gone")])
    assert (state.status, state.reason) == ("failed", "the sky is gone")


async def test_a_choice_against_the_rules_falls_to_the_alternatives_and_both_are_recorded() -> None:
    state, _, manager = await play(
        [answer("run b", "complete", "run a"), answer("run b"), answer("complete")], check=False
    )
    assert called == ["a", "b"]
    first = next(history.decisions(manager, "t"))
    assert (first.choice.step, first.alternatives) == ("a", ())
    assert [(r.subject, r.rule, r.advice) for r in first.refused] == [
        ("b", "not_ready", "it needs a"),
        ("complete", "result_missing", "the result needs b"),
    ]
    assert state.status == "completed"


async def test_the_prompt_shows_failures_and_what_they_block_first() -> None:
    failures["a"] = [ToolError("no sky", kind="unavailable", retryable=True)]
    again = RetryRule(kinds=("*",), then="now", times=2)
    workflow = WORKFLOW.model_copy(update={"steps": (call("a", retry=(again,)), *WORKFLOW.steps[1:])})
    _, engine, _ = await play(
        [answer("run c"), answer("run a"), answer("run a"), answer("run b"), answer("complete")], workflow
    )
    last_words = [prompt.rpartition("Now\n")[2] for prompt in engine.prompts]
    assert last_words[0].startswith("possible: run a, run c, fail\n")
    assert last_words[2].startswith("FAILED a (try 1): unavailable: no sky\npossible: run a, fail\n")
    assert '1 c completed: "output of c"' in engine.prompts[1]
    assert last_words[3].startswith("possible: run b, fail\n")


async def test_the_prompt_grows_at_its_end_so_that_the_prefix_cache_serves_it() -> None:
    _, engine, manager = await play([answer("run c"), answer("run a"), answer("run b"), answer("complete")])
    for before, after in zip(engine.prompt_ids, engine.prompt_ids[1:], strict=False):
        stable = engine.tokenizer.decode(before).index("Now\n")
        assert engine.tokenizer.decode(after).startswith(engine.tokenizer.decode(before)[:stable])
    assert sum(plan.cached_tokens for plan in history.decisions(manager, "t")) > 0


async def test_it_can_only_name_what_is_possible_now() -> None:
    _, engine, _ = await play([answer("run c"), answer("run a"), answer("run b"), answer("complete")])
    constraint = engine.constraints[0]
    assert constraint is not None
    for good in (answer("run a"), answer("run c", "run a", "fail")):
        check_constraint(good, constraint)
    for bad in (answer("run b"), answer("complete"), answer("run a", "run b"), answer("run a", reason="")):
        with pytest.raises(AssertionError):
            check_constraint(bad, constraint)


def test_the_longest_answer_fits() -> None:
    name = "run " + "x" * 64
    longest = answer(name, name, name, reason='"' * 120)
    assert len(longest.encode()) <= ANSWER_TOKENS


@pytest.mark.parametrize("profile", ["guidance", "xgrammar", "outlines"])
def test_the_grammar_of_each_profile_says_the_same(profile: Any) -> None:
    import sys
    from pathlib import Path

    sys.path.insert(0, str(Path(__file__).parents[1]))
    from matchers import Guidance, Outlines, Xgrammar

    actions = ["run a", "run c", "fail"]
    constraint = plan_constraint(profile, actions, ["run a", "run b", "run c", "complete", "fail"])
    kinds: dict[str, Any] = {"guidance": Guidance, "xgrammar": Xgrammar, "outlines": Outlines}
    matcher = kinds[profile](constraint.text)
    assert matcher.accepts(answer("run a"))
    assert matcher.accepts(answer("run c", "run a", "fail", reason="a b, c. d"))
    assert not matcher.accepts(answer("run z"))
    assert not matcher.accepts(answer("run a", "fail", "fail", "fail"))
    assert not matcher.accepts(answer("run a", reason=""))
    assert not matcher.accepts(answer("run a")[:-1])
    assert matcher.accepts(answer("run b")) == (profile == "outlines"), "there the rules judge"


@pytest.mark.parametrize(
    "said",
    [
        Completion("{", (), "length", 1, 0, 1, 0.0, 0.0),
        "",
        "{}",
        '{"reason":"x","choice":7,"alternatives":[]}',
        '{"reason":"x","choice":"dance a","alternatives":[]}',
    ],
)
async def test_an_answer_that_is_no_plan_stops_the_run_and_loses_nothing(said: Any) -> None:
    called.clear()
    manager = TaskManager[Any](MemoryStore(), "s")
    manager.create(WORKFLOW, task="t")
    runner = Runner(manager, Toolbox([say]), engine=ScriptedEngine([answer("run c"), said], check=False))
    with pytest.raises(OutputTruncated):
        await runner.run("t")
    assert manager.get("t").steps["c"].status == "completed"  # type: ignore[index]
    script = [answer("run a"), answer("run b"), answer("complete")]
    state = await Runner(manager, Toolbox([say]), engine=ScriptedEngine(script)).run("t")
    assert (state.status, called) == ("completed", ["c", "a", "b"])


async def test_a_state_that_does_not_fit_the_window_is_said_to() -> None:
    with pytest.raises(PromptTooLong, match="a plan needs"):
        await play([answer("run a")], context_window=900)


async def test_a_workflow_for_a_model_needs_one() -> None:
    manager = TaskManager[Any](MemoryStore(), "s")
    manager.create(WORKFLOW, task="t")
    with pytest.raises(UsageError, match="planned by a model, and there is none"):
        await Runner(manager, Toolbox([say])).run("t")


async def test_a_replay_needs_no_model() -> None:
    _, engine, manager = await play([answer("run c"), answer("run a"), answer("run b"), answer("complete")])
    asked = len(engine.prompts)
    frames = await history.replay(manager, "t")
    assert len(engine.prompts) == asked
    assert [f.divergence for f in frames if f.divergence] == []
    assert sum(isinstance(f.event, Planned) for f in frames) == 3
