"""A real model plans tasks: whatever it samples, every plan is one that can be followed."""

import random
from typing import Any

import pytest

from flowstate_local.completion import Sampling
from flowstate_local.engines.base import Engine
from flowstate_local.stores.memory import MemoryStore
from flowstate_local.task_events import StepName, StepSpec, ToolAction, WorkflowSpec
from flowstate_local.tasks import history
from flowstate_local.tasks.manager import TaskManager
from flowstate_local.tasks.model_planner import ModelPlanner
from flowstate_local.tasks.runner import Runner
from flowstate_local.tools import Toolbox, tool

TASKS = 12


@tool(idempotent=True)
def note(text: str) -> str:
    """Note something."""
    return f"noted {text}"


def workflow(rng: random.Random) -> WorkflowSpec:
    """Some steps, each of which may need earlier ones."""
    names = rng.sample(["fetch", "clean", "count", "draw", "check", "write"], k=rng.randint(3, 6))
    steps = []
    for i, name in enumerate(names):
        needs = tuple(StepName(n) for n in rng.sample(names[:i], k=rng.randint(0, min(i, 2))))
        steps.append(
            StepSpec(
                name=StepName(name), action=ToolAction(tool="note", arguments={"text": name}), needs=needs
            )
        )
    return WorkflowSpec(name="w", goal="a short report", steps=tuple(steps), planner="model")


@pytest.mark.anyio
@pytest.mark.engine
@pytest.mark.parametrize("engine", ["vllm", "vllm-outlines"], indirect=True, scope="session")
async def test_a_real_model_plans_and_every_task_ends(engine: Engine) -> None:
    rng = random.Random(1)
    manager = TaskManager[Any](MemoryStore(), "s")
    planner = ModelPlanner(engine, manager, sampling=Sampling(temperature=1.0))
    for _ in range(TASKS if engine.profile == "guidance" else 2):
        manager.create(workflow(rng))
    ended = await Runner(manager, Toolbox([note]), planner=planner).drain()
    assert {state.status for state in ended} <= {"completed", "failed"}
    plans = [plan for state in ended for plan in history.decisions(manager, state.id)]
    assert plans
    if engine.profile == "guidance":
        assert not any(plan.refused for plan in plans), "only what is possible can be named"
    assert all(plan.reason for plan in plans)
