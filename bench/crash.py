"""A crash campaign: SIGKILL at random moments over tasks of 20 steps whose tools count their calls in a file.

A child works on several tasks at once until it is killed; the next one takes up what it left. Every task has steps of
each kind: idempotent tools, tools that must never run twice with and without a probe, tools that fail now and then,
steps with fallbacks, and, in every third task, a failure at the end that undoes what was done.

After each kill the parent reads the store: what a child had reported as durable must be there, and a step that was
completed stays completed. In the end every task must have ended, every store must verify, and no tool that isn't
idempotent may have run twice for one step.

    scripts/bench crash                  1,000 kills, about two minutes
    scripts/bench crash --kills 50 --seed 7
"""

import argparse
import asyncio
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from flowstate_local import LmdbStore, Toolbox, ToolContext, ToolError, tool
from flowstate_local.stores.base import TaskQuery
from flowstate_local.task_events import (
    RetryRule,
    StepName,
    StepSpec,
    TaskEvent,
    ToolAction,
    ToolUse,
    WorkflowSpec,
)
from flowstate_local.tasks.manager import TaskManager
from flowstate_local.tasks.runner import Runner
from flowstate_local.tasks.verification import verify

SPACE = "campaign"
STEPS = 20
OPEN_TASKS = 6
LONGEST_LIFE_S = 0.12


def mark(folder: Path, kind: str, context: ToolContext) -> None:
    """Leave a line for a call that really ran; one write, so that it is there or not."""
    line = f"{kind} {context.task} {context.step} {context.idempotency_key}\n"
    file = os.open(folder / "effects", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)


def toolbox_of(folder: Path) -> Toolbox:
    """The tools of the campaign; their effects are lines in a file."""

    @tool(idempotent=True)
    async def compute(x: int, context: ToolContext) -> int:
        """Compute something, harmless to repeat."""
        mark(folder, "compute", context)
        await asyncio.sleep(0.001)
        return x + 1

    @tool
    async def pay(x: int, context: ToolContext) -> int:
        """Pay, which must never happen twice."""
        await asyncio.sleep(0.001)
        mark(folder, "pay", context)
        await asyncio.sleep(0.001)
        return x + 1

    @tool(idempotent=True)
    def find(key: str) -> int | None:
        """Say whether a payment of this key took place."""
        for line in effects(folder):
            if line[0] == "pay" and line[3] == key:
                return 1
        return None

    @tool(idempotent=True)
    async def flaky(x: int, context: ToolContext) -> int:
        """Fail every third time."""
        mark(folder, "flaky", context)
        if random.random() < 0.3:
            raise ToolError("not now", kind="unavailable", retryable=True)
        return x + 1

    @tool
    async def refund(x: int, context: ToolContext) -> int:
        """Undo a payment, once."""
        mark(folder, "refund", context)
        await asyncio.sleep(0.001)
        return x

    @tool(idempotent=True)
    async def refuse() -> int:
        """Fail for good."""
        raise ToolError("no", kind="refused")

    return Toolbox([compute, pay, find, flaky, refund, refuse])


def workflow(fails: bool) -> WorkflowSpec:
    """Twenty steps in a chain with some width, of all kinds."""
    steps = [_step(i) for i in range(STEPS - 1)]
    last = _tool("s19", "refuse" if fails else "compute", {} if fails else {"x": 0}, needs=("s18",))
    return WorkflowSpec(name="campaign", steps=(*steps, last), result={"last": "${steps.s19.output}"})


