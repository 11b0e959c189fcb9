"""Batch against the bare engine: how much of its throughput is left when agents, grammars and a durable store go with it.

The peer is the same engine given the same prompts, the same grammars and the same bounds, as many at once, with
nothing in between. Both begin with an empty prefix cache, and they take turns.

    tokens_per_s    generated tokens a second; ratio to the bare engine's
    steps_per_s     model calls a second
    tasks           done, of how many
"""

import argparse
import asyncio
import itertools
import json
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flowstate_local import batch
from flowstate_local.batch import BatchOptions, BatchTask
from flowstate_local.bench.tap import Proxy
from flowstate_local.completion import Chunk, Constraint, Sampling
from flowstate_local.engines.base import Engine, complete
from flowstate_local.engines.vllm import VllmEngine
from flowstate_local.models import resolve
from flowstate_local.stores.lmdb import LmdbStore
from flowstate_local.tools import tool

MODEL = "smollm2-135m-instruct"
MAX_TOKENS = 200
MAX_STEPS = 3
PLACES = ("Ghent", "Lyon", "Porto", "Turin", "Oban", "Perth", "Lisbon", "Seville")

_salts = itertools.count()


@tool(idempotent=True)
def find_trains(origin: str, destination: str) -> str:
    """Find the trains between two places."""
    return f"From {origin} to {destination}: T1 at 9:15 for 20 dollars, T2 at 11:30 for 14 dollars."


@tool(idempotent=True)
def weather(place: str) -> str:
    """Look up the weather."""
    return f"In {place} it rains."


TOOLS = [find_trains, weather]


@dataclass
class Recorder(Proxy):
    """The engine, with a prefix cache of its own, that notes what it was asked."""

    calls: list[tuple[list[int], Constraint | None, Sampling]] = field(default_factory=list)
    generated: int = 0
    salt: str = field(default_factory=lambda: f"run {next(_salts)}")

    async def stream(
        self,
        prompt_ids: Sequence[int],
        constraint: Constraint | None,
        sampling: Sampling,
        *,
        cache_salt: str | None = None,
    ) -> AsyncIterator[Chunk]:
        self.calls.append((list(prompt_ids), constraint, sampling))
        async for chunk in self.engine.stream(prompt_ids, constraint, sampling, cache_salt=self.salt):
            if chunk.completion is not None:
                self.generated += chunk.completion.generated_tokens
            yield chunk


def tasks(number: int) -> list[BatchTask]:
    made = []
    for i in range(number):
        here, there = PLACES[i % 8], PLACES[(i // 8 + i + 1) % 8]
        text = f"How do I get from {here} to {there} on day {i}?"
        made.append(
            BatchTask.model_validate({"id": str(i), "requests": [text], "tools": f"{__name__}:TOOLS"})
        )
    return made


async def with_agents(engine: Engine, number: int, agents: int) -> tuple[Recorder, float, batch.Progress]:
    """The batch; what it asked the engine, and how long it took."""
    recorder = Recorder(engine)
    options = BatchOptions(
        sampling=Sampling(temperature=0.0, max_tokens=MAX_TOKENS), max_steps=MAX_STEPS, concurrency=agents
    )
    with (
        tempfile.TemporaryDirectory(prefix="flowstate-bench-") as name,
        LmdbStore.open(Path(name) / "s") as store,
    ):
        started = time.perf_counter()
        progress = await batch.run(tasks(number), Path(name), recorder, store, options)
        return recorder, time.perf_counter() - started, progress


async def bare(engine: Engine, asked: Recorder, agents: int) -> tuple[int, float]:
    """The same calls in the same order with nothing in between: tokens generated, and how long it took."""
    waiting, salt = iter(asked.calls), f"run {next(_salts)}"
    generated = 0

    async def worker() -> None:
        nonlocal generated
        for prompt, constraint, sampling in waiting:
            completion = await complete(engine, prompt, constraint, sampling, cache_salt=salt)
            generated += completion.generated_tokens

    started = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(agents)))
    return generated, time.perf_counter() - started


async def measure(number: int, agents: int, rounds: int, *, quiet: bool) -> dict[str, Any]:
    engine = await VllmEngine.start(str(resolve(MODEL)), context_window=8_192, max_num_seqs=agents)
    try:
        warm, _, _ = await with_agents(engine, agents, agents)
        await bare(engine, warm, agents)
        ours, theirs = [], []
        for _ in range(rounds):
            asked, elapsed_s, progress = await with_agents(engine, number, agents)
            ours.append((asked.generated / elapsed_s, len(asked.calls) / elapsed_s))
            generated, bare_s = await bare(engine, asked, agents)
            theirs.append((generated / bare_s, len(asked.calls) / bare_s))
            if not quiet:
                print(
                    f"{agents} agents: {ours[-1][0]:.0f} tokens/s, {ours[-1][1]:.2f} steps/s; "
                    f"bare engine: {theirs[-1][0]:.0f} tokens/s, {theirs[-1][1]:.2f} calls/s"
                )
    finally:
        await engine.close()
    best = [max(rates) for rates in zip(*ours, strict=True)]
    peer = [max(rates) for rates in zip(*theirs, strict=True)]
    units = (("tokens_per_s", "tokens/s"), ("steps_per_s", "steps/s"))
    figures: dict[str, Any] = {
        name: {"value": round(a, 2), "unit": unit, "peer": round(b, 2), "ratio": round(a / b, 3)}
        for (name, unit), a, b in zip(units, best, peer, strict=True)
    }
    return figures | {"tasks": {"value": progress.done, "unit": f"of {progress.total}"}}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print only the JSON line")
    parser.add_argument("--tasks", type=int, default=128)
    parser.add_argument("--agents", type=int, default=64, help="at once")
    parser.add_argument("--rounds", type=int, default=2, help="each side; the faster one counts")
    options = parser.parse_args()
    figures = asyncio.run(measure(options.tasks, options.agents, options.rounds, quiet=options.json))
    print(json.dumps({"name": "batch", "figures": figures}))


if __name__ == "__main__":
    main()
