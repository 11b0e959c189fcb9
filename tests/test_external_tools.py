"""Tools that whoever asks runs: the request waits durably, and goes on with the result, in whatever process."""

from typing import Any

import pytest

from flowstate_local.errors import UsageError
from flowstate_local.events import ToolFailure
from flowstate_local.loop import Agent
from flowstate_local.nodes import EvidenceId
from flowstate_local.stores.memory import MemoryStore
from flowstate_local.testing import ScriptedEngine, step
from flowstate_local.tools import Tool, tool

pytestmark = pytest.mark.anyio

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = Tool.from_schema("weather", "The weather in a city.", SCHEMA, None)
T1, T2 = EvidenceId("t1"), EvidenceId("t2")


@tool(idempotent=True)
def clock() -> str:
    """The time."""
    return "noon"


def agent_of(store: MemoryStore, *script: Any) -> Agent:
    return Agent(ScriptedEngine(script, check=False), store, [WEATHER, clock])


ASKS = step(calls=[("weather", {"city": "Rome"})])
KNOWS = step(
    delta=[{"type": "knowledge", "id": "n1", "evidence": ["t1"], "summary": "Rome: rain"}],
    message="It rains.",
)


async def test_the_request_waits_and_another_process_brings_the_result() -> None:
    store = MemoryStore()
    waits = await agent_of(store, ASKS).run("Weather in Rome?", space="s")
    assert (waits.outcome, waits.message) == ("waiting", "")
    assert waits.call is not None
    assert (waits.call.evidence, waits.call.name, waits.call.arguments) == (T1, "weather", {"city": "Rome"})
    assert store.head("s").open_request == "r1"
    still = await agent_of(store).resume("s")
    assert still is not None
    assert still.call is not None
    assert still.call.evidence == T1
    later = agent_of(store, KNOWS)
    done = await later.supply("s", T1, b"rain \xff all day", duration_s=2.0)
    assert (done.outcome, done.message, done.call) == ("replied", "It rains.", None)
    assert "t1 weather: rain" in later.engine.prompts[0]  # type: ignore[attr-defined]
    record = store.reader("s").evidence(T1)
    assert record is not None
    assert store.reader("s").blob(record.digest) == b"rain \xff all day"
    assert store.verify("s") == []


async def test_a_failure_is_told_to_the_model() -> None:
    store = MemoryStore()
    await agent_of(store, ASKS).run("Weather?", space="s")
    later = agent_of(store, step(message="I can't know."))
    failure = ToolFailure(kind="offline", message="no network")
    done = await later.supply("s", T1, "no network", failure=failure)
    assert done.message == "I can't know."
    assert "no network" in later.engine.prompts[0]  # type: ignore[attr-defined]


async def test_calls_of_one_step_are_awaited_one_by_one_beside_those_that_run_here() -> None:
    store = MemoryStore()
    both = step(calls=[("weather", {"city": "Rome"}), ("clock", {}), ("weather", {"city": "Oslo"})])
    first = await agent_of(store, both).run("Weather?", space="s")
    second = await agent_of(store).supply("s", T1, "rain")
    assert first.call is not None
    assert second.call is not None
    assert second.call.arguments == {"city": "Oslo"}
    later = agent_of(store, step(message="done"))
    done = await later.supply("s", EvidenceId("t3"), "snow")
    assert done.outcome == "replied"
    for said in ("t1 weather: rain", "t2 clock: noon", "t3 weather: snow"):
        assert said in later.engine.prompts[0]  # type: ignore[attr-defined]


async def test_only_the_result_that_is_awaited_is_taken() -> None:
    store = MemoryStore()
    agent = agent_of(store, ASKS, KNOWS)
    for nothing in (T1, T2):
        with pytest.raises(UsageError, match="no request waits"):
            await agent.supply("s", nothing, "rain")
    await agent.run("Weather?", space="s")
    with pytest.raises(UsageError, match="waits for t1"):
        await agent.supply("s", T2, "rain")
    await agent.supply("s", T1, "rain")
    with pytest.raises(UsageError, match="no request waits"):
        await agent.supply("s", T1, "rain again")
    assert store.verify("s") == []


async def test_arguments_that_can_not_be_right_never_leave_the_house() -> None:
    store = MemoryStore()
    agent = agent_of(store, step(calls=[("weather", {"town": 3})]), step(message="sorry"))
    done = await agent.run("Weather?", space="s")
    assert (done.outcome, done.message) == ("replied", "sorry")


async def test_a_waiting_request_can_be_given_up() -> None:
    store = MemoryStore()
    await agent_of(store, ASKS).run("Weather?", space="s")
    given_up = await agent_of(store).abandon("s")
    assert given_up is not None
    assert given_up.outcome == "cancelled"
    with pytest.raises(UsageError, match="no request waits"):
        await agent_of(store).supply("s", T1, "rain")
    again = await agent_of(store, step(message="hello")).run("Hello", space="s")
    assert again.outcome == "replied"
    assert store.verify("s") == []
