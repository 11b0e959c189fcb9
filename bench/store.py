"""Time and bytes of making one agent step durable, beside LangGraph's SqliteSaver.

Each step brings one observation of 2 kB. Both sides sync every commit to the disk of --folder and take turns,
step by step, so that both meet the same machine. Only the commit is timed: both sides' objects are made before.

flowstate_local (LmdbStore): one append per step, of ModelReplied (300 characters), DeltaCommitted (one node),
  ToolStarted, ToolFinished with the observation as a raw result, and StepStarted.
LangGraph (SqliteSaver, its defaults: WAL, synchronous=FULL): what Pregel does per superstep, that is put_writes
  of the observation by the step's task, then put of the next checkpoint, whose state is the list of all
  observations so far (an accumulating channel). The peer stores neither the model's reply nor a node.

An agent that must never repeat a tool call commits twice per step (before and after the tool) on our side, and
runs two supersteps (model, tools) on the other; the figures are per commit and per superstep.

Milliseconds are medians: over all steps of a run (step_N), and over its last 20 (step_N_end), when the history
is longest. Bytes are those of the files after closing, divided by the
steps. Ratios are peer / ours: above 1, we are faster or smaller.
"""

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from flowstate_local.events import (
    DeltaCommitted,
    Event,
    ModelReplied,
    RequestStarted,
    StepStarted,
    ToolFinished,
    ToolStarted,
)
from flowstate_local.nodes import EvidenceId, Node, NodeId, RequestId
from flowstate_local.stores.base import digest
from flowstate_local.stores.lmdb import LmdbStore

OBSERVATION_CHARS = 2_000
REPLY_CHARS = 300
LAST_STEPS = 20
FIGURES = {
    "step": ("step_{}", "ms"),
    "step_end": ("step_{}_end", "ms"),
    "bytes": ("bytes_per_step_{}", "bytes"),
}
REQUEST = RequestId("r1")


def prose(random_source: random.Random, n_chars: int) -> str:
    """Letters in words of random length: text that compresses about as far as JSON full of names and numbers."""
    words: list[str] = []
    length = 0
    while length < n_chars:
        word = "".join(
            random_source.choices("etaoinshrdlucmfwypvbgkjqxz0123456789", k=random_source.randint(2, 9))
        )
        words.append(word)
        length += len(word) + 1
    return " ".join(words)[:n_chars]


class Ours:
    """One request of one space; `commit` returns when the step is durable."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "ours"
        self.store = LmdbStore.open(self.folder)
        start = RequestStarted(request=REQUEST, step=0, at=time.time(), text="plan a trip")
        self.seq = self.store.append("bench", [start], expected_seq=0).seq

    def prepare(self, number: int, reply: str, observation: str) -> tuple[list[Event], dict[str, bytes]]:
        """The events of a step, as the loop hands them over."""
        at, evidence, raw = time.time(), EvidenceId(f"t{number}"), observation.encode()
        node = Node(
            id=NodeId(f"k{number}"),
            type="knowledge",
            summary=reply[:80],
            content=reply[80:],
            request=REQUEST,
            step=number,
            created_at=at,
        )
        model = ModelReplied(
            request=REQUEST,
            step=number,
            at=at,
            text=reply,
            finish_reason="stop",
            prompt_tokens=4_000,
            cached_tokens=3_900,
            generated_tokens=90,
        )
        delta = DeltaCommitted(request=REQUEST, step=number, at=at, added=(node,))
        call = ToolStarted(
            request=REQUEST,
            step=number,
            at=at,
            evidence=evidence,
            name="search",
            arguments={"query": reply[:20]},
            idempotency_key=uuid.uuid4().hex,
        )
        result = ToolFinished(
            request=REQUEST,
            step=number,
            at=at,
            evidence=evidence,
            name="search",
            digest=digest(raw),
            size_bytes=len(raw),
            size_chars=len(observation),
        )
        then = StepStarted(request=REQUEST, step=number + 1, at=at)
        return [model, delta, call, result, then], {result.digest: raw}

    def commit(self, step: tuple[list[Event], dict[str, bytes]]) -> None:
        self.seq = self.store.append("bench", *step, expected_seq=self.seq).seq

    def close(self) -> None:
        self.store.close()


class Peer:
    """One thread of a graph with one node and one accumulating channel."""

    def __init__(self, folder: Path) -> None:
        from langgraph.checkpoint.base import empty_checkpoint
        from langgraph.checkpoint.sqlite import SqliteSaver

        self.folder = folder / "peer"
        self.folder.mkdir()
        self._saver = SqliteSaver.from_conn_string(str(self.folder / "checkpoints.sqlite"))
        self.saver = self._saver.__enter__()
        self._empty = empty_checkpoint
        self.observations: list[str] = []
        self.config = {"configurable": {"thread_id": "bench", "checkpoint_ns": ""}}
        self.commit(self._checkpoint(0))

    def prepare(self, number: int, reply: str, observation: str) -> tuple[Any, ...]:
        """What Pregel hands to its saver at the end of a superstep."""
        self.observations.append(observation)
        return [("observations", [observation])], str(uuid.uuid4()), *self._checkpoint(number)

    def commit(self, step: tuple[Any, ...]) -> None:
        *writes, checkpoint, metadata, versions = step
        if writes:
            self.saver.put_writes(self.config, *writes)
        self.config = self.saver.put(self.config, checkpoint, metadata, versions)

    def _checkpoint(self, number: int) -> tuple[Any, ...]:
        version = f"{number + 1:032}.0"
        checkpoint = self._empty()
        checkpoint["channel_values"] = {"observations": self.observations}
        checkpoint["channel_versions"] = {"observations": version}
        checkpoint["versions_seen"] = {"agent": {"observations": version}}
        checkpoint["updated_channels"] = ["observations"]
        metadata = {"source": "loop", "step": number, "parents": {}}
        return checkpoint, metadata, {"observations": version}

    def close(self) -> None:
        self._saver.__exit__(None, None, None)


def folder_bytes(folder: Path) -> int:
    """What the files hold, without LMDB's lock file, which is no data and has a fixed size."""
    return sum(f.stat().st_size for f in folder.iterdir() if f.name != "lock.mdb")


