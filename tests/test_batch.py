"""Batches: each task exactly once whatever is killed when, failures collected, bad input named before anything runs."""

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowstate_local import batch
from flowstate_local.batch import (
    RESULTS,
    TRACES,
    BatchOptions,
    BatchTask,
    of_shard,
    read_results,
    read_tasks,
)
from flowstate_local.errors import EngineUnavailable, UsageError
from flowstate_local.jsonl import JsonLines
from flowstate_local.stores.lmdb import LmdbStore
from flowstate_local.stores.memory import MemoryStore
from flowstate_local.testing import ScriptedEngine, step
from tests.batch_child import N_TASKS, main, plays, tasks

pytestmark = pytest.mark.anyio
ROOT = Path(__file__).parent.parent


def told(folder: Path) -> dict[str, Any]:
    """What a batch came to, without times."""
    return {
        name: (result.status, result.error, [(r.outcome, r.message, r.steps) for r in result.replies])
        for name, result in read_results(folder).items()
    }


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


async def test_killed_five_times_it_ends_as_if_undisturbed(tmp_path: Path, monkeypatch: Any) -> None:
    disturbed, quiet = tmp_path / "disturbed", tmp_path / "quiet"
    disturbed.mkdir()
    quiet.mkdir()
    chance, killed = random.Random(4), 0
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.batch_child", str(disturbed)]
    while killed < 5:
        child = subprocess.Popen(command, cwd=disturbed, env=environment, stderr=subprocess.DEVNULL)
        before = len(lines(disturbed / RESULTS)) if (disturbed / RESULTS).exists() else 0
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and child.poll() is None:
            results = disturbed / RESULTS
            if results.exists() and results.read_bytes().count(b"\n") > before + chance.randrange(3, 30):
                break
            time.sleep(0.002)
        assert child.poll() is None, "it ended before it could be killed"
        child.send_signal(signal.SIGKILL)
        child.wait()
        killed += 1
        for file in (RESULTS, TRACES):
            whole = (disturbed / file).read_bytes().rpartition(b"\n")[0].splitlines()
            assert all(json.loads(line) for line in whole)
    assert len(read_results(disturbed)) < N_TASKS
    subprocess.run(command, cwd=disturbed, env=environment, check=True)
    monkeypatch.chdir(quiet)
    await main(quiet, BatchOptions())
    assert told(disturbed) == told(quiet)
    for folder in (disturbed, quiet):
        for file in (RESULTS, TRACES):
            assert Counter(line["id"] for line in lines(folder / file)) == {t.id: 1 for t in tasks()}
        keys: dict[tuple[str, str], set[str]] = {}
        for task, place, key in lines(folder / "marks.jsonl"):
            keys.setdefault((task, place), set()).add(key)
        # A call that a kill interrupted runs again under its key; no other call is ever made for the same request.
        assert {place: len(one) for place, one in keys.items()} == {
            (t.id, str(n)): 1 for t in tasks() for n in (1, 2)
        }
        with LmdbStore.open(folder / "store") as store:
            assert all(store.verify(space) == [] for space in store.spaces())


async def test_the_shards_are_the_whole_and_keep_spaces_together() -> None:
    parts = [of_shard(tasks(), (part, 3)) for part in (1, 2, 3)]
    assert sorted(t.id for part in parts for t in part) == sorted(t.id for t in tasks())
    for one in range(3):
        others = {t.where for part in parts[:one] + parts[one + 1 :] for t in part}
        assert not {t.where for t in parts[one]} & others
    for bad in ((0, 3), (4, 3), (1, 0)):
        with pytest.raises(UsageError, match="shard"):
            of_shard(tasks(), bad)


def task(name: str, *requests: str, **more: Any) -> BatchTask:
    return BatchTask.model_validate({"id": name, "requests": list(requests), **more})


def replies(prompt: str) -> Any:
    if "boom" in prompt.rpartition("REQUEST")[2]:
        return "{}"
    return step(message="fine")


async def run(folder: Path, *some: BatchTask, engine: Any = None, **options: Any) -> Any:
    engine = engine or ScriptedEngine(replies, check=False)
    store = options.pop("store", None) or MemoryStore()
    return await batch.run(some, folder, engine, store, BatchOptions(**options))


async def test_failures_are_collected_and_the_rest_of_the_task_is_not_asked(tmp_path: Path) -> None:
    store = MemoryStore()
    some = [
        task("a", "boom", "later"),
        task("b", "hello"),
        task("c", "hi", tools="no_such_module:x"),
        task("d", "x" * 200_000),
    ]
    progress = await run(tmp_path, *some, store=store)
    assert (progress.done, progress.failed) == (4, 3)
    results = read_results(tmp_path)
    assert results["a"].error == "request 1 ended without a reply: failed"
    assert len(results["a"].replies) == 1
    assert results["b"].status == "done"
    assert "no_such_module" in results["c"].error
    assert "PromptTooLong" in results["d"].error
    again = await run(tmp_path, *some, store=store)
    assert (again.done, again.n_steps) == (4, 0), "a failed task is done, unless it is to be tried again"
    mended = await run(
        tmp_path,
        *some,
        store=store,
        retry_failed=True,
        engine=ScriptedEngine(lambda p: step(message="ok"), check=False),
    )
    assert read_results(tmp_path)["a"].status == "done"
    assert mended.failed == 2


