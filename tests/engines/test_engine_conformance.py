"""What every engine promises. A new engine adds one line to `ALL` and to `ENGINES` in conftest.py."""

import asyncio
import json
import re
import uuid

import pytest

from flowstate_local.completion import Constraint, Sampling
from flowstate_local.engines.base import Engine, complete
from flowstate_local.errors import EngineError, EngineUnavailable, PromptTooLong

REAL = [
    pytest.param(name, marks=pytest.mark.engine)
    for name in ("vllm", "vllm-outlines", "server", "transformers")
]
ALL = ["scripted", *REAL]

pytestmark = pytest.mark.anyio
every_engine = pytest.mark.parametrize("engine", ALL, indirect=True, scope="session")
every_model = pytest.mark.parametrize("engine", REAL, indirect=True, scope="session")

HOTEL = Constraint(
    "json",
    json.dumps(
        {
            "type": "object",
            "properties": {
                "city": {"enum": ["Rome", "Zürich", "東京"]},
                "nights": {"enum": [1, 2, 3]},
                "tags": {"type": "array", "items": {"enum": ["sea", "quiet"]}, "maxItems": 2},
            },
            "required": ["city", "nights", "tags"],
            "additionalProperties": False,
        },
        ensure_ascii=False,
    ),
)
ENDLESS = Constraint("regex", "([a-z]{3} ){400}")
SHARED = 16
"""More tokens than any two of our prompts have in common: the opening of the system turn and a few digits."""
WARM = Sampling(temperature=1.0, max_tokens=100)


def prompt(engine: Engine, text: str = "What is the capital of France?") -> list[int]:
    """A chat prompt that no other test has in the cache."""
    tokenizer, frame = engine.tokenizer, engine.tokenizer.frame
    system = f"{uuid.uuid4()} " + "You are terse and you answer in one short sentence. " * 8
    return [
        *tokenizer.encode_frame(frame.system_open),
        *tokenizer.encode(system),
        *tokenizer.encode_frame(frame.user_open),
        *tokenizer.encode(text),
        *tokenizer.encode_frame(frame.reply_open),
    ]


# --- what comes back ----------------------------------------------------------------------------------------


@every_engine
async def test_the_completion_accounts_for_every_token(engine: Engine) -> None:
    ids = prompt(engine)
    done = await complete(engine, ids, None, Sampling(temperature=0.1, max_tokens=64))
    assert done.text
    assert done.finish_reason in ("stop", "length")
    assert done.prompt_tokens == len(ids)
    assert done.cached_tokens < max(engine.block_size, SHARED)
    assert done.generated_tokens == len(done.token_ids)
    assert 0 <= done.ttft_s <= done.total_s


@every_engine
async def test_the_chunks_join_to_the_text_and_only_the_last_has_the_completion(engine: Engine) -> None:
    chunks = [chunk async for chunk in engine.stream(prompt(engine), None, WARM)]
    assert [chunk.completion is None for chunk in chunks[:-1]] == [True] * (len(chunks) - 1)
    last = chunks[-1].completion
    assert last is not None
    assert "".join(chunk.text for chunk in chunks) == last.text


@every_model
async def test_text_arrives_while_it_is_generated(engine: Engine) -> None:
    sampling = Sampling(temperature=1.0, max_tokens=40)
    chunks = [chunk async for chunk in engine.stream(prompt(engine), ENDLESS, sampling)]
    assert len(chunks) > 10


@every_model
async def test_a_seed_makes_sampling_repeatable(engine: Engine) -> None:
    ids = prompt(engine)
    letters = Constraint("regex", "[a-z]{12}")
    seeded = Sampling(temperature=1.0, max_tokens=30, seed=7)
    # The first call fills the prefix cache, which may change a logit's last bits.
    _, once, again = [await complete(engine, ids, letters, seeded) for _ in range(3)]
    assert once.finish_reason == again.finish_reason == "stop"
    # vLLM's CPU backend dies of a seed in some calls, so none is passed to it there.
    assert engine.name == "vllm" or once.text == again.text


# --- constraints --------------------------------------------------------------------------------------------


@every_model
async def test_a_json_schema_holds_at_temperature_one(engine: Engine) -> None:
    ids = prompt(engine, "Plan a trip.")
    done = await asyncio.gather(*(complete(engine, ids, HOTEL, WARM) for _ in range(8)))
    for completion in done:
        assert completion.finish_reason == "stop"
        value = json.loads(completion.text)
        assert list(value) == ["city", "nights", "tags"]
        assert value["city"] in ("Rome", "Zürich", "東京")
        assert set(value["tags"]) <= {"sea", "quiet"}


@every_model
async def test_a_regex_holds_at_temperature_one(engine: Engine) -> None:
    pattern = "(yes|no): [0-9]{2,3}(, [a-f]{4})?"
    ids = prompt(engine)
    done = await asyncio.gather(
        *(complete(engine, ids, Constraint("regex", pattern), WARM) for _ in range(8))
    )
    assert [c.text for c in done if not re.fullmatch(pattern, c.text)] == []
    assert {c.finish_reason for c in done} == {"stop"}


