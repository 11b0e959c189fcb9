"""Rails: what a step is offered, seen in its grammar and at the end of its prompt, and that they never lock it in."""

import inspect
import json
import re
from collections.abc import Callable, Iterable

import pytest

from flowstate_local import rails
from flowstate_local.loop import Agent
from flowstate_local.protocol import StepOutput
from flowstate_local.rules import EXAMPLES
from flowstate_local.stores.memory import MemoryStore
from flowstate_local.testing import Reply, ScriptedEngine, step
from flowstate_local.tools import tool

pytestmark = pytest.mark.anyio


@tool(idempotent=True)
def price(item: str) -> str:
    """Tell what an item costs."""
    return f"{item} costs 41 dollars"


@tool
def order(item: str) -> str:
    """Order an item."""
    return f"{item} is ordered"


@tool(idempotent=True)
def broken() -> str:
    """Fail."""
    raise ValueError("out of service")


def add(node_id: str, summary: str, kind: str = "knowledge", **fields: object) -> dict[str, object]:
    return {"type": kind, "id": node_id, "summary": summary, "refs": [], "evidence": [], **fields}


async def play(
    script: Iterable[Reply] | Callable[[str], Reply], *requests: str, check: bool = False
) -> Agent:
    engine = ScriptedEngine(script, check=check)
    agent = Agent(engine, MemoryStore(), [price, order, broken], clock=lambda: 0.0)
    for request in requests or ("Go",):
        await agent.run(request, space="s")
    return agent


def shapes(agent: Agent, number: int) -> set[str]:
    """What the grammar of a step offers: look, act, reply, note; with a + where nodes must, with a - where none may."""
    assert isinstance(agent.engine, ScriptedEngine)
    constraint = agent.engine.constraints[number]
    assert constraint is not None
    return {_shape(option) for option in json.loads(constraint.text)["anyOf"]}


def _shape(option: dict[str, dict[str, dict[str, object]]]) -> str:
    parts = option["properties"]
    focus, delta, calls = (parts[name] for name in ("state_focus", "state_delta", "tool_calls"))
    if focus.get("maxItems") != 0:
        return "look"
    if delta.get("maxItems") == 0:
        sign = "-"
    else:
        variants = delta.get("anyOf", [delta])
        sign = "+" if all(variant.get("minItems") for variant in variants) else ""
    if calls.get("maxItems") != 0:
        return f"act{sign}"
    return f"note{sign}" if parts["assistant_message"] == {"enum": [""]} else f"reply{sign}"


def advice(agent: Agent, number: int) -> str:
    assert isinstance(agent.engine, ScriptedEngine)
    return agent.engine.prompts[number].split("\nWrite step ")[-1].split(". ", 1)[1].split("\n")[0]


def test_the_examples_give_the_advice_that_the_rails_give() -> None:
    given = inspect.getsource(rails.advice)
    sentences = re.findall(r"Write step \d\. (.+)\n", EXAMPLES)
    assert len(sentences) > 10
    assert [sentence for sentence in sentences if f'"{sentence}"' not in given] == []


async def test_at_first_nothing_is_promised_and_only_wishes_are_noted() -> None:
    agent = await play([step(delta=[add("n1", "quiet rooms", "preference")]), step(message="ok")], check=True)
    assert shapes(agent, 0) == {"act-", "note+"}
    assert advice(agent, 0).startswith("Told to remember: note it.")
    assert "reply" in shapes(agent, 1) or "reply-" in shapes(agent, 1)
    assert advice(agent, 1) == "Reply, if the request is answered."


async def test_a_result_is_written_down_before_it_is_gone_from_the_prompt() -> None:
    script = [
        step(calls=[("price", {"item": "tea"})]),
        step(delta=[add("n1", "tea costs 41", evidence=["t1"])], message="41"),
    ]
    agent = await play(script, check=True)
    assert shapes(agent, 1) == {"act+", "reply+", "note+"}
    assert advice(agent, 1).startswith("Record the result.")


