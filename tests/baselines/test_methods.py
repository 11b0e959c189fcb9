"""What every method under test promises, and what is special about each. A new method adds one line to `MAKE`."""

import asyncio
import json
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from flowstate_local.baselines.base import Answer, Budget, Method, MethodFactory, Setting
from flowstate_local.baselines.bm25 import Bm25
from flowstate_local.baselines.flowstate import FlowState
from flowstate_local.baselines.full_context import FullContext
from flowstate_local.baselines.mem0 import Mem0
from flowstate_local.baselines.react import React, dump_react
from flowstate_local.baselines.reasoning_bank import MEMORY_ARENA, ORIGINAL, ReasoningBank
from flowstate_local.baselines.without_isu import AgentWithoutIsu
from flowstate_local.baselines.without_psa import AgentWithoutPsa
from flowstate_local.baselines.zipact import ZipAct, ZipActBm25
from flowstate_local.bench.rehearsal import RehearsedEngine
from flowstate_local.completion import Completion, Sampling
from flowstate_local.stores.memory import MemoryStore
from flowstate_local.testing import BagOfWords, step
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
    "flowstate_raw": lambda setting: FlowState(setting, MemoryStore(), raw_steps=3),
    "without_isu": lambda setting: FlowState(setting, MemoryStore(), agent=AgentWithoutIsu),
    "without_psa": lambda setting: FlowState(setting, MemoryStore(), agent=AgentWithoutPsa),
    "react": React,
    "full_context": FullContext,
    "bm25": Bm25,
    "zipact": ZipAct,
    "zipact_bm25": ZipActBm25,
}
OPEN: list[Method] = []


def method_of(name: str, engine: RehearsedEngine) -> Method:
    """Closed when the test has ended."""
    OPEN.append(MAKE[name](Setting(engine, TOOLS, BUDGET)))
    return OPEN[-1]


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    while OPEN:
        asyncio.run(OPEN.pop().close())


FLOWSTATE = ("flowstate", "flowstate_raw", "without_isu", "without_psa")
every_method = pytest.mark.parametrize("name", list(MAKE))


def engine_of(name: str, script: Iterable[Any], **options: Any) -> RehearsedEngine:
    """An engine that says the same in the form of each method: (calls, message), or something verbatim."""

    def said(one: Any) -> Any:
        if not isinstance(one, tuple):
            return one
        calls, message = one
        if name in FLOWSTATE:
            return step(calls=calls, message=message)
        return dump_react("so", calls, message)

    return RehearsedEngine(map(said, script), check=False, **options)


def steps_of(answer: Answer) -> list[tuple[int, int, str]]:
    """Request, step, fault of its steps; the upkeep of a memory left out."""
    return [(u.request, u.step, u.fault) for u in answer.usage if u.cause != "memory"]


LOOK: Any = ([("look_up", {"topic": "oxen"})], "")
DONE: Any = ([], "done")


@every_method
async def test_a_request_ends_with_a_reply_and_every_call_is_accounted_for(name: str) -> None:
    engine = engine_of(name, [LOOK, DONE, DONE])
    method = method_of(name, engine)
    answer = await method.ask("Look up oxen", date="2026-03-01")
    assert (answer.outcome, answer.message) == ("replied", "done")
    assert steps_of(answer) == [(1, 1, ""), (1, 2, "")]
    assert [u.prompt_tokens for u in answer.usage] == [len(ids) for ids in engine.prompt_ids]
    assert all(u.generated_tokens > 0 for u in answer.usage)
    second = await method.ask("And?", date="2026-03-02")
    assert second.usage[0].request == 2
    assert "2026-03-02" in engine.step_prompts[-1]


@every_method
async def test_instructions_stand_in_the_static_part(name: str) -> None:
    engine = engine_of(name, [DONE, DONE])
    setting = Setting(engine, TOOLS, BUDGET, instructions="Never sell oxen.")
    method = MAKE[name](setting)
    for request in ("One", "Two"):
        answer = await method.ask(request)
        assert [u for u in answer.usage if u.cause != "memory"][0].segments["instructions"] > 0
    await method.close()
    for prompt, request in zip(engine.step_prompts, ("One", "Two"), strict=True):
        assert prompt.index("Never sell oxen.") < prompt.rindex(f"REQUEST\n{request}")


@every_method
async def test_the_observation_is_in_the_next_prompt_and_the_prefix_stays(name: str) -> None:
    engine = engine_of(name, [LOOK, DONE])
    await method_of(name, engine).ask("Look up oxen")
    assert "All there is to know about oxen" in engine.step_prompts[1]
    first, second = map(engine.tokenizer.encode_frame, engine.step_prompts)
    shared = next((i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), len(first))
    assert shared > (0.5 if name.startswith("zipact") else 0.8) * len(first)


@every_method
@pytest.mark.parametrize(
    ("fault", "said"), [("cut_off", Completion("{", (), "length", 1, 0, 1, 0.0, 0.0)), ("unparsable", "{}")]
)
async def test_faults_are_counted_and_three_end_the_request(name: str, fault: str, said: Any) -> None:
    answer = await method_of(name, engine_of(name, [said, DONE])).ask("Go")
    assert (answer.outcome, [u[2] for u in steps_of(answer)]) == ("replied", [fault, ""])
    answer = await method_of(name, engine_of(name, [said] * 3)).ask("Go")
    assert (answer.outcome, len(steps_of(answer))) == ("failed", 3)


