"""ReasoningBank: what is stored, what is recalled, and what happens when its model calls go wrong."""

from collections.abc import Sequence
from typing import Any

import pytest
from memory_script import kind_of, lessons, verdict

from flowstate_local.baselines.base import Budget, Setting
from flowstate_local.baselines.memory_call import MemoryCall, call_for_memory
from flowstate_local.baselines.react import dump_react
from flowstate_local.baselines.reasoning_bank import (
    EMBEDDED_CHARS,
    JUDGE_RULES,
    MEMORY_ARENA,
    ORIGINAL,
    QUERY_PREFIX,
    ReasoningBank,
    Variant,
    Verdict,
)
from flowstate_local.completion import Completion, Sampling
from flowstate_local.errors import PromptTooLong
from flowstate_local.testing import BagOfWords, ScriptedEngine, check_constraint
from flowstate_local.tools import Toolbox

pytestmark = pytest.mark.anyio
BUDGET = Budget(sampling=Sampling(max_tokens=2_000), max_steps=4, memory_tokens=400)
DONE = dump_react("so", message="done")
CUT_OFF = Completion('{"items":[', (), "length", 1, 0, 1, 0.0, 0.0)
both = pytest.mark.parametrize("variant", [ORIGINAL, MEMORY_ARENA], ids=lambda variant: variant.name)


def bank_of(
    variant: Variant, replies: Sequence[Any], *, budget: Budget = BUDGET, window: int = 32_768
) -> tuple[ReasoningBank, ScriptedEngine, BagOfWords]:
    engine, embedder = ScriptedEngine(iter(replies), context_window=window), BagOfWords()
    return ReasoningBank(Setting(engine, Toolbox([]), budget), embedder, variant), engine, embedder


@both
async def test_a_request_is_judged_and_its_lessons_are_kept(variant: Variant) -> None:
    bank, engine, embedder = bank_of(variant, [DONE, verdict(), lessons("order", "care")])
    answer = await bank.ask("Order the oxen")
    assert [kind_of(prompt) for prompt in engine.prompts] == ["", "judge", "success"]
    assert "Order the oxen" in engine.prompts[1]
    assert "END: replied" in engine.prompts[1]
    (record,) = bank.records
    assert (record.request, record.query, record.status) == (1, "Order the oxen", "success")
    assert [item.title for item in record.items] == ["order", "care"]
    assert [(u.step, u.cause) for u in answer.usage] == [(1, "step"), (2, "memory"), (3, "memory")]
    assert [u.prompt_tokens for u in answer.usage] == [len(ids) for ids in engine.prompt_ids]
    (embedded,) = embedder.texts
    assert embedded == ("Order the oxen" if variant is ORIGINAL else embedded)
    assert "END: replied" in embedded or variant is ORIGINAL


async def test_a_failed_request_gets_the_other_prompt() -> None:
    bank, engine, _ = bank_of(ORIGINAL, [DONE, verdict("failure"), lessons("care")])
    await bank.ask("Order the oxen")
    assert kind_of(engine.prompts[2]) == "failure"
    assert bank.records[0].status == "failure"


@both
async def test_every_output_keeps_to_its_grammar(variant: Variant) -> None:
    bank, engine, _ = bank_of(variant, [DONE, verdict(), lessons("order")])
    await bank.ask("Order the oxen")
    for said, constraint in zip([DONE, verdict(), lessons("order")], engine.constraints, strict=True):
        assert constraint is not None
        check_constraint(said, constraint)
    with pytest.raises(AssertionError):
        check_constraint(lessons("a", "b", "c", "d"), engine.constraints[2])  # type: ignore[arg-type]


def script(*topics: str) -> list[str]:
    return [reply for topic in topics for reply in (DONE, verdict(), lessons(topic))]


async def test_the_original_recalls_the_lessons_of_the_nearest_request() -> None:
    bank, engine, _ = bank_of(ORIGINAL, script("oxen", "ferries", "gardens", "more"))
    for topic in ("oxen", "ferries", "gardens"):
        await bank.ask(f"Tell me of {topic}")
    answer = await bank.ask("What is known of ferries?")
    prompt = engine.prompts[9]
    assert "- ferries: About ferries." in prompt
    assert "oxen" not in prompt.partition("Lessons from earlier requests")[2]
    assert prompt.index("- ferries:") < prompt.index("REQUEST\nWhat is known")
    assert answer.usage[0].segments["memory"] > 0


async def test_memory_arena_recalls_five_whole_records_nearest_first() -> None:
    topics = ["oxen", "ferries", "gardens", "lamps", "roofs", "boats"]
    bank, engine, embedder = bank_of(
        MEMORY_ARENA, script(*topics, "more"), budget=Budget(memory_tokens=2_000)
    )
    for topic in topics:
        await bank.ask(f"Tell me of {topic}")
    await bank.ask("ferries " * 20)
    memory = engine.prompts[18].partition("<memory>\n")[2].partition("</memory>")[0]
    lines = memory.splitlines()
    assert len(lines) == 5
    assert '"task_id": 2, "status": "success", "memory_items": [{"title": "ferries"' in lines[0]
    assert f"{QUERY_PREFIX}{'ferries ' * 20}" in embedder.texts