def _step(i: int) -> StepSpec:
    needs = () if i < 2 else (f"s{i - 2:02d}",)
    kind = i % 4
    if kind == 0:
        return _tool(f"s{i:02d}", "compute", {"x": i}, needs=needs)
    if kind == 1:
        probe = ToolUse(tool="find", arguments={"key": "${key}"})
        undo = ToolUse(tool="refund", arguments={"x": i})
        return _tool(f"s{i:02d}", "pay", {"x": i}, needs=needs, probe=probe, undo=undo)
    if kind == 2:
        # Nobody can say what became of it: the task goes on without.
        rule = RetryRule(kinds=("unknown_outcome",), then="give_up")
        return _tool(f"s{i:02d}", "pay", {"x": i}, needs=needs, retry=(rule,), optional=True)
    rule = RetryRule(kinds=("unavailable",), then="later", times=50, delay_s=0.002)
    return _tool(f"s{i:02d}", "flaky", {"x": i}, needs=needs, retry=(rule,))


def _tool(name: str, tool_name: str, arguments: dict[str, Any], **fields: Any) -> StepSpec:
    return StepSpec(name=StepName(name), action=ToolAction(tool=tool_name, arguments=arguments), **fields)


def effects(folder: Path) -> list[list[str]]:
    """The lines that the tools left: kind, task, step, key."""
    try:
        return [line.split() for line in (folder / "effects").read_text().splitlines()]
    except FileNotFoundError:
        return []


# --- the child ----------------------------------------------------------------------------------------------------


def child(folder: Path, report: int, seed: int, *, create: bool) -> None:
    """Work until killed, or until nothing is left to do."""
    random.seed(seed)
    with LmdbStore.open(folder / "store") as store:

        def listener(events: Any) -> None:
            lines = "".join(_durable(event) for event in events)
            if lines:
                os.write(report, lines.encode())

        manager = TaskManager(store, SPACE, listener=listener, snapshot_every=16)
        if create:
            open_tasks = [r for r in manager.tasks() if r.status in ("pending", "running")]
            for _ in range(OPEN_TASKS - len(open_tasks)):
                manager.create(workflow(fails=random.random() < 0.33))
        runner = Runner(manager, toolbox_of(folder), concurrency=OPEN_TASKS, poll_s=0.2)
        asyncio.run(runner.drain())


def _durable(event: TaskEvent) -> str:
    step = getattr(event, "step", "") or "-"
    return f"{event.task} {event.seq} {event.kind} {step}\n"


def start_child(folder: Path, seed: int, *, create: bool) -> tuple[int, int]:
    """Fork a worker; its process number, and where it reports what is durable."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        try:
            child(folder, writing, seed, create=create)
        except BaseException as error:
            print(f"child: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    os.close(writing)
    return pid, reading


def drained(reading: int) -> list[list[str]]:
    """What a child reported; a line that the kill cut off doesn't count."""
    text = b""
    while piece := os.read(reading, 65_536):
        text += piece
    os.close(reading)
    return [line.split() for line in text.decode().split("\n")[:-1]]


# --- the parent ---------------------------------------------------------------------------------------------------


