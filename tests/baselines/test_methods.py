"""What every method under test promises, and what is special about each. A new method adds one line to `MAKE`."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from memory_script import is_for_memory, memory_reply

from flowstate_local.baselines.base import Answer, Budget, Method, MethodFactory, Setting, Usage
from flowstate_local.baselines.bm25 import Bm25
from flowstate_local.baselines.flowstate import FlowState
from flowstate_local.baselines.full_context import FullContext
from flowstate_local.baselines.mem0 import Mem0
from flowstate_local.baselines.react import React, dump_react
from flowstate_local.baselines.reasoning_bank import MEMORY_ARENA, ORIGINAL, ReasoningBank
from flowstate_local.completion import Completion, Sampling
from flowstate_local.errors import EngineUnavailable
from flowstate_local.stores.memory import MemoryStore
from flowstate_local.testing import BagOfWords, ScriptedEngine, step
from flowstate_local.tools import Toolbox, tool

pytestmark = pytest.mark.anyio


@tool(idempotent=True)
def look_up(topic: str) -> str:
    """Look a topic up."""
    return f"All there is to know about {topic}. " + "It goes on. " * 20


TOOLS = Toolbox([look_up])
BUDGET = Budget(sampling=Sampling(max_tokens=2_000), max_steps=4, memory_tokens=400)
MAKE: dict[str, MethodFactory] = {
    "mem0": lambda setting: Mem0(setting, BagOfWords()),
    "reasoning_bank": lambda setting: ReasoningBank(setting, BagOfWords(), ORIGINAL),
    "reasoning_bank_memory_arena": lambda setting: ReasoningBank(setting, BagOfWords(), MEMORY_ARENA),
    "flowstate": lambda setting: FlowState(setting, MemoryStore()),
    "react": React,
    "full_context": FullContext,
    "bm25": Bm25,
}
METHODS: dict[str, Callable[[ScriptedEngine], Method]] = {
    name: lambda engine, make=make: make(Setting(engine, TOOLS, BUDGET))  # type: ignore[misc]
    for name, make in MAKE.items()
}
every_method = pytest.mark.parametrize("name", list(METHODS))


def engine_of(name: str, script: Iterable[Any], **options: Any) -> ScriptedEngine:
    """An engine that says the same in the form of each method: (calls, message), or something verbatim."""

    def said(one: Any) -> Any:
        if not isinstance(one, tuple):
            return one
        calls, message = one
        if name == "flowstate":
            return step(calls=calls, message=message)
        return dump_react("so", calls, message)

    replies = map(said, script)

    def play(prompt: str) -> Any:
        if is_for_memory(prompt):
            return memory_reply(prompt)
        reply = next(replies, None)
        if reply is None:
            raise EngineUnavailable("the script has no more replies")
        return reply

    return ScriptedEngine(play, check=False, **options)


def agent_prompts(engine: ScriptedEngine) -> list[list[int]]:
    """Those of the agent's steps, without the calls for its memory."""
    decode = engine.tokenizer.decode
    return [ids for ids in engine.prompt_ids if not is_for_memory(decode(ids))]


def steps_of(answer: Answer) -> list[Usage]:
    return [u for u in answer.usage if u.cause == "step"]


LOOK: Any = ([("look_up", {"topic": "oxen"})], "")
DONE: Any = ([], "done")


@every_method
async def test_a_request_ends_with_a_reply_and_every_call_is_accounted_for(name: str) -> None:
    engine = engine_of(name, [LOOK, DONE, DONE])
    method = METHODS[name](engine)
    answer = await method.ask("Look up oxen", date="2026-03-01")
    assert (answer.outcome, answer.message) == ("replied", "done")
    assert [(u.request, u.step, u.fault) for u in steps_of(answer)] == [(1, 1, ""), (1, 2, "")]
    assert [u.prompt_tokens for u in answer.usage] == [len(ids) for ids in engine.prompt_ids]
    assert all(u.generated_tokens > 0 for u in answer.usage)
    second = await method.ask("And?", date="2026-03-02")
    assert second.usage[0].request == 2
    assert "2026-03-02" in engine.tokenizer.decode(agent_prompts(engine)[-1])
    assert len(answer.usage) + len(second.usage) == len(engine.prompts)
    await method.close()


@every_method
async def test_instructions_stand_in_the_static_part(name: str) -> None:
    engine = engine_of(name, [DONE, DONE])
    setting = Setting(engine, TOOLS, BUDGET, instructions="Never sell oxen.")
    method = MAKE[name](setting)
    for request in ("One", "Two"):
        answer = await method.ask(request)
        assert answer.usage[0].segments["instructions"] > 0
    await method.close()
    prompts = [engine.tokenizer.decode(ids) for ids in agent_prompts(engine)]
    assert all(
        p.index("Never sell oxen.") < p.index("REQUEST\n" + r)
        for p, r in zip(prompts, ("One", "Two"), strict=True)
    )


