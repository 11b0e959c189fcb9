"""A memory with everything the inspector shows, recorded by real runs on a scripted model, and a server on it.

Two spaces: `trip` (the demo's story, a request full of refusals and hostile texts, tasks) and `large` (1,000 nodes).
"""

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn

from flowstate_local.demo.play import play
from flowstate_local.demo.script import scripted_engine
from flowstate_local.demo.story import CLASSIC
from flowstate_local.errors import ToolError
from flowstate_local.loop import Agent
from flowstate_local.server.app import make_app
from flowstate_local.server.service import Service
from flowstate_local.server.tenants import Tenants
from flowstate_local.stores.base import Store
from flowstate_local.stores.lmdb import LmdbStore
from flowstate_local.task_events import RetryRule, StepSpec, ToolAction, ToolUse, WorkflowSpec
from flowstate_local.tasks.manager import TaskManager
from flowstate_local.tasks.runner import Runner
from flowstate_local.testing import ScriptedEngine, step
from flowstate_local.tools import Toolbox, tool

HOSTILE = '<img src=x onerror="window.hacked=1"><script>window.hacked=2</script>'
FEE = "cancellation fee of 80 dollars"
"""Stands in the raw terms of the first booking, and in no node."""
BINARY = bytes(range(256)) * 40
N_LARGE = 1_000
PER_REQUEST = 8


@dataclass
class Recorded:
    """A server that listens, and keys to it."""

    url: str
    key: str
    """Of the tenant whose memory was recorded; it may read."""
    foreign_key: str
    """Of a tenant that has nothing."""
    empty_space: str = "none"


