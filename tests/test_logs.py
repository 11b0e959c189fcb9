"""Structured logs: one grep follows a task through steps, requests and tools."""

import json
import logging
from pathlib import Path
from typing import Any, get_args

import pytest

from flowstate_local import Agent, MemoryStore, logs
from flowstate_local.events import Event
from flowstate_local.task_events import AgentAction, StepName, StepSpec, ToolAction, WorkflowSpec
from flowstate_local.tasks.manager import TaskManager
from flowstate_local.tasks.runner import Runner
from flowstate_local.testing import ScriptedEngine, step
from flowstate_local.tools import Toolbox, tool

pytestmark = pytest.mark.anyio


REQUEST_EVENTS = {name.__name__ for name in get_args(get_args(Event)[0])}


@tool(idempotent=True)
def look(word: str) -> str:
    """Look a word up."""
    logging.getLogger("my.tool").warning("looked for %s", word)
    return f"about {word}"


async def test_every_line_carries_the_numbers_that_apply(tmp_path: Path) -> None:
    store = MemoryStore()
    manager = TaskManager[Any](store, "s", listener=logs.log_events)
    engine = ScriptedEngine([step(calls=[("look", {"word": "ox"})]), step(message="done")], check=False)
    agent = Agent(engine, store, [look], listener=logs.log_events)
    workflow = WorkflowSpec(
        name="w",
        steps=(
            StepSpec(name=StepName("a"), action=ToolAction(tool="look", arguments={"word": "cow"})),
            StepSpec(name=StepName("b"), action=AgentAction(request="find the ox"), needs=(StepName("a"),)),
        ),
    )
    manager.create(workflow, task="t1")
    handler = logs.write_to(str(tmp_path / "log"))
    try:
        await Runner(manager, Toolbox([look]), agent=agent).run("t1")
    finally:
        logging.getLogger().removeHandler(handler)
        handler.close()
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert all({"time", "level", "logger", "message"} <= line.keys() for line in lines)
    assert {line["task"] for line in lines} == {"t1"}, "one grep finds everything"
    tools = [line for line in lines if line["logger"] == "my.tool"]
    assert [(line["step"], line.get("request")) for line in tools] == [("a", None), ("b", "r1")]
    kinds = [line["message"] for line in lines if line["logger"] == "flowstate_local.events"]
    assert kinds[0] == "TaskStatusChanged"
    assert kinds[-1] == "TaskStatusChanged"
    assert {
        "TaskStepStarted",
        "RequestStarted",
        "ToolFinished",
        "RequestFinished",
        "TaskStepFinished",
    } <= set(kinds)
    numbers = [
        line["seq"] for line in lines if line["message"].startswith("Task") or line["message"] == "Planned"
    ]
    assert numbers == list(range(2, len(numbers) + 2))
    requests = [
        line["seq"]
        for line in lines
        if "request" in line and "seq" in line and "task" in line and line["message"] in REQUEST_EVENTS
    ]
    assert requests == list(range(1, len(requests) + 1))


def test_lines_are_short_and_bindings_end() -> None:
    record = logging.LogRecord("x", logging.INFO, "f", 1, "hello", (), None)
    with logs.bound(task="t", step=""):
        logs.Correlated().filter(record)
    assert json.loads(logs.JsonLines().format(record))["task"] == "t"
    again = logging.LogRecord("x", logging.INFO, "f", 1, "hello", (), None)
    logs.Correlated().filter(again)
    line = json.loads(logs.JsonLines().format(again))
    assert "task" not in line
    assert "step" not in line