async def test_an_effect_is_recorded_before_anything_else_is_done() -> None:
    script = [
        step(calls=[("order", {"item": "tea"})]),
        step(delta=[add("n1", "tea is ordered", "judgement", evidence=["t1"])]),
        step(message="ordered"),
    ]
    agent = await play(script, check=True)
    assert shapes(agent, 1) == {"reply+", "note+"}
    assert shapes(agent, 2) >= {"act-", "reply"}
    assert advice(agent, 2) == "Reply, if the request is answered."


async def test_a_decision_written_beside_its_call_is_record_enough() -> None:
    script = [
        step(calls=[("price", {"item": "tea"})]),
        step(delta=[add("n1", "41 is fine: order", "judgement")], calls=[("order", {"item": "tea"})]),
        step(delta=[add("n2", "tea is ordered")], message="ordered"),
    ]
    agent = await play(script, check=True)
    assert shapes(agent, 2) >= {"act+", "reply+"}


async def test_a_failure_leaves_nothing_to_record() -> None:
    agent = await play(
        [step(calls=[("broken", {})]), step(calls=[("price", {"item": "tea"})]), step(message="41")]
    )
    assert shapes(agent, 1) == {"act-", "note+"}
    assert advice(agent, 1).startswith("It failed.")


async def test_after_a_repeated_call_its_result_is_shown_again_and_only_a_reply_is_left() -> None:
    call = step(calls=[("price", {"item": "tea"})])
    agent = await play([call, call, step(message="41")], check=False)
    assert shapes(agent, 2) == {"reply"}
    assert advice(agent, 2) == "This is known already. Reply to the request."
    assert isinstance(agent.engine, ScriptedEngine)
    assert "OBSERVATION\nt1 price: tea costs 41 dollars\n" in agent.engine.prompts[2]


async def test_a_call_that_failed_twice_leaves_a_wish_to_be_noted() -> None:
    call = step(calls=[("broken", {})])
    script = [call, call, step(delta=[add("n1", "quiet rooms", "preference")]), step(message="ok")]
    agent = await play(script, "Remember: quiet rooms")
    assert shapes(agent, 2) == {"note+"}
    assert [node.summary for node in agent.store.nodes("s")] == ["quiet rooms"]


async def test_what_rests_on_a_made_up_fact_is_not_done() -> None:
    guess = step(delta=[add("n1", "tea costs 99")], calls=[("order", {"item": "tea"})])
    right = step(delta=[add("n1", "tea costs 41", evidence=["t1"])], calls=[("order", {"item": "tea"})])
    agent = await play(
        [
            step(calls=[("price", {"item": "tea"})]),
            guess,
            right,
            step(delta=[add("n2", "tea is ordered")], message="ordered"),
        ]
    )
    names = [event.name for event in agent.store.events("s") if event.kind == "ToolStarted"]
    assert names == ["price", "order"]
    assert shapes(agent, 2) == {"act+", "note+"}
    assert isinstance(agent.engine, ScriptedEngine)
    assert "refused n1: ungrounded_number: 99 was read nowhere" in agent.engine.prompts[2]
    assert "refused order: deferred" in agent.engine.prompts[2]


async def test_only_what_was_read_can_be_superseded() -> None:
    old = step(delta=[add("n1", "one", "judgement")], message="ok")
    agent = await play(
        [step(calls=[("price", {"item": "tea"})]), old, step(focus=["n1"]), step(message="ok")], "A", "B"
    )
    assert isinstance(agent.engine, ScriptedEngine)
    unread, read = (agent.engine.constraints[i] for i in (2, 3))
    assert unread is not None
    assert read is not None
    assert '"supersedes"' not in unread.text
    assert '"supersedes"' in read.text


async def test_a_model_that_only_makes_facts_up_is_stopped() -> None:
    guess = StepOutput.model_validate(
        step(delta=[add("n1", "tea costs 99")], calls=[("order", {"item": "tea"})]).model_dump()
    )
    agent = await play(lambda _: guess)
    record = list(agent.store.requests("s"))[0]
    assert record.outcome == "no_progress"
    assert agent.store.verify("s") == []