async def test_memory_arena_embeds_the_beginning_of_a_long_trajectory() -> None:
    bank, _, embedder = bank_of(MEMORY_ARENA, script("oxen"))
    await bank.ask("Tell me of oxen. " * 1_000)
    assert [len(text) for text in embedder.texts] == [EMBEDDED_CHARS]


async def test_of_equally_near_records_the_later_comes_first() -> None:
    bank, engine, _ = bank_of(ORIGINAL, script("first", "second", "more"))
    for _ in range(3):
        await bank.ask("The same again")
    assert "- second:" in engine.prompts[6]


@both
async def test_memory_keeps_to_its_budget(variant: Variant) -> None:
    budget = Budget(sampling=Sampling(max_tokens=2_000), memory_tokens=60)
    bank, engine, _ = bank_of(variant, script(*["oxen"] * 5), budget=budget)
    sizes = [(await bank.ask("Tell me of oxen")).usage[0].segments["memory"] for _ in range(5)]
    assert sizes[0] == 0
    assert all(0 < size <= 60 for size in sizes[1:]) or variant is MEMORY_ARENA
    assert all(size <= 60 for size in sizes)


@both
async def test_an_episode_recalls_nothing_of_another(variant: Variant) -> None:
    engine, embedder = ScriptedEngine(iter(script("oxen", "more"))), BagOfWords()
    setting = Setting(engine, Toolbox([]), BUDGET)
    first, second = ReasoningBank(setting, embedder, variant), ReasoningBank(setting, embedder, variant)
    await first.ask("Tell me of oxen")
    answer = await second.ask("Tell me of oxen")
    assert answer.usage[0].segments["memory"] == 0
    assert "About oxen" not in engine.prompts[3]


@both
@pytest.mark.parametrize(
    ("said", "fault"),
    [
        (CUT_OFF, "cut_off"),
        ("{}", "unparsable"),
        ("", "empty"),
        ('{"items":[{}]}', "unparsable"),
        (lessons(), "unparsable"),
    ],
)
async def test_a_spoilt_extraction_is_counted_and_the_episode_goes_on(
    variant: Variant, said: Any, fault: str
) -> None:
    bank, _, _ = bank_of(variant, [DONE, verdict(), said, *script("order")])
    answer = await bank.ask("One")
    assert (answer.outcome, [u.fault for u in answer.usage]) == ("replied", ["", "", fault])
    assert bank.records == []
    assert (await bank.ask("Two")).outcome == "replied"
    assert len(bank.records) == 1


async def test_a_verdict_that_cannot_be_read_counts_as_failure() -> None:
    bank, _, _ = bank_of(ORIGINAL, [DONE, CUT_OFF, lessons("care")])
    answer = await bank.ask("One")
    assert [u.fault for u in answer.usage] == ["", "cut_off", ""]
    assert bank.records[0].status == "failure"


async def test_a_long_request_loses_its_middle_before_the_judge() -> None:
    bank, engine, _ = bank_of(ORIGINAL, script("oxen"), window=9_000)
    await bank.ask("BEGINNING " + "and so on " * 450)
    assert "[...]" not in engine.prompts[1]
    bank, engine, _ = bank_of(ORIGINAL, script("oxen"), window=3_900)
    await bank.ask("BEGINNING " + "and so on " * 450)
    assert "[...]" in engine.prompts[2]
    assert "BEGINNING" in engine.prompts[2]
    assert "END: replied" in engine.prompts[2]


async def test_a_window_too_small_for_the_rules_is_an_error() -> None:
    bank, _, _ = bank_of(ORIGINAL, [], window=600)
    call = MemoryCall("verdict", JUDGE_RULES * 3, "x", Verdict, 200, 0.0)
    with pytest.raises(PromptTooLong, match="verdict"):
        await call_for_memory(bank, call, [])


@both
async def test_settings_are_there_to_print(variant: Variant) -> None:
    bank, _, _ = bank_of(variant, [])
    assert bank.settings["name"] == variant.name
    assert bank.settings["top_k"] == (1 if variant is ORIGINAL else 5)
    assert bank.settings["embedder"] == "bag-of-words (fake)"


@pytest.mark.parametrize("profile", ["guidance", "xgrammar", "outlines"])
async def test_the_grammars_in_every_profile(profile: Any) -> None:
    import sys
    from pathlib import Path

    sys.path.insert(0, str(Path(__file__).parents[1]))
    from matchers import Guidance, Outlines, Xgrammar

    kinds: dict[str, Any] = {"guidance": Guidance, "xgrammar": Xgrammar, "outlines": Outlines}
    bank, engine, _ = bank_of(ORIGINAL, script("order"))
    engine.profile = profile
    await bank.ask("One")
    judge, extraction = (kinds[profile](c.text) for c in engine.constraints[1:] if c is not None)
    assert judge.accepts(verdict())
    assert judge.accepts(verdict("failure"))
    assert not judge.accepts(verdict("perhaps"))
    assert not extraction.accepts(lessons())
    assert extraction.accepts(lessons("a", "b", "c"))
    assert not extraction.accepts(lessons("a", "b", "c", "d"))
