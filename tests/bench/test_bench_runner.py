"""A run of the evaluation: each episode once, resumable at any moment, failures counted, time divided rightly."""

import asyncio
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flowstate_local.baselines.base import Budget, Usage
from flowstate_local.bench.accounting import Prices, accounts
from flowstate_local.bench.dependence.oracle import OracleEngine
from flowstate_local.bench.dependence.suite import Dependence, DependenceSettings
from flowstate_local.bench.methods import METHODS, chosen
from flowstate_local.bench.records import (
    EPISODES,
    RUN,
    TRACES,
    Record,
    RunConfig,
    read_config,
    read_records,
    read_traces,
    writing,
)
from flowstate_local.bench.replay import replay
from flowstate_local.bench.runner import Plan, run, scores_by_task
from flowstate_local.bench.statistics import interval, paired
from flowstate_local.bench.suite import Played
from flowstate_local.bench.summary import figures_json, summarize
from flowstate_local.bench.tap import Meter, Share
from flowstate_local.completion import Sampling
from flowstate_local.errors import EngineUnavailable, UsageError
from flowstate_local.testing import ScriptedEngine

pytestmark = pytest.mark.anyio

SUITE = Dependence(DependenceSettings(raw_chars=300))
PLAN = Plan(
    suite=SUITE,
    methods=chosen("flowstate,full_context,bm25"),
    tasks=SUITE.task_ids()[:4],
    budget=Budget(sampling=Sampling(max_tokens=2_000)),
    concurrency=3,
)
CONFIG = RunConfig(
    suite="dependence",
    settings=dict(SUITE.settings),
    methods=tuple(PLAN.methods),
    trials=1,
    seed=0,
    model="none",
    engine="oracle",
    profile="guidance",
    window=100_000,
    max_steps=12,
    max_tokens=2_000,
    memory_tokens=2_048,
    temperature=0.1,
    top_p=1.0,
    version="0",
)


def oracle(task: str, method: str) -> OracleEngine:
    return OracleEngine(SUITE.episode(task), method)


async def play(
    path: Path, plan: Plan = PLAN, engines: Any = oracle, on_episode: Any = lambda r: None
) -> None:
    with writing(path, CONFIG) as folder:
        await run(plan, engines, folder, done=read_records(path), on_episode=on_episode)


def keys(path: Path, name: str = EPISODES) -> Counter[tuple[str, str, int]]:
    lines = [json.loads(line) for line in (path / name).read_text().splitlines()]
    return Counter((line["task"], line["method"], line["trial"]) for line in lines)


ALL = dict.fromkeys(PLAN.episodes(), 1)


async def test_every_method_plays_every_task_once_and_all_of_it_is_kept(tmp_path: Path) -> None:
    everybody = replace(PLAN, methods=chosen("all"), tasks=PLAN.tasks[:2])
    await play(tmp_path, everybody)
    records = read_records(tmp_path)
    assert set(records) == set(everybody.episodes())
    assert {r.error for r in records.values()} == {""}
    assert {r.scores["right"] for r in records.values()} == {1.0}
    assert read_config(tmp_path) == CONFIG
    for trace in read_traces(tmp_path):
        record = records[trace["task"], trace["method"], trace["trial"]]
        usage = [u for answer in record.answers for u in answer.usage]
        calls = trace["calls"]
        assert len(usage) == len(calls)
        assert sum(u.prompt_tokens for u in usage) == sum(c["prompt_tokens"] for c in calls)
        assert sum(u.generated_tokens for u in usage) == sum(c["generated_tokens"] for c in calls)


async def test_all_prompts_can_be_rebuilt_from_a_trace(tmp_path: Path) -> None:
    engine = oracle(PLAN.tasks[0], "flowstate")
    await play(
        tmp_path, replace(PLAN, methods=chosen("flowstate"), tasks=PLAN.tasks[:1]), lambda t, m: engine
    )
    ids: list[int] = []
    for call, prompt in zip(next(read_traces(tmp_path))["calls"], engine.prompt_ids, strict=True):
        ids = ids[: call["shared"]] + engine.tokenizer.encode_frame(call["prompt"])
        assert ids == prompt