@every_method
async def test_the_budget_of_steps_holds(name: str) -> None:
    looks: Any = [([("look_up", {"topic": f"ox {i}"})], "") for i in range(9)]
    answer = await method_of(name, engine_of(name, looks)).ask("Go")
    assert (answer.outcome, len(steps_of(answer))) == ("step_budget", 4)


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


async def test_without_isu_each_reply_is_one_node_on_the_results_of_its_request() -> None:
    store = MemoryStore()
    engine = engine_of("without_isu", [LOOK, DONE, LOOK, DONE])
    method = FlowState(Setting(engine, TOOLS, BUDGET), store, agent=AgentWithoutIsu)
    await method.ask("Look up oxen")
    await method.ask("Look up oxen again")
    nodes = list(store.nodes("episode"))
    assert [(n.id, n.summary, n.content, n.evidence) for n in nodes] == [
        ("n1", "done", "done", ("t1",)),
        ("n2", "done", "done", ("t2",)),
    ]
    assert store.verify("episode") == []
    assert "n1 knowledge: done" in engine.prompts[2], "the index stays"
    written = json.loads(engine.constraints[1].text)  # type: ignore[union-attr]
    assert all(shape["properties"]["state_delta"]["maxItems"] == 0 for shape in written["anyOf"])


async def test_without_psa_all_nodes_stand_in_the_state_and_nothing_can_be_opened() -> None:
    store = MemoryStore()
    node = {"type": "knowledge", "id": "n1", "evidence": ["t1"], "summary": "Oxen are strong"}
    engine = engine_of("without_psa", [LOOK, step(delta=[node], message="done"), LOOK, step(message="done")])
    method = FlowState(Setting(engine, TOOLS, BUDGET), store, agent=AgentWithoutPsa)
    await method.ask("Look up oxen")
    answer = await method.ask("Are oxen strong?")
    turn = engine.prompts[2].rpartition("INDEX\n")[2]
    assert turn.startswith("(empty)")
    assert "opened n1 knowledge (evidence t1): Oxen are strong" in turn
    assert answer.looks == 0, "what stands there from the start was not looked at"
    shapes = json.loads(engine.constraints[2].text)["anyOf"]  # type: ignore[union-attr]
    assert all(shape["properties"]["state_focus"]["maxItems"] == 0 for shape in shapes)


async def test_the_raw_buffer_holds_the_last_steps_whole_and_no_more() -> None:
    looks: Any = [([("look_up", {"topic": f"ox {i}"})], "") for i in range(5)]
    engine = engine_of("flowstate_raw", [*looks, DONE])
    method = FlowState(Setting(engine, TOOLS, Budget(sampling=BUDGET.sampling)), MemoryStore(), raw_steps=3)
    answer = await method.ask("Look them up")
    buffer = engine.prompts[-1].partition("LAST STEPS\n")[2].partition("OBSERVATION\n")[0]
    assert [f"ox {i}" in buffer for i in range(5)] == [False, False, True, True, True]
    assert buffer.count("All there is to know") == 2, "the newest result is left to the observation"
    assert answer.usage[0].segments["raw_buffer"] == 0 < answer.usage[-1].segments["raw_buffer"]


async def test_zipact_keeps_a_state_instead_of_the_history() -> None:
    other: Any = ([("look_up", {"topic": "ferries"})], "")
    engine = engine_of("zipact", [LOOK, other, DONE, DONE])
    method = ZipAct(Setting(engine, TOOLS, BUDGET))
    answer = await method.ask("Look up oxen and ferries")
    assert [u.cause for u in answer.usage] == ["memory", "step", "memory", "step", "memory", "step", "memory"]
    third = engine.step_prompts[2]
    assert "All there is to know about ferries" in third
    assert "All there is to know about oxen" not in third, "only the last observation"
    assert 'STATE\n{"goal_state":' in third
    assert '"attempted_actions":["look_up {' in third
    await method.ask("And?")
    assert "world_state" in engine.step_prompts[3], "the state lives on"
    assert "Look up oxen" not in engine.step_prompts[3].rpartition("STATE")[2]


@pytest.mark.parametrize("said", ["not json", Completion("{", (), "length", 1, 0, 1, 0.0, 0.0)])
async def test_an_update_of_which_nothing_can_be_used_keeps_the_state_and_is_counted(said: Any) -> None:
    class Faulty(RehearsedEngine):
        def _reply(self, prompt: str, constraint: Any) -> Any:
            reply = super()._reply(prompt, constraint)
            return said if '"assistant_message"' not in constraint.text else reply

    method = ZipAct(Setting(Faulty([dump_react("", message="done")], check=False), TOOLS, BUDGET))
    answer = await method.ask("Go")
    assert answer.outcome == "replied"
    faults = [u.fault for u in answer.usage if u.cause == "memory"]
    assert faults == (["unparsable"] * 2 if said == "not json" else ["cut_off"] * 2)


@every_method
async def test_a_call_that_was_just_made_is_not_made_again_and_a_reply_follows(name: str) -> None:
    engine = engine_of(name, [LOOK, LOOK, DONE])
    answer = await method_of(name, engine).ask("Look up oxen")
    assert answer.outcome == "replied"
    assert engine.step_prompts[2].count("look_up") < 3 + engine.step_prompts[1].count("look_up")
    last = json.loads(engine.constraints[engine.prompts.index(engine.step_prompts[2])].text)  # type: ignore[union-attr]
    assert all(shape["properties"]["tool_calls"].get("maxItems", 1) == 0 for shape in last["anyOf"])
