"""Durable task steps per second beside LangGraph and DBOS, resume of a long log, and updates from many processes.

All sides run one workflow of 20 steps, each of which takes the output of the one before and returns some 200 bytes,
with their state on the disk of --folder. They take turns, workflow by workflow.

flowstate_local (Runner, LmdbStore): RUNNING is durable before a step runs, its output before anything builds on it,
  and each step's plan with its reason; one synced commit per step.
LangGraph (StateGraph, SqliteSaver, its defaults: WAL, synchronous=FULL, durability="sync"): after each superstep a
  checkpoint, before which its writes are put. Nothing is recorded before a step runs.
DBOS (SQLite system database, its defaults: journal_mode=delete, synchronous=FULL): the input of the workflow, then
  the output of each step. Nothing is recorded before a step runs.

Steps per second are medians over workflows (serial: one at a time; concurrent: 16 at once). Ratios are ours / peer:
above 1, we are faster; for bytes and milliseconds peer / ours: above 1, we are smaller.

    scripts/bench tasks
    scripts/bench tasks --workflows 3 --updates 100 --skip-peers
"""

import argparse
import asyncio
import contextlib
import json
import logging
import multiprocessing
import operator
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any, TypedDict

from pydantic import BaseModel

from flowstate_local import LmdbStore, Runner, TaskManager, Toolbox, tool
from flowstate_local.task_events import StepName, StepSpec, TaskLogged, ToolAction, WorkflowSpec

STEPS = 20
AT_ONCE = 16
LONG = 300
EVENTS = 10_000
PROCESSES = 8
PADDING = "x" * 180


def work(value: dict[str, Any]) -> dict[str, Any]:
    """What every step does, on every side."""
    return {"n": value["n"] + 1, "text": PADDING}


# --- ours ---------------------------------------------------------------------------------------------------------


@tool(for_model=False)
async def step(value: dict[str, Any]) -> dict[str, Any]:
    """One step."""
    return work(value)


def workflow(n_steps: int) -> WorkflowSpec:
    def one(i: int) -> StepSpec:
        before = {"n": 0} if i == 0 else f"${{steps.s{i - 1:03}.output}}"
        needs = () if i == 0 else (StepName(f"s{i - 1:03}"),)
        return StepSpec(
            name=StepName(f"s{i:03}"),
            action=ToolAction(tool="step", arguments={"value": before}),
            needs=needs,
        )

    return WorkflowSpec(name="bench", steps=tuple(map(one, range(n_steps))))