class Campaign:
    """What the parent has seen, and what was wrong."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.completed: dict[str, set[str]] = {}
        self.lost = 0
        self.broken_stores = 0
        self.mid_flight = 0
        self.problems: list[str] = []

    def check(self, reported: list[list[str]]) -> None:
        """What was reported as durable is there, and nothing that was completed came undone."""
        with LmdbStore.open(self.folder / "store") as store:
            manager = TaskManager(store, SPACE)
            for task in {line[0] for line in reported}:
                state = manager.get(task)
                last = max(int(line[1]) for line in reported if line[0] == task)
                if state.seq < last:
                    self.wrong(f"{task}: event {last} was durable, the log ends at {state.seq}")
                done = {line[3] for line in reported if line[0] == task and line[2] == "TaskStepFinished"}
                known = self.completed.setdefault(task, set()) | done
                lost = known - {name for name, step in state.steps.items() if step.status == "completed"}
                if lost:
                    self.wrong(f"{task}: completed before, and no longer: {', '.join(sorted(lost))}")
                self.completed[task] = known
                self.mid_flight += bool(state.running)

    def wrong(self, problem: str) -> None:
        """Count a lost step."""
        self.lost += 1
        self.problems.append(problem)

    def check_store(self) -> None:
        """Everything verifies."""
        with LmdbStore.open(self.folder / "store") as store:
            faults = [*verify(TaskManager(store, SPACE)), *store.verify(SPACE)]
        if faults:
            self.broken_stores += 1
            self.problems += [f"{fault.subject}: {fault.problem}" for fault in faults[:5]]

    def duplicates(self) -> list[str]:
        """Calls that must not be repeated and were."""
        counts = Counter(
            (line[0], line[1], line[2]) for line in effects(self.folder) if line[0] in ("pay", "refund")
        )
        return [f"{' '.join(call)}: {n} times" for call, n in counts.items() if n > 1]

    def unfinished(self) -> list[str]:
        """Tasks that have not ended."""
        with LmdbStore.open(self.folder / "store") as store:
            records = list(store.tasks(TaskQuery(space=SPACE)))
        return [f"{r.id} is {r.status}" for r in records if r.status not in ("completed", "failed")]

    def statuses(self) -> Counter[str]:
        """Tasks by status."""
        with LmdbStore.open(self.folder / "store") as store:
            return Counter(record.status for record in store.tasks(TaskQuery(space=SPACE)))


def run(folder: Path, kills: int, seed: int) -> dict[str, Any]:
    """The whole campaign; its figures."""
    rng = random.Random(seed)
    campaign, started = Campaign(folder), time.monotonic()
    killed = 0
    while killed < kills:
        pid, reading = start_child(folder, rng.getrandbits(32), create=True)
        time.sleep(rng.uniform(0.004, LONGEST_LIFE_S))
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        reported = drained(reading)
        if os.WIFEXITED(status) and os.WEXITSTATUS(status):
            campaign.problems.append("a child failed by itself")
        killed += os.WIFSIGNALED(status)
        campaign.check(reported)
        if killed % 100 == 0:
            campaign.check_store()
            print(f"{killed} kills, {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
    pid, reading = start_child(folder, seed, create=False)
    reported = drained(reading)
    os.waitpid(pid, 0)
    campaign.check(reported)
    campaign.check_store()
    return _figures(campaign, killed, time.monotonic() - started)


def _figures(campaign: Campaign, kills: int, elapsed_s: float) -> dict[str, Any]:
    duplicates, unfinished, statuses = campaign.duplicates(), campaign.unfinished(), campaign.statuses()
    for problem in [*campaign.problems, *duplicates, *unfinished][:20]:
        print(problem, file=sys.stderr)
    calls = Counter(line[0] for line in effects(campaign.folder))
    values: dict[str, tuple[float, str]] = {
        "kills": (kills, "SIGKILLs"),
        "kills_with_a_step_under_way": (campaign.mid_flight, "tasks"),
        "tasks": (sum(statuses.values()), "tasks"),
        "completed": (statuses["completed"], "tasks"),
        "failed_and_undone": (statuses["failed"], "tasks"),
        "calls": (sum(calls.values()), "calls"),
        "lost_steps": (campaign.lost, "steps"),
        "duplicated_effects": (len(duplicates), "calls"),
        "stores_that_do_not_verify": (campaign.broken_stores, "stores"),
        "unfinished_tasks": (len(unfinished), "tasks"),
        "other_problems": (len(campaign.problems) - campaign.lost, "problems"),
        "elapsed": (round(elapsed_s, 1), "s"),
    }
    return {"name": "crash", "figures": {k: {"value": v, "unit": u} for k, (v, u) in values.items()}}


BAD = ("lost_steps", "duplicated_effects", "stores_that_do_not_verify", "unfinished_tasks", "other_problems")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="where to keep the store; by default a temporary folder")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="flowstate-crash-") as temporary:
        folder = args.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        result = run(folder, args.kills, args.seed)
    print(json.dumps(result))
    return int(any(result["figures"][name]["value"] for name in BAD))


if __name__ == "__main__":
    sys.exit(main())
