"""Mem0, the real package with the real local qdrant: what is stored and recalled, and that nothing leaves the machine."""

import asyncio
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from memory_script import facts, kind_of

from flowstate_local.baselines import mem0 as module
from flowstate_local.baselines.base import Budget, Setting
from flowstate_local.baselines.mem0 import EXTRACTION_TOKENS, MAX_FACTS, Facts, Mem0
from flowstate_local.baselines.react import dump_react
from flowstate_local.completion import Completion, Sampling
from flowstate_local.errors import EngineUnavailable, PromptTooLong, StoreError, UsageError
from flowstate_local.grammar import json_constraint
from flowstate_local.testing import BagOfWords, ScriptedEngine, check_constraint
from flowstate_local.tools import Toolbox

pytestmark = pytest.mark.anyio
BUDGET = Budget(sampling=Sampling(max_tokens=4_096), memory_tokens=300)
DONE = dump_react("so", message="done")
CUT_OFF = Completion('{"memory":[', (), "length", 1, 0, 1, 0.0, 0.0)


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every attempt to reach another machine fails and is remembered, even if its error is swallowed."""
    tried: list[Any] = []

    def refuse(*target: Any, **options: Any) -> Any:
        tried.append(target[-1])
        raise OSError(f"no network in this test: {target[-1]}")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket.socket, "connect_ex", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    yield
    assert tried == []


def mem0_of(
    replies: Sequence[Any] | Callable[[str], Any], *, budget: Budget = BUDGET, **options: Any
) -> tuple[Mem0, ScriptedEngine]:
    script = replies if callable(replies) else iter(replies)
    engine = ScriptedEngine(script, **options)
    return Mem0(Setting(engine, Toolbox([]), budget), BagOfWords(4_096)), engine


def memory_of(prompt: str) -> str:
    return prompt.partition("Memories of earlier requests\n")[2].partition("REQUEST\n")[0]


async def test_facts_are_stored_and_those_near_the_request_are_recalled() -> None:
    said = facts("The last ferry leaves at nine.", "Oxen eat hay.")
    method, engine = mem0_of([DONE, said, DONE, facts(), DONE, facts()])
    first = await method.ask("When does the ferry leave?")
    second = await method.ask("When does the LAST ferry leave?")
    assert [kind_of(prompt) for prompt in engine.prompts] == ["", "mem0", "", "mem0"]
    assert "When does the ferry leave?" in engine.prompts[1]
    assert "END: replied" in engine.prompts[1]
    assert memory_of(engine.prompts[2]) == "- The last ferry leaves at nine.\n"
    assert first.usage[0].segments["memory"] == 0
    assert second.usage[0].segments["memory"] > 0
    await method.ask("What do oxen eat?")
    assert "Oxen eat hay." in memory_of(engine.prompts[4])
    assert "The last ferry leaves at nine." in engine.prompts[3].partition("## Existing Memories")[2]
    await method.close()


async def test_every_call_is_accounted_for_with_its_cause() -> None:
    method, engine = mem0_of([DONE, facts("A"), DONE, facts("B")])
    answers = [await method.ask("One"), await method.ask("Two")]
    usage = [u for answer in answers for u in answer.usage]
    assert [(u.request, u.step, u.cause, u.fault) for u in usage] == [
        (1, 1, "step", ""),
        (1, 2, "memory", ""),
        (2, 1, "step", ""),
        (2, 2, "memory", ""),
    ]
    assert [u.prompt_tokens for u in usage] == [len(ids) for ids in engine.prompt_ids]
    assert all(u.generated_tokens > 0 for u in usage)
    await method.close()


async def test_the_same_fact_is_kept_once() -> None:
    method, engine = mem0_of(
        [DONE, facts("The ferry is scarlet."), DONE, facts("The ferry is scarlet."), DONE, facts()]
    )
    for _ in range(3):
        await method.ask("What of the ferry?")
    assert memory_of(engine.prompts[4]) == "- The ferry is scarlet.\n"
    await method.close()


async def test_an_episode_recalls_nothing_of_another() -> None:
    first, _ = mem0_of([DONE, facts("The ferry is scarlet.")])
    second, engine = mem0_of([DONE, facts("Oxen are brown."), DONE, facts()])
    await first.ask("What of the ferry?")
    await second.ask("What of the oxen?")
    assert first.folder != second.folder
    await second.ask("What of the ferry?")
    assert "scarlet" not in engine.prompts[2]
    assert "scarlet" not in engine.prompts[3]
    await first.close()
    await second.close()


async def test_memory_keeps_to_its_budget() -> None:
    said = facts(
        *(f"The ferry of {place} is as red as all the others." for place in ("Rome", "Oslo", "Bonn", "Kiel"))
    )
    method, engine = mem0_of([DONE, said, DONE, facts()], budget=Budget(memory_tokens=60))
    await method.ask("What of the ferry?")
    answer = await method.ask("What of the ferry?")
    assert 0 < answer.usage[0].segments["memory"] <= 60
    assert 0 < memory_of(engine.prompts[2]).count("ferry") < 4
    await method.close()


@pytest.mark.parametrize(
    ("said", "fault"),
    [(CUT_OFF, "cut_off"), ("", "empty"), ("{}", "unparsable"), ('{"memory":[{"text":"x"}]}', "unparsable")],
)
async def test_a_spoilt_extraction_is_counted_and_the_episode_goes_on(said: Any, fault: str) -> None:
    method, engine = mem0_of([DONE, said, DONE, facts("The ferry is scarlet."), DONE, facts()])
    answer = await method.ask("What of the ferry?")
    assert (answer.outcome, [u.fault for u in answer.usage]) == ("replied", ["", fault])
    assert (await method.ask("What of the ferry?")).outcome == "replied"
    await method.ask("What of the ferry?")
    assert memory_of(engine.prompts[4]) == "- The ferry is scarlet.\n"
    await method.close()


async def test_a_failing_engine_is_not_swallowed_by_mem0() -> None:
    method, _ = mem0_of([DONE])
    with pytest.raises(EngineUnavailable, match="no more replies"):
        await method.ask("What of the ferry?")
    await method.close()


async def test_a_failing_embedder_is_not_swallowed_by_mem0(monkeypatch: pytest.MonkeyPatch) -> None:
    method, _ = mem0_of([DONE, facts("The ferry is scarlet.")])
    embedder = method._bridge.embedder
    plain = embedder.embed

    def fail_on_facts(texts: Sequence[str]) -> Any:
        if "The ferry is scarlet." in texts:
            raise RuntimeError("out of order")
        return plain(texts)

    monkeypatch.setattr(embedder, "embed", fail_on_facts)
    with pytest.raises(RuntimeError, match="out of order"):
        await method.ask("What of the ferry?")
    await method.close()


async def test_a_failure_of_mem0_itself_is_translated(monkeypatch: pytest.MonkeyPatch) -> None:
    method, _ = mem0_of([DONE, facts("The ferry is scarlet."), DONE])
    await method.ask("What of the ferry?")

    def fail(*query: Any, **options: Any) -> Any:
        raise ValueError("no such collection")

    monkeypatch.setattr(method._memory, "search", fail)
    with pytest.raises(StoreError, match="no such collection"):
        await method.ask("What of the ferry?")
    await method.close()


async def test_a_window_too_small_for_the_prompt_of_mem0_is_an_error() -> None:
    method, _ = mem0_of([DONE], context_window=8_000)
    with pytest.raises(PromptTooLong, match="memories"):
        await method.ask("What of the ferry?")
    await method.close()


async def test_a_cancelled_request_leaves_no_thread_waiting() -> None:
    asked = asyncio.Event()

    class Stuck(ScriptedEngine):
        async def stream(self, prompt_ids: Any, constraint: Any, sampling: Any, **options: Any) -> Any:
            if kind_of(self.tokenizer.decode(prompt_ids)):
                asked.set()
                await asyncio.Event().wait()
            async for chunk in super().stream(prompt_ids, constraint, sampling, **options):
                yield chunk

    method = Mem0(Setting(Stuck([DONE]), Toolbox([]), BUDGET), BagOfWords())
    task = asyncio.create_task(method.ask("What of the ferry?"))
    await asked.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with asyncio.timeout(20):
        await method.close()


async def test_close_removes_the_folder_and_may_be_called_again() -> None:
    method, _ = mem0_of([DONE, facts("The ferry is scarlet.")])
    assert method.folder is None
    await method.ask("What of the ferry?")
    folder = method.folder
    assert folder is not None
    assert {path.name for path in folder.iterdir()} >= {"qdrant", "history.db"}
    await method.close()
    assert not folder.exists()
    await method.close()
    assert method.folder is None


async def test_a_method_that_never_ran_closes() -> None:
    method, _ = mem0_of([])
    await method.close()


async def test_what_would_reach_out_is_off(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    method, _ = mem0_of([DONE, facts("The ferry is scarlet.")])
    await method.ask("What of the ferry?")
    from mem0.memory import telemetry
    from mem0.utils import spacy_models

    assert telemetry.MEM0_TELEMETRY is False
    assert telemetry.client_telemetry.posthog is None
    assert os.environ["MEM0_TELEMETRY"] == "False"
    assert spacy_models.get_nlp_full() is None
    assert method._memory.vector_store._get_bm25_encoder() is None
    assert list(tmp_path.iterdir()) == []
    settings = method.settings
    assert (settings["telemetry"], settings["bm25"], settings["entities"]) == (False, False, False)
    assert settings["dimensions"] == method._memory.vector_store.embedding_model_dims == 4_096
    await method.close()


async def test_a_mem0_with_telemetry_on_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEM0_TELEMETRY", "False")
    from mem0.memory import telemetry

    monkeypatch.setattr(telemetry, "MEM0_TELEMETRY", True)
    method, _ = mem0_of([DONE])
    with pytest.raises(UsageError, match="telemetry on"):
        await method.ask("What of the ferry?")
    await method.close()


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match="mem0ai") as caught:
        mem0_of([])
    assert "flowstate-local[evaluation]" in caught.value.hint


@pytest.mark.parametrize("profile", ["guidance", "xgrammar", "outlines"])
def test_the_grammar_in_every_profile(profile: Any) -> None:
    import sys

    sys.path.insert(0, str(Path(__file__).parents[1]))
    from matchers import Guidance, Outlines, Xgrammar

    kinds: dict[str, Any] = {"guidance": Guidance, "xgrammar": Xgrammar, "outlines": Outlines}
    constraint = json_constraint(profile, Facts.model_json_schema(), EXTRACTION_TOKENS)
    matcher = kinds[profile](constraint.text)
    check_constraint(facts("The ferry is scarlet."), constraint)
    assert matcher.accepts(facts())
    assert matcher.accepts(facts(*"abcdefgh"))
    assert matcher.accepts(facts(*"abcdefghi")) == (profile == "outlines")
    assert not matcher.accepts('{"memory":[{"id":"0","text":"x","attributed_to":"nobody"}]}')
    assert MAX_FACTS == 8