async def test_a_run_that_is_stopped_goes_on_with_the_rest(tmp_path: Path) -> None:
    n_done = 0

    def count(record: Record) -> None:
        nonlocal n_done
        n_done += 1
        if n_done == 5:
            playing.cancel()

    playing = asyncio.create_task(play(tmp_path, on_episode=count))
    with pytest.raises(asyncio.CancelledError):
        await playing
    assert 5 <= len(read_records(tmp_path)) < len(ALL)
    with (tmp_path / EPISODES).open("a") as file:
        file.write('{"task": "cut sho')
    with (tmp_path / TRACES).open("a") as file:
        file.write('{"task": "cut sho')
    await play(tmp_path)
    assert keys(tmp_path) == ALL
    assert set(keys(tmp_path, TRACES)) == set(ALL)


async def test_methods_and_trials_may_be_added_and_nothing_else(tmp_path: Path) -> None:
    await play(tmp_path, replace(PLAN, methods=chosen("bm25")))
    await play(tmp_path)
    assert keys(tmp_path) == ALL
    for changed in ({"model": "another"}, {"seed": 3}, {"settings": {"requests": 9}}, {"window": 4_096}):
        with (
            pytest.raises(UsageError, match="other settings"),
            writing(tmp_path, CONFIG.model_copy(update=changed)),
        ):
            pass
    with writing(tmp_path, CONFIG.model_copy(update={"trials": 4})):
        pass


async def test_a_task_that_fails_is_recorded_counted_and_harms_no_other(tmp_path: Path) -> None:
    class Broken(Dependence):
        async def play(self, task_id: str, seat: Any, *, seed: int) -> Played:
            if task_id == PLAN.tasks[1]:
                raise ValueError("this task is broken")
            return await super().play(task_id, seat, seed=seed)

    suite = Broken(DependenceSettings(raw_chars=300))
    await play(tmp_path, replace(PLAN, suite=suite))
    records = read_records(tmp_path)
    assert len(records) == len(ALL), "no task drops out of the denominator"
    assert sum("this task is broken" in r.error for r in records.values()) == 3
    rows = summarize(suite, records, list(PLAN.methods), 1)
    assert [row.score.mean for row in rows if row.score] == [0.75] * 3
    assert [row.figures[0].value for row in rows] == [0.75] * 3
    assert [row.figures[0].n for row in rows] == [4] * 3


async def test_an_engine_that_dies_ends_the_run_and_what_was_under_way_is_played_again(
    tmp_path: Path,
) -> None:
    class Dying(OracleEngine):
        async def stream(self, *arguments: Any, **options: Any) -> Any:
            if len(self.prompts) == 4:
                raise EngineUnavailable("the engine died")
            async for chunk in super().stream(*arguments, **options):
                yield chunk

    def dying(task: str, method: str) -> ScriptedEngine:
        return Dying(SUITE.episode(task), method) if task == PLAN.tasks[2] else oracle(task, method)

    with pytest.raises(EngineUnavailable):
        await play(tmp_path, engines=dying)
    assert not any(task == PLAN.tasks[2] for task, _, _ in read_records(tmp_path))
    await play(tmp_path)
    assert keys(tmp_path) == ALL


async def test_bad_folders_are_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no run"):
        read_config(tmp_path)
    await play(tmp_path, replace(PLAN, tasks=PLAN.tasks[:1]))
    with (
        writing(tmp_path, CONFIG),
        pytest.raises(UsageError, match="another process"),
        writing(tmp_path, CONFIG),
    ):
        pass
    lines = (tmp_path / EPISODES).read_text().splitlines()
    (tmp_path / EPISODES).write_text("\n".join([lines[0], "{broken", lines[1], ""]))
    with pytest.raises(UsageError, match="line 2"):
        read_records(tmp_path)
    (tmp_path / RUN).write_text("{}")
    with pytest.raises(UsageError, match="Field required"):
        read_config(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="can't be written"), writing(tmp_path / "file" / "x", CONFIG):
        pass


async def test_a_replay_comes_to_the_same_and_tells_where_it_does_not(tmp_path: Path) -> None:
    await play(tmp_path)
    assert [one.same async for one in replay(tmp_path)] == [True] * len(ALL)
    lines = (tmp_path / EPISODES).read_text().splitlines()
    changed = json.loads(lines[0])
    changed["scores"]["right"] = 0.0
    (tmp_path / EPISODES).write_text("\n".join([json.dumps(changed), *lines[1:], ""]))
    assert [one.same async for one in replay(tmp_path)].count(False) == 1