@contextmanager
def recorded(folder: Path, *, large: bool = True) -> Iterator[Recorded]:
    """Record the memory in `folder` and serve it."""
    store, tenants = LmdbStore.open(folder / "store"), Tenants(folder / "tenants.sqlite")
    ana, bob = tenants.create("ana"), tenants.create("bob")
    asyncio.run(_record(store, f"{ana.id}.trip"))
    if large:
        asyncio.run(_record_large(store, f"{ana.id}.large"))
    service = Service(ScriptedEngine([]), store, tenants, Toolbox([]))
    server = uvicorn.Server(uvicorn.Config(make_app(service), port=0, log_level="warning"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.005)
    port = server.servers[0].sockets[0].getsockname()[1]
    yield Recorded(f"http://127.0.0.1:{port}", tenants.issue(ana, "read"), tenants.issue(bob))
    server.should_exit = True
    thread.join(30)
    store.close()
    tenants.close()


# --- the trip -------------------------------------------------------------------------------------------------


async def _record(store: Store, space: str) -> None:
    await play(scripted_engine(CLASSIC), store, CLASSIC, space=space)
    await _refused(store, space)
    await _tasks(store, space)


@tool(idempotent=True)
def read_menu(restaurant: str) -> str:
    """Read the menu of a restaurant."""
    if restaurant == "Closed":
        raise ToolError("the restaurant is closed today", kind="unavailable", retryable=True)
    return f"{HOSTILE} soup 9, risotto 16, cake 7\n" + "\n".join(
        f"table {n}: free at {18 + n % 4}:00" for n in range(1, 2_000)
    )


@tool(idempotent=True)
def read_plan(name: str) -> bytes:
    """Read the floor plan, a picture."""
    return BINARY


async def _refused(store: Store, space: str) -> None:
    """A request in which much goes wrong: an unknown id, a taken id, a failed tool, an output that isn't JSON."""
    script = [
        step(focus=["n5", "n77"]),
        step(calls=[("read_menu", {"restaurant": "Closed"})]),
        '{"state_focus": [], "state_del',
        step(calls=[("read_menu", {"restaurant": "Casa"}), ("read_plan", {"name": "Casa"})]),
        step(
            delta=[
                {
                    "type": "knowledge",
                    "id": "n10",
                    "summary": HOSTILE,
                    "evidence": ["t8"],
                    "content": HOSTILE * 3,
                },
                {"type": "knowledge", "id": "n1", "summary": "An id that is taken", "evidence": ["t8"]},
                {
                    "type": "judgement",
                    "id": "n11",
                    "summary": "Dinner at Casa: risotto, no meat",
                    "content": "A vegetarian dish is on the menu, and a quiet table is free at 19:00.",
                    "slots": [{"name": "price", "value": "16"}, {"name": "time", "value": "19:00"}],
                    "refs": [
                        {"relation": "supports", "target": "n5"},
                        {"relation": "derives", "target": "n10"},
                    ],
                    "evidence": ["t9"],
                    "confidence": 0.9,
                },
                {
                    "type": "artifact",
                    "id": "n12",
                    "summary": "Note for the guest: Casa, 19:00",
                    "refs": [{"relation": "follows", "target": "n11"}],
                    "valid_until": "2026-09-14",
                },
            ],
            message=f"Dinner is planned. {HOSTILE}",
        ),
    ]
    engine = ScriptedEngine(script, check=False)
    agent = Agent(engine, store, [read_menu, read_plan], grounded=False)
    await agent.run(f"Plan a dinner for Ana. {HOSTILE}", space=space, date="2026-09-13")


# --- tasks ----------------------------------------------------------------------------------------------------


def _call(name: str, tool_name: str, *needs: str, **fields: Any) -> StepSpec:
    action = ToolAction(tool=tool_name, arguments=fields.pop("args", {}))
    return StepSpec.model_validate({"name": name, "action": action, "needs": needs, **fields})


async def _tasks(store: Store, space: str) -> None:
    """One that recovers from an error, and one that fails and undoes what it did."""
    failures = [ToolError("the line is busy", kind="unavailable", retryable=True)]

    @tool(idempotent=True, for_model=False)
    async def look_up(wait: float = 0.05) -> str:
        """Look something up."""
        await asyncio.sleep(wait)
        return "found"

    @tool(idempotent=True, for_model=False)
    async def phone() -> str:
        """Phone somebody, who is busy at first."""
        await asyncio.sleep(0.06)
        if failures:
            raise failures.pop()
        return "agreed"

    @tool(idempotent=True, for_model=False)
    async def refuse() -> str:
        """Always fails."""
        await asyncio.sleep(0.04)
        raise ToolError(f"no seats left {HOSTILE}", kind="sold_out")

    retry = RetryRule(kinds=("*",), then="later", times=3, delay_s=0.12, jitter=0)
    review = WorkflowSpec(
        name="trip_review",
        goal="Check the trip once more before it begins",
        steps=(
            _call("trains", "look_up", title="Look up the trains", args={"wait": 0.15}),
            _call("weather", "look_up", title="Look up the weather", args={"wait": 0.3}),
            _call("confirm", "phone", "trains", title="Confirm the room by phone", retry=(retry,)),
            _call("summary", "look_up", "confirm", "weather", title="Write the summary"),
        ),
    )
    tickets = WorkflowSpec(
        name="museum_tickets",
        goal="Two tickets for the museum",
        steps=(
            _call("reserve", "look_up", args={"wait": 0.1}, undo=ToolUse(tool="look_up")),
            _call("pay", "refuse", "reserve"),
            _call("send", "look_up", "pay"),
        ),
    )
    manager = TaskManager[Any](store, space)
    runner = Runner(manager, Toolbox([look_up, phone, refuse]), poll_s=0.01)
    for workflow, name in ((review, "trip-review"), (tickets, "museum-tickets")):
        await runner.run(manager.create(workflow, task=name, owner="ana").id)
    manager.create(review, task="review-again", owner="ana")


# --- many nodes -----------------------------------------------------------------------------------------------


async def _record_large(store: Store, space: str) -> None:
    """1,000 nodes in 125 requests; each rests on nodes of the requests before, and some replace one."""

    @tool(idempotent=True)
    def measure(number: int) -> str:
        """Measure something."""
        return f"measurement {number}: {number * 37 % 101} degrees"

    kinds = (
        "knowledge",
        "attribute",
        "judgement",
        "knowledge",
        "preference",
        "attribute",
        "artifact",
        "judgement",
    )

    def script() -> Iterator[Any]:
        for request in range(N_LARGE // PER_REQUEST):
            first = request * PER_REQUEST + 1
            yield step(calls=[("measure", {"number": request})])
            if first > 1:
                yield step(focus=[f"n{first - 1}"])
            yield step(
                delta=[_large_node(first + i, kinds[i], f"t{request + 1}") for i in range(PER_REQUEST)],
                message="Measured.",
            )

    engine = ScriptedEngine(script(), check=False, context_window=200_000)
    agent = Agent(engine, store, [measure], grounded=False, index_tokens=1_000)
    for request in range(N_LARGE // PER_REQUEST):
        await agent.run(f"Measure place {request} and judge it", space=space)


def _large_node(number: int, kind: str, evidence: str) -> dict[str, Any]:
    place = (number - 1) % PER_REQUEST
    targets = {2: [("derives", number - 2)], 7: [("supports", number - 5), ("supersedes", number - 8)]}
    refs = [(relation, target) for relation, target in targets.get(place, []) if target > 0]
    if place == 4 and number > 16:
        refs.append(("follows", number - 16))
    return {
        "type": kind,
        "id": f"n{number}",
        "summary": f"{kind.capitalize()} {place} of place {(number - 1) // PER_REQUEST}",
        "refs": [{"relation": relation, "target": f"n{target}"} for relation, target in refs],
        "evidence": [evidence] if place in (0, 1) else [],
    }