def measure(folder: Path, n_steps: int) -> dict[str, dict[str, float]]:
    """Run both for `n_steps`, taking turns. By side: the figures of this run."""
    source = random.Random(n_steps)
    with closing(Ours(folder)) as ours, closing(Peer(folder)) as peer:
        times: dict[str, list[float]] = {"ours": [], "peer": []}
        for number in range(1, n_steps + 1):
            texts = prose(source, REPLY_CHARS), prose(source, OBSERVATION_CHARS)
            turn = [("ours", ours), ("peer", peer)]
            for name, side in turn if number % 2 else reversed(turn):
                step = side.prepare(number, *texts)
                begin = time.perf_counter()
                side.commit(step)
                times[name].append((time.perf_counter() - begin) * 1e3)
    return {
        name: {
            "step": statistics.median(times[name]),
            "step_end": statistics.median(times[name][-LAST_STEPS:]),
            "bytes": folder_bytes(side.folder) / n_steps,
        }
        for name, side in (("ours", ours), ("peer", peer))
    }


@contextmanager
def scratch(parent: Path | None) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="bench-store-", dir=parent) as name:
        yield Path(name)


def figures(n_steps: list[int], n_rounds: int, parent: Path | None) -> dict[str, dict[str, object]]:
    result: dict[str, dict[str, object]] = {}
    for n in n_steps:
        rounds = []
        for number in range(1, n_rounds + 1):
            print(f"store: {n} steps, round {number} of {n_rounds}", file=sys.stderr)
            with scratch(parent) as folder:
                rounds.append(measure(folder, n))
        for key, (name, unit) in FIGURES.items():
            ours, peer = (statistics.median(r[side][key] for r in rounds) for side in ("ours", "peer"))
            result[name.format(n)] = {
                "value": round(ours, 3),
                "unit": unit,
                "peer": round(peer, 3),
                "ratio": round(peer / ours, 2),
            }
    return result


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="bench/store.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, nargs="+", default=[20, 300], help="lengths of the runs")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each length; their median counts")
    parser.add_argument(
        "--folder", type=Path, help="on the disk to measure (default: the system's temporary folder)"
    )
    parser.add_argument("--json", action="store_true", help="print the JSON line only")
    options = parser.parse_args()
    result = figures(options.steps, options.rounds, options.folder)
    if not options.json:
        print(f"{'':22}{'ours':>12}{'SqliteSaver':>14}{'ratio':>8}")
        for name, figure in result.items():
            print(f"{name:22}{figure['value']:>12}{figure['peer']:>14}{figure['ratio']:>8}  {figure['unit']}")
    print(json.dumps({"name": "store", "figures": result}))


if __name__ == "__main__":
    main()