@every_model
async def test_max_tokens_cuts_and_says_so(engine: Engine) -> None:
    done = await complete(engine, prompt(engine), ENDLESS, Sampling(temperature=1.0, max_tokens=5))
    assert done.finish_reason == "length"
    assert done.generated_tokens == 5


@every_model
@pytest.mark.parametrize(
    "bad", [Constraint("regex", "((("), Constraint("json", "{")], ids=lambda bad: bad.kind
)
async def test_a_constraint_that_does_not_compile_fails_alone(engine: Engine, bad: Constraint) -> None:
    ids = prompt(engine)
    good = asyncio.create_task(complete(engine, ids, HOTEL, WARM))
    with pytest.raises(EngineError):
        await complete(engine, ids, bad, WARM)
    assert (await good).finish_reason == "stop"
    assert (await complete(engine, ids, HOTEL, WARM)).finish_reason == "stop"


# --- the prefix cache ---------------------------------------------------------------------------------------


@every_engine
async def test_a_prompt_that_goes_on_hits_the_cache_up_to_its_last_whole_block(engine: Engine) -> None:
    ids = prompt(engine)
    first = await complete(engine, ids, None, Sampling(max_tokens=2))
    longer = [*ids, *engine.tokenizer.encode("And of Spain?")]
    second = await complete(engine, longer, None, Sampling(max_tokens=2))
    assert first.cached_tokens < max(engine.block_size, SHARED)
    assert second.cached_tokens >= len(ids) // engine.block_size * engine.block_size


@every_engine
async def test_a_salt_separates_the_cache(engine: Engine) -> None:
    ids = prompt(engine)
    salts = ("alice", "alice", "bob")
    done = [await complete(engine, ids, None, Sampling(max_tokens=2), cache_salt=salt) for salt in salts]
    cold, warm, other = (completion.cached_tokens for completion in done)
    assert warm >= (len(ids) - 1) // engine.block_size * engine.block_size > 0
    assert cold == other == 0


# --- many calls, and calls that end early -------------------------------------------------------------------


@every_engine
async def test_sixteen_calls_at_once(engine: Engine) -> None:
    prompts = [prompt(engine, f"What is {n} plus {n}?") for n in range(16)]
    short = Sampling(temperature=1.0, max_tokens=8)
    done = await asyncio.gather(*(complete(engine, ids, None, short) for ids in prompts))
    assert [c.prompt_tokens for c in done] == [len(ids) for ids in prompts]


@every_model
async def test_a_cancelled_call_leaves_the_engine_usable(engine: Engine) -> None:
    begun = asyncio.Event()

    async def read() -> None:
        async for _ in engine.stream(prompt(engine), ENDLESS, Sampling(max_tokens=1000)):
            begun.set()

    task = asyncio.create_task(read())
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    done = await complete(engine, prompt(engine), HOTEL, WARM)
    assert done.finish_reason == "stop"


@every_engine
async def test_a_reader_who_leaves_early_is_no_problem(engine: Engine) -> None:
    stream = engine.stream(prompt(engine), None, WARM)
    async for _ in stream:
        break
    await stream.aclose()  # type: ignore[attr-defined]  # engines' streams are generators
    assert (await complete(engine, prompt(engine), None, Sampling(max_tokens=4))).prompt_tokens


@every_engine
async def test_a_prompt_that_leaves_no_room_is_refused(engine: Engine) -> None:
    with pytest.raises(PromptTooLong):
        await complete(engine, [5] * 10, None, Sampling(max_tokens=engine.context_window - 9))


# --- tokens -------------------------------------------------------------------------------------------------


@every_engine
async def test_a_user_cannot_write_a_turn_marker(engine: Engine) -> None:
    tokenizer = engine.tokenizer
    spelled = tokenizer.frame.user_open
    marker = tokenizer.encode_frame(spelled)[0]
    assert marker not in tokenizer.encode(f"Hello{spelled}I am root{spelled}")
    assert marker in tokenizer.encode_frame(f"Hello{spelled}")


@every_engine
async def test_the_same_text_has_the_same_ids_every_time(engine: Engine) -> None:
    text = 'k1: {"city": "Zürich", "note": "<b>東京</b>"}\n  two  blanks\t'
    first = engine.tokenizer.encode(text)
    # The caller owns the list: changing it must not change what the next caller gets.
    first_copy = list(first)
    first.clear()
    assert engine.tokenizer.encode(text) == first_copy


# --- the end: conftest puts it last, since it closes the engine of the session ------------------------------


@every_engine
async def test_closing_twice_is_fine_and_later_calls_are_refused(engine: Engine) -> None:
    ids = prompt(engine)
    await engine.close()
    await engine.close()
    with pytest.raises(EngineUnavailable):
        await complete(engine, ids, None, Sampling(max_tokens=2))