async def test_budgets_end_a_task_and_leave_its_space_usable(tmp_path: Path) -> None:
    store = MemoryStore()
    endless = ScriptedEngine(plays, check=False)
    some = [
        task(
            "tokens",
            "Do part a of job 1",
            space="s",
            tools="tests.batch_child:TOOLS",
            budget={"max_tokens": 10},
        ),
        task("after", "Do part a of job 2", space="s", tools="tests.batch_child:TOOLS"),
        task("seconds", "Do part a of job 3", tools="tests.batch_child:TOOLS", budget={"max_seconds": 1e-9}),
    ]
    cwd = Path.cwd()
    os.chdir(tmp_path)
    try:
        await run(tmp_path, *some, engine=endless, store=store)
    finally:
        os.chdir(cwd)
    results = read_results(tmp_path)
    assert "may spend 10" in results["tokens"].error
    assert "may take" in results["seconds"].error
    assert results["after"].status == "done"
    assert results["tokens"].prompt_tokens > 10, "what was spent is told"
    assert store.head("s").open_request is None


async def test_tasks_of_one_space_keep_their_order_while_others_run(tmp_path: Path) -> None:
    store = MemoryStore()
    some = [task(f"{space}{i}", f"say {i}", space=space) for i in range(8) for space in "xyz"]
    await run(tmp_path, *some, store=store, concurrency=3)
    for space in "xyz":
        assert [r.text for r in store.requests(space)] == [f"say {i}" for i in range(8)]


async def test_a_dead_engine_ends_the_batch_and_another_goes_on(tmp_path: Path) -> None:
    store = MemoryStore()
    some = [task(f"t{i}", "hello") for i in range(6)]
    dying = ScriptedEngine(iter([step(message="one"), step(message="two")]), check=False)
    with pytest.raises(EngineUnavailable):
        await run(tmp_path, *some, engine=dying, store=store, concurrency=2)
    assert len(read_results(tmp_path)) == 2
    await run(tmp_path, *some, store=store)
    assert {r.status for r in read_results(tmp_path).values()} == {"done"}
    assert Counter(line["id"] for line in lines(tmp_path / RESULTS)) == {f"t{i}": 1 for i in range(6)}


async def test_cancelling_keeps_what_is_done(tmp_path: Path) -> None:
    store = MemoryStore()
    some = [task(f"t{i}", "hello") for i in range(50)]
    running = asyncio.create_task(run(tmp_path, *some, store=store, concurrency=2))
    while not (tmp_path / RESULTS).exists() or len(read_results(tmp_path)) < 3:
        await asyncio.sleep(0.001)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert 3 <= len(read_results(tmp_path)) < 50
    await run(tmp_path, *some, store=store)
    assert len(lines(tmp_path / RESULTS)) == 50


async def test_two_processes_do_not_share_a_folder(tmp_path: Path) -> None:
    with JsonLines.open(tmp_path / RESULTS), pytest.raises(UsageError, match="another process"):
        await run(tmp_path, task("a", "hello"))


GOOD = '{"id": "a", "requests": ["x"]}'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "holds no task"),
        ("\n\n", "holds no task"),
        (f"{GOOD}\n{{broken\n", "line 2: line: Invalid JSON"),
        (f"{GOOD}\n{GOOD}", "line 2: the id 'a' is there already"),
        ('{"id": "a"}', "line 1: requests: Field required"),
        ('{"id": "a", "requests": []}', "line 1: requests"),
        ('{"id": "a", "requests": [""]}', "line 1: requests.0.text"),
        ('{"id": "", "requests": ["x"]}', "line 1: id"),
        ('{"id": "a", "requests": ["x"], "spce": "s"}', "line 1: spce"),
        ('{"id": "a", "requests": ["x"], "space": "a/b"}', "line 1: "),
        ('{"id": "a", "requests": ["x"], "budget": {"max_steps": 0}}', "line 1: budget.max_steps"),
        ("[1]", "line 1: line"),
        ('{"id": "a", "requests": [{"text": "x"}, 7]}', "line 1: requests.1"),
        ("\n".join(["nothing"] * 9), "and 4 more"),
    ],
)
def test_bad_input_is_named_with_its_line(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "tasks.jsonl").write_text(text)
    with pytest.raises(UsageError) as error:
        read_tasks(tmp_path / "tasks.jsonl")
    assert said in str(error.value)


def test_a_file_that_is_not_there_or_not_text_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        read_tasks(tmp_path / "none.jsonl")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00{")
    with pytest.raises(UsageError, match="line 1"):
        read_tasks(tmp_path / "bytes")


@given(st.binary(max_size=300), st.integers(0, 400))
def test_a_torn_line_is_cut_off_and_nothing_else(tmp_path_factory: Any, noise: bytes, cut: int) -> None:
    path = tmp_path_factory.mktemp("lines") / "f.jsonl"
    with JsonLines.open(path) as file:
        for i in range(5):
            file.append({"i": i, "text": "ä" * 20})
    whole = path.read_bytes()
    kept = whole[: min(cut, len(whole))]
    path.write_bytes(kept + noise.replace(b"\n", b""))
    with JsonLines.open(path) as file:
        file.append({"i": "last"})
    after = path.read_bytes().splitlines()
    n_whole = kept.count(b"\n")
    assert after[:n_whole] == whole.splitlines()[:n_whole]
    assert [json.loads(line) for line in after[n_whole:]] == [{"i": "last"}]