class Ours:
    """Tasks in an LMDB store."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "ours"
        self.store = LmdbStore.open(self.folder)
        self.manager = TaskManager(self.store, "bench")
        self.toolbox = Toolbox([step])

    def run(self, n_workflows: int, n_steps: int = STEPS) -> None:
        spec = workflow(n_steps)
        for _ in range(n_workflows):
            self.manager.create(spec)
        ended = asyncio.run(Runner(self.manager, self.toolbox, concurrency=AT_ONCE).drain())
        assert [state.status for state in ended] == ["completed"] * n_workflows

    def close(self) -> None:
        self.store.close()


# --- peers --------------------------------------------------------------------------------------------------------


class State(TypedDict):
    """The state of the graph: the last output, and how many steps ran."""

    value: dict[str, Any]
    done: Annotated[int, operator.add]


class LangGraph:
    """A StateGraph of the steps in a row."""

    def __init__(self, folder: Path) -> None:
        from langgraph.checkpoint.sqlite import SqliteSaver

        self.folder = folder / "langgraph"
        self.folder.mkdir()
        self._context = SqliteSaver.from_conn_string(str(self.folder / "checkpoints.sqlite"))
        self.saver = self._context.__enter__()
        self._graphs: dict[int, Any] = {}
        self._threads = 0

    def run(self, n_workflows: int, n_steps: int = STEPS) -> None:
        if n_steps not in self._graphs:
            self._graphs[n_steps] = self._graph(n_steps)
        graph = self._graphs[n_steps]

        def one(number: int) -> None:
            config = {"configurable": {"thread_id": str(number)}, "recursion_limit": n_steps + 10}
            ended = graph.invoke({"value": {"n": 0}, "done": 0}, config, durability="sync")
            assert ended["value"]["n"] == n_steps

        numbers = range(self._threads, self._threads + n_workflows)
        self._threads += n_workflows
        if n_workflows == 1:
            one(numbers[0])
            return
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(one, numbers))

    def _graph(self, n_steps: int) -> Any:
        from langgraph.graph import END, START, StateGraph

        builder = StateGraph(State)
        names = [f"s{i:03}" for i in range(n_steps)]
        for name in names:
            builder.add_node(name, lambda state: {"value": work(state["value"]), "done": 1})
        for before, after in zip([START, *names], [*names, END], strict=True):
            builder.add_edge(before, after)
        return builder.compile(checkpointer=self.saver)

    def close(self) -> None:
        self._context.__exit__(None, None, None)


class Dbos:
    """A workflow function that calls a step function."""

    def __init__(self, folder: Path) -> None:
        from dbos import DBOS

        self.folder = folder / "dbos"
        self.folder.mkdir()
        logging.getLogger("dbos").setLevel(logging.ERROR)
        DBOS(
            config={
                "name": "bench",
                "system_database_url": f"sqlite:///{self.folder / 'system.sqlite'}",
                "log_level": "ERROR",
                "run_admin_server": False,
            }
        )
        self._dbos = DBOS

        @DBOS.step()
        def one(value: dict[str, Any]) -> dict[str, Any]:
            return work(value)

        @DBOS.workflow()
        def whole(n_steps: int) -> int:
            value: dict[str, Any] = {"n": 0}
            for _ in range(n_steps):
                value = one(value)
            return int(value["n"])

        self._whole = whole
        DBOS.launch()

    def run(self, n_workflows: int, n_steps: int = STEPS) -> None:
        if n_workflows == 1:
            assert self._whole(n_steps) == n_steps
            return
        handles = [self._dbos.start_workflow(self._whole, n_steps) for _ in range(n_workflows)]
        assert [handle.get_result() for handle in handles] == [n_steps] * n_workflows

    def close(self) -> None:
        self._dbos.destroy()


# --- measure ------------------------------------------------------------------------------------------------------


def rate(side: Any, n_workflows: int) -> float:
    """Steps per second of some workflows, run together."""
    begin = time.perf_counter()
    side.run(n_workflows)
    return n_workflows * STEPS / (time.perf_counter() - begin)


def rates(sides: dict[str, Any], rounds: int, n_workflows: int) -> dict[str, float]:
    """Medians over rounds in which all sides take turns."""
    found: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds):
        turn = list(sides.items())
        for name, side in turn if number % 2 else reversed(turn):
            found[name].append(rate(side, n_workflows))
    return {name: statistics.median(values) for name, values in found.items()}


def folder_bytes(folder: Path) -> int:
    """What the files hold, without LMDB's lock file, which has a fixed size."""
    return sum(f.stat().st_size for f in folder.iterdir() if f.name != "lock.mdb")


def bytes_per_step(make: Callable[[Path], Any], n_steps: int, n_workflows: int) -> float:
    """Bytes on disk per step of workflows of this length."""
    with tempfile.TemporaryDirectory(prefix="bench-tasks-") as name:
        side = make(Path(name))
        for _ in range(n_workflows):
            side.run(1, n_steps)
        side.close()
        return folder_bytes(side.folder) / (n_steps * n_workflows)


def resume_ms(folder: Path, snapshot_every: int) -> float:
    """Milliseconds from a closed store to the state of a task of 10,000 events."""
    path = folder / f"long-{snapshot_every}"
    with LmdbStore.open(path) as store:
        manager = TaskManager(store, "bench", snapshot_every=snapshot_every)
        task = manager.create(workflow(STEPS)).id
        for start in range(0, EVENTS - 1, 50):
            manager.commit(task, lambda state, start=start: _logs(state, start))  # type: ignore[misc]
    times = []
    for _ in range(5):
        begin = time.perf_counter()
        with LmdbStore.open(path) as store:
            state = TaskManager(store, "bench").get(task)
        times.append((time.perf_counter() - begin) * 1e3)
        assert state.seq >= EVENTS
    return statistics.median(times)


def _logs(state: Any, start: int) -> list[TaskLogged]:
    return [TaskLogged(task=state.id, at=1.0, message=f"row {start + i}") for i in range(50)]


class Counter(BaseModel):
    """The state that all processes change."""

    n: int = 0


def bump(folder: str, times: int, conflicts: Any) -> None:
    """One process: so many updates of one task."""

    def more(state: Counter) -> None:
        state.n += 1

    with LmdbStore.open(folder) as store:
        manager = TaskManager(store, "bench", state_type=Counter)
        for _ in range(times):
            manager.update("counter", more)
        conflicts.put(manager.conflicts)


