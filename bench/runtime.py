"""Everything of a step but the model, at 10, 1,000 and 100,000 nodes in the space.

A scripted engine answers at once; its own work (tokens, replies) is measured and taken off. One request of a look, an
act, a note and a reply is run again and again in a space that was filled before, on the LMDB store with every commit synced.
The milliseconds are medians over steps. Memory is that of a process of its own that opens the largest space and runs
requests in it, without any engine library loaded.
"""

import argparse
import asyncio
import json
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from flowstate_local.completion import Chunk, Constraint, Sampling
from flowstate_local.events import DeltaCommitted, RequestFinished, RequestStarted, StepStarted
from flowstate_local.loop import Agent, StepTrace
from flowstate_local.nodes import Node, NodeId, RequestId
from flowstate_local.protocol import StepOutput
from flowstate_local.repository import RequestRecord
from flowstate_local.stores.base import FinishedRequest
from flowstate_local.stores.lmdb import LmdbStore
from flowstate_local.testing import ScriptedEngine, step
from flowstate_local.tools import tool

NODES_PER_REQUEST = 10
SIZES = (10, 1_000, 100_000)


class TimedEngine(ScriptedEngine):
    """Counts the seconds spent inside it, so that they can be taken off."""

    inside_s = 0.0

    async def stream(
        self,
        prompt_ids: Sequence[int],
        constraint: Constraint | None,
        sampling: Sampling,
        *,
        cache_salt: str | None = None,
    ) -> AsyncIterator[Chunk]:
        started = time.perf_counter()
        chunks = [c async for c in super().stream(prompt_ids, constraint, sampling, cache_salt=cache_salt)]
        self.prompts.clear()
        self.prompt_ids.clear()
        self.constraints.clear()
        self._cached.clear()
        self.inside_s += time.perf_counter() - started
        for chunk in chunks:
            yield chunk


@tool(idempotent=True)
def look_up(word: str) -> str:
    """Look a word up."""
    return f"{word}: " + "text " * 100


def fill(store: LmdbStore, space: str, n_nodes: int, progress: bool) -> None:
    """Persist `n_nodes` nodes, ten a request, as requests of the loop would have."""
    rng = random.Random(0)
    for number in range(1, n_nodes // NODES_PER_REQUEST + 1):
        head = store.head(space)
        request, at = RequestId(f"r{number}"), float(number)
        first = head.nodes + 1
        nodes = [
            Node(
                id=NodeId(f"n{first + i}"),
                type="knowledge",
                summary=f"fact {first + i} about {rng.choice(['ships', 'trains', 'hotels', 'prices'])}",
                content="word " * 40,
                request=request,
                step=1,
                created_at=at,
            )
            for i in range(NODES_PER_REQUEST)
        ]
        common = {"request": request, "at": at}
        head = store.append(
            space,
            [RequestStarted(text=f"do thing {number}", step=0, **common), StepStarted(step=1, **common)],
            expected_seq=head.seq,
        )
        ids = tuple(node.id for node in nodes)
        finished = RequestFinished(step=1, outcome="replied", message="done", nodes=ids, **common)
        record = RequestRecord(
            id=request,
            text=f"do thing {number}",
            outcome="replied",
            message="done",
            nodes=ids,
            first_seq=head.open_seq,
            last_seq=0,
            steps=1,
            at=at,
        )
        done = FinishedRequest(
            record=record,
            nodes=nodes,
            evidence=[],
            events=[DeltaCommitted(step=1, added=tuple(nodes), **common), finished],
            index_floor=max(0, number - 5),
        )
        store.persist(space, done, expected_version=head.version, expected_seq=head.seq)
        if progress and number % 1_000 == 0:
            print(f"filled {number * NODES_PER_REQUEST:,} nodes", file=sys.stderr)


async def measure(store: LmdbStore, space: str, n_requests: int) -> dict[str, float]:
    """Median milliseconds of a step, and of the first step of a request (which loads the index)."""
    marks: list[tuple[float, float, int]] = []

    def on_step(trace: StepTrace) -> None:
        marks.append((time.perf_counter(), engine.inside_s, trace.step))

    replies: list[StepOutput] = []
    engine = TimedEngine(lambda prompt: replies.pop(0), check=False)
    agent = Agent(engine, store, [look_up], on_step=on_step)
    steps: list[float] = []
    firsts: list[float] = []
    for _ in range(n_requests):
        marks[:] = [(time.perf_counter(), engine.inside_s, 0)]
        number, evidence = store.head(space).nodes, store.head(space).evidence
        replies.extend(
            [
                step(focus=[f"n{number}", f"n{number - 1}"]),
                step(calls=[("look_up", {"word": f"w{number}"})]),
                step(
                    delta=[
                        {
                            "type": "knowledge",
                            "id": f"n{number + 1}",
                            "summary": "a new fact",
                            "refs": [{"relation": "derives", "target": f"n{number}"}],
                            "evidence": [f"t{evidence + 1}"],
                        }
                    ]
                ),
                step(message="done"),
            ]
        )
        result = await agent.run("Find the new fact", space=space)
        assert result.outcome == "replied", result
        for (t0, e0, _), (t1, e1, number_of_step) in zip(marks, marks[1:], strict=False):
            spent = (t1 - t0 - (e1 - e0)) * 1_000
            (firsts if number_of_step == 1 else steps).append(spent)
    return {"step": statistics.median(steps + firsts), "first": statistics.median(firsts)}


def memory_child(folder: Path) -> None:
    """Open the largest space, run requests in it, print the peak resident megabytes."""
    with LmdbStore.open(folder) as store:
        asyncio.run(measure(store, str(SIZES[-1]), 5))
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1_024)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print only the JSON line")
    parser.add_argument("--requests", type=int, default=30, help="measured requests per size (4 steps each)")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child is not None:
        memory_child(options.child)
        return
    figures: dict[str, dict[str, object]] = {}
    with tempfile.TemporaryDirectory(prefix="flowstate-bench-") as name:
        folder = Path(name) / "store"
        with LmdbStore.open(folder) as store:
            for size in SIZES:
                fill(store, str(size), size, progress=not options.json)
                asyncio.run(measure(store, str(size), 3))
            for size in SIZES:
                found = asyncio.run(measure(store, str(size), options.requests))
                figures[f"step_ms_{size}"] = {"value": round(found["step"], 3), "unit": "ms"}
                figures[f"first_step_ms_{size}"] = {"value": round(found["first"], 3), "unit": "ms"}
                if not options.json:
                    print(
                        f"{size:>8,} nodes: {found['step']:.2f} ms a step, {found['first']:.2f} ms the first"
                    )
        child = subprocess.run(
            [sys.executable, __file__, "--child", str(folder)], capture_output=True, text=True, check=True
        )
    smallest, largest = (float(str(figures[f"step_ms_{s}"]["value"])) for s in (SIZES[0], SIZES[-1]))
    figures["flatness"] = {"value": round(largest / smallest, 2), "unit": "ratio of largest to smallest"}
    figures["resident_mb"] = {"value": round(float(child.stdout), 1), "unit": "MiB"}
    if not options.json:
        print(f"peak resident memory at {SIZES[-1]:,} nodes: {float(child.stdout):.0f} MiB")
    print(json.dumps({"name": "runtime", "figures": figures}))


if __name__ == "__main__":
    main()
