"""A batch on a scripted model, in a process that may be killed: `python -m tests.batch_child FOLDER`."""

import asyncio
import json
import re
import sys
import time
from pathlib import Path

from flowstate_local import batch
from flowstate_local.batch import BatchOptions, BatchTask, Progress
from flowstate_local.protocol import StepOutput
from flowstate_local.stores.lmdb import LmdbStore
from flowstate_local.testing import ScriptedEngine, step
from flowstate_local.tools import ToolContext, tool

N_TASKS = 200


def tasks() -> list[BatchTask]:
    """Every third task has a fresh memory; the others share twenty."""
    return [
        BatchTask.model_validate(
            {
                "id": f"task {i}",
                "space": None if i % 3 == 0 else f"shared{i % 20}",
                "requests": [f"Do part {part} of job {i}" for part in "ab"],
                "tools": "tests.batch_child:TOOLS",
            }
        )
        for i in range(N_TASKS)
    ]


@tool(idempotent=True)
def work(job: str, context: ToolContext) -> str:
    """Do the job, leaving a mark with the key of the call."""
    time.sleep(0.001)
    with open("marks.jsonl", "a") as file:
        file.write(json.dumps([context.task, context.step, context.idempotency_key]) + "\n")
    return f"the job {job} is done"


TOOLS = [work]


def plays(prompt: str) -> StepOutput:
    """Call the tool, write down what it said, reply. Knows only the prompt, so the order of tasks doesn't matter."""
    turn = prompt.rpartition("<|user|>")[2]
    asked = re.search(r"Do (part [ab] of job \d+)\n", turn)
    assert asked, turn
    called = re.findall(r"^called (t\d+) work", turn, re.MULTILINE)
    if not called:
        return step(calls=[("work", {"job": asked[1]})])
    free = max([0, *map(int, re.findall(r"^n(\d+) knowledge", turn, re.MULTILINE))]) + 1
    node = {"type": "knowledge", "id": f"n{free}", "evidence": [called[-1]], "summary": f"{asked[1]}: done"}
    return step(delta=[node], message=f"{asked[1]} is done")


async def main(folder: Path, options: BatchOptions) -> Progress:
    with LmdbStore.open(folder / "store") as store:
        return await batch.run(tasks(), folder, ScriptedEngine(plays), store, options)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), BatchOptions(concurrency=16)))