def updates(folder: Path, times: int) -> tuple[int, int, float]:
    """Eight processes update one task: the sum, the races that were lost and run again, updates per second."""
    path = folder / "counter"
    with LmdbStore.open(path) as store:
        TaskManager(store, "bench", state_type=Counter).create(workflow(1), task="counter")
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    workers = [context.Process(target=bump, args=(str(path), times, queue)) for _ in range(PROCESSES)]
    begin = time.perf_counter()
    for worker in workers:
        worker.start()
    lost = sum(queue.get() for _ in workers)
    elapsed_s = time.perf_counter() - begin
    for worker in workers:
        worker.join()
    with LmdbStore.open(path) as store:
        manager = TaskManager(store, "bench", state_type=Counter)
        return manager.user_state(manager.get("counter")).n, lost, PROCESSES * times / elapsed_s


def figure(
    value: float, unit: str, peer: float | None = None, *, more_is_better: bool = True
) -> dict[str, Any]:
    """A figure, and how it compares."""
    found: dict[str, Any] = {"value": round(value, 2), "unit": unit}
    if peer is not None:
        ratio = value / peer if more_is_better else peer / value
        found |= {"peer": round(peer, 2), "ratio": round(ratio, 2)}
    return found


@contextlib.contextmanager
def scratch(parent: Path | None) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="bench-tasks-", dir=parent) as name:
        yield Path(name)


def measure(options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """All figures."""
    makers: dict[str, Callable[[Path], Any]] = {"ours": Ours}
    if not options.skip_peers:
        makers |= {"langgraph": LangGraph, "dbos": Dbos}
    peers = [name for name in makers if name != "ours"]
    result: dict[str, dict[str, Any]] = {}
    with scratch(options.folder) as folder:
        sides = {name: make(folder) for name, make in makers.items()}
        for side in sides.values():
            side.run(1)  # whatever is made on first use
        for name, n_workflows in (("serial", 1), ("concurrent", AT_ONCE)):
            say(f"{name}: {options.workflows} rounds of {n_workflows}")
            found = rates(sides, options.workflows, n_workflows)
            for peer in peers:
                result[f"{name}_steps_vs_{peer}"] = figure(found["ours"], "steps/s", found[peer])
            if not peers:
                result[f"{name}_steps"] = figure(found["ours"], "steps/s")
        for side in sides.values():
            side.close()
        for n_steps, n_workflows in ((STEPS, 15), (LONG, 1)):
            say(f"bytes per step at {n_steps} steps")
            ours = bytes_per_step(Ours, n_steps, n_workflows)
            theirs = None if options.skip_peers else bytes_per_step(LangGraph, n_steps, n_workflows)
            result[f"bytes_per_step_{n_steps}"] = figure(ours, "bytes", theirs, more_is_better=False)
        say(f"resume of {EVENTS:,} events")
        with_snapshots, without = resume_ms(folder, 256), resume_ms(folder, 10**9)
        result["resume_10000"] = figure(with_snapshots, "ms")
        result["resume_10000_without_snapshots"] = figure(without, "ms")
        say(f"{PROCESSES} processes, {options.updates} updates each")
        total, lost, speed = updates(folder, options.updates)
        result["updates_counted"] = {**figure(total, "updates"), "expected": PROCESSES * options.updates}
        result["updates_run_again"] = figure(lost, "updates")
        result["updates"] = figure(speed, "updates/s")
    return result


def say(text: str) -> None:
    print(f"tasks: {text}", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="bench/tasks.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workflows", type=int, default=11, help="rounds of each speed; their median counts")
    parser.add_argument("--updates", type=int, default=1_000, help="updates of each of the eight processes")
    parser.add_argument("--folder", type=Path, help="on the disk to measure (default: the temporary folder)")
    parser.add_argument("--skip-peers", action="store_true", help="measure only ours")
    parser.add_argument("--json", action="store_true", help="print the JSON line only")
    options = parser.parse_args()
    result = measure(options)
    if not options.json:
        print(f"{'':34}{'ours':>12}{'peer':>12}{'ratio':>8}")
        for name, found in result.items():
            peer, ratio = found.get("peer", ""), found.get("ratio", "")
            print(f"{name:34}{found['value']:>12}{peer:>12}{ratio:>8}  {found['unit']}")
    print(json.dumps({"name": "tasks", "figures": result}))


if __name__ == "__main__":
    main()