@every_method
async def test_the_observation_is_in_the_next_prompt_and_the_prefix_stays(name: str) -> None:
    engine = engine_of(name, [LOOK, DONE])
    method = METHODS[name](engine)
    await method.ask("Look up oxen")
    await method.close()
    assert "All there is to know about oxen" in engine.prompts[1]
    first, second = agent_prompts(engine)
    shared = next((i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), len(first))
    assert shared > 0.8 * len(first)


@every_method
@pytest.mark.parametrize(
    ("fault", "said"), [("cut_off", Completion("{", (), "length", 1, 0, 1, 0.0, 0.0)), ("unparsable", "{}")]
)
async def test_faults_are_counted_and_three_end_the_request(name: str, fault: str, said: Any) -> None:
    method = METHODS[name](engine_of(name, [said, DONE, said, said, said]))
    answer = await method.ask("Go")
    assert (answer.outcome, [u.fault for u in steps_of(answer)]) == ("replied", [fault, ""])
    answer = await method.ask("Go")
    assert (answer.outcome, len(steps_of(answer))) == ("failed", 3)
    await method.close()


@every_method
async def test_the_budget_of_steps_holds(name: str) -> None:
    looks: Any = [([("look_up", {"topic": f"ox {i}"})], "") for i in range(9)]
    method = METHODS[name](engine_of(name, looks))
    answer = await method.ask("Go")
    assert (answer.outcome, len(steps_of(answer))) == ("step_budget", 4)
    await method.close()


async def test_full_context_keeps_everything_and_says_when_it_no_longer_fits() -> None:
    engine = engine_of("full_context", [LOOK, DONE] * 20, context_window=3_200)
    method = FullContext(Setting(engine, TOOLS, BUDGET))
    outcomes = [(await method.ask(f"Request {i}")).outcome for i in range(12)]
    assert outcomes[0] == "replied"
    assert outcomes[-1] == "overflow"
    assert "Request 0" in engine.prompts[-1]
    assert "overflow" not in outcomes[: outcomes.index("overflow")]


async def test_full_context_is_append_only_across_requests() -> None:
    engine = engine_of("full_context", [LOOK, DONE, DONE])
    method = FullContext(Setting(engine, TOOLS, BUDGET))
    await method.ask("One")
    answer = await method.ask("Two")
    assert answer.usage[0].cached_tokens > 0.7 * len(engine.prompt_ids[1])
    assert answer.usage[0].segments["memory"] > 0


async def test_bm25_puts_what_shares_words_before_the_request_within_its_budget() -> None:
    script: Any = []
    for topic in ("oxen", "ferries", "gardens"):
        script += [([("look_up", {"topic": topic})], ""), DONE]
    engine = engine_of("bm25", [*script, DONE])
    method = Bm25(Setting(engine, TOOLS, BUDGET))
    for topic in ("oxen", "ferries", "gardens"):
        await method.ask(f"Look up {topic}")
    answer = await method.ask("What of the ferries?")
    memory = engine.prompts[-1].partition("From earlier requests")[2].partition("REQUEST\nWhat of")[0]
    assert "ferries" in memory
    assert 0 < answer.usage[0].segments["memory"] <= BUDGET.memory_tokens + 10


async def test_react_remembers_nothing() -> None:
    engine = engine_of("react", [LOOK, DONE, DONE])
    method = React(Setting(engine, TOOLS, BUDGET))
    await method.ask("Look up oxen")
    await method.ask("And?")
    assert "Look up oxen" not in engine.prompts[-1]


@pytest.mark.parametrize("profile", ["guidance", "xgrammar", "outlines"])
@pytest.mark.parametrize("may_act", [True, False])
def test_the_grammar_of_a_plain_step(profile: Any, may_act: bool) -> None:
    import sys
    from pathlib import Path

    sys.path.insert(0, str(Path(__file__).parents[1]))
    from matchers import Guidance, Outlines, Xgrammar

    from flowstate_local.grammar import react_constraint

    kinds: dict[str, Any] = {"guidance": Guidance, "xgrammar": Xgrammar, "outlines": Outlines}
    matcher = kinds[profile](react_constraint(profile, TOOLS, 1_000, may_act=may_act).text)
    assert matcher.accepts(dump_react("I see", message="done"))
    assert matcher.accepts(dump_react("", message="done"))
    assert matcher.accepts(dump_react("I look", [("look_up", {"topic": "ox"})])) == may_act
    for bad in (
        dump_react("nothing"),
        dump_react("both", [("look_up", {"topic": "ox"})], "done"),
        dump_react("x", [("dance", {})]),
        '{"tool_calls":[],"assistant_message":"done"}',
    ):
        assert not matcher.accepts(bad), bad