def test_each_moment_is_divided_among_the_calls_in_flight() -> None:
    now = [0.0]
    meter, one, two = Meter(lambda: now[0]), Share(), Share()
    now[0] = 5.0
    first = meter.call(one)
    first.__enter__()
    now[0] = 7.0
    second = meter.call(two)
    second.__enter__()
    now[0] = 11.0
    first.__exit__(None, None, None)
    now[0] = 12.0
    second.__exit__(None, None, None)
    now[0] = 20.0
    with meter.call(one):
        now[0] = 21.0
    assert (one.seconds, two.seconds, meter.busy_s) == (5.0, 3.0, 8.0)


def test_accounts_add_up() -> None:
    usage = [
        Usage(1, 1, {"rules": 100, "index": 5}, 64, 7, 1.0, cause="psa"),
        Usage(2, 1, {"rules": 100, "index": 9}, 96, 9, 1.0, cause="retry", fault="cut_off"),
    ]
    answers = [{"outcome": "replied", "message": "", "usage": [u.__dict__]} for u in usage]
    record = Record.model_validate(
        {
            "task": "a",
            "method": "m",
            "trial": 0,
            "started_at": 0,
            "wall_s": 1,
            "engine_s": 36,
            "answers": answers,
        }
    )
    account = accounts([record, record])["m"]
    assert account.prompt_tokens == sum(account.segments.values()) == 428
    assert account.causes == {"psa": 224, "retry": 236}
    assert account.faults == {"cut_off": 2}
    assert account.cumulative() == [112, 230]
    assert account.prompt_per_call(2) == 109
    prices = Prices(prompt=1e6, cached=0, generated=1e6, engine_hour=100)
    assert account.cost(prices) == pytest.approx(428 - 320 + 32 + 2.0)


def test_intervals_hold_the_mean_and_pairs_take_what_both_have() -> None:
    one = interval([1.0] * 10 + [0.0] * 10)
    assert one is not None
    assert one.low < one.mean == 0.5 < one.high
    assert one.low > 0.2
    assert one.high < 0.8
    assert interval([]) is None
    shifted = paired({f"t{i}": i / 10 + 0.2 for i in range(10)}, {f"t{i}": i / 10 for i in range(2, 30)})
    assert shifted is not None
    assert (round(shifted.low, 6), round(shifted.high, 6), shifted.n) == (0.2, 0.2, 8)


@pytest.mark.parametrize("bad", ["flowstate,nothing", "flowstate,flowstate", ""])
def test_unknown_methods_are_refused(bad: str) -> None:
    with pytest.raises(UsageError):
        chosen(bad)


async def test_with_perfect_decisions_flowstate_is_flat_and_far_below_full_context(tmp_path: Path) -> None:
    """The figure of the paper that doesn't depend on a model's wit, at 20 requests with long raw results."""
    suite = Dependence(DependenceSettings(requests=20, raw_chars=6_000))
    plan = replace(PLAN, suite=suite, tasks=suite.task_ids()[:3], methods=chosen("flowstate,full_context"))
    await play(tmp_path, plan, lambda task, method: OracleEngine(suite.episode(task), method))
    records = read_records(tmp_path)
    costs = accounts(records.values())
    ours, full = costs["flowstate"], costs["full_context"]
    assert ours.prompt_tokens < 0.4 * full.prompt_tokens
    sizes = [ours.prompt_per_call(number) or 0 for number in range(3, 20)]
    assert max(sizes) < 1.3 * min(sizes), "flat"
    assert (full.prompt_per_call(19) or 0) > 5 * (full.prompt_per_call(3) or 0), "grows"
    figures = figures_json(suite, records, ["flowstate", "full_context"], 1)["figures"]
    assert figures["full_context.prompt_tokens"]["ratio"] > 2.5
    assert scores_by_task(records, "flowstate", 1).keys() == set(plan.tasks)


def test_every_method_is_told_about() -> None:
    assert all(info.about for info in METHODS.values())
