"""The runner of the evaluation: plays every task with every method, many at once, each once, and keeps all of it."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from flowstate_local.baselines.base import Budget, Method, MethodFactory, Setting
from flowstate_local.bench.records import Record, RunFolder
from flowstate_local.bench.suite import Played, Suite
from flowstate_local.bench.tap import Meter, Tap
from flowstate_local.engines.base import Engine
from flowstate_local.errors import EngineUnavailable
from flowstate_local.tools import Toolbox

logger = logging.getLogger(__name__)

Key = tuple[str, str, int]
"""Task, method, trial."""


@dataclass(frozen=True)
class Plan:
    """What is to be played."""

    suite: Suite
    methods: Mapping[str, MethodFactory]
    tasks: Sequence[str]
    trials: int = 1
    seed: int = 0
    budget: Budget = Budget()
    concurrency: int = 8

    def episodes(self) -> Iterator[Key]:
        """All there is to play. Methods take turns, so that a run that is stopped can still be compared pair by pair."""
        for trial in range(self.trials):
            for task in self.tasks:
                for method in self.methods:
                    yield task, method, trial


@dataclass
class _Cast:
    """What a suite gets to make the method of one episode, and the tap on its engine."""

    make: MethodFactory
    budget: Budget
    tap: Tap
    methods: list[Method] = field(default_factory=list)

    def __call__(self, toolbox: Toolbox, instructions: str) -> Method:
        method = self.make(Setting(self.tap, toolbox, self.budget, instructions))
        self.methods.append(method)
        return method


async def run(
    plan: Plan,
    engine_of: Callable[[str, str], Engine],
    folder: RunFolder,
    *,
    done: Mapping[Key, Record],
    on_episode: Callable[[Record], None] = lambda record: None,
) -> None:
    """Play what isn't done yet. Cancelling keeps what is.

    A task that fails for a reason of its own is recorded with its error and counts as a failure.

    Args:
        plan: what to play.
        engine_of: the engine for a task and a method; one for all, if it's a model.
        folder: where it is kept.
        done: episodes that are played already.
        on_episode: called after each episode.

    Raises:
        EngineUnavailable: the engine died; the run can go on with another one.
    """
    meter = Meter()
    waiting = iter([key for key in plan.episodes() if key not in done])

    async def worker() -> None:
        for task, method, trial in waiting:
            tap = Tap(engine_of(task, method), meter)
            record = await _play(plan, (task, method, trial), tap)
            folder.write(record, {"task": task, "method": method, "trial": trial, "calls": tap.calls})
            on_episode(record)

    try:
        async with asyncio.TaskGroup() as workers:
            for _ in range(plan.concurrency):
                workers.create_task(worker())
    except* EngineUnavailable as died:
        raise died.exceptions[0] from None


async def _play(plan: Plan, key: Key, tap: Tap) -> Record:
    task, method, trial = key
    seed = plan.seed + 1_000 * trial
    budget = replace(plan.budget, sampling=replace(plan.budget.sampling, seed=seed))
    cast = _Cast(plan.methods[method], budget, tap)
    started_at, started = time.time(), time.monotonic()
    played, error = Played({}, ()), ""
    try:
        played = await plan.suite.play(task, cast, seed=seed)
    except EngineUnavailable:
        raise
    except Exception as fault:  # whatever one task does to a method, the others go on; it is kept and counted
        logger.info("%s, %s: failed", task, method, exc_info=True)
        error = f"{type(fault).__name__}: {fault}"
    finally:
        for one in cast.methods:
            await one.close()
    return Record(
        task=task,
        method=method,
        trial=trial,
        started_at=started_at,
        wall_s=time.monotonic() - started,
        engine_s=tap.share.seconds,
        scores=dict(played.scores),
        answers=played.answers,
        detail=dict(played.detail),
        error=error,
    )


def scores_by_task(
    records: Mapping[Key, Record], method: str, trials: int
) -> dict[str, list[Mapping[str, Any] | None]]:
    """What `Suite.figures` takes: the scores of each trial of each task; None for one that failed."""
    tasks = dict.fromkeys(task for task, by, _ in records if by == method)
    table: dict[str, list[Mapping[str, Any] | None]] = {}
    for task in tasks:
        played = [records.get((task, method, trial)) for trial in range(trials)]
        table[task] = [None if one.error else one.scores for one in played if one is not None]
    return table
