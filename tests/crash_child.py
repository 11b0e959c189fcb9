"""A process that runs one request and kills itself at a named commit point. Started by test_crash.py."""

import asyncio
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flowstate_local.events import Event
from flowstate_local.loop import Agent, RequestResult
from flowstate_local.stores.base import Head
from flowstate_local.stores.lmdb import LmdbStore
from flowstate_local.testing import Reply, ScriptedEngine, step
from flowstate_local.tools import tool


class Killer(LmdbStore):
    """The real store, in which the process dies just before or just after an event is durable."""

    kill_at = ""

    def append(
        self,
        space: str,
        events: Sequence[Event],
        blobs: Mapping[str, bytes] | None = None,
        *,
        expected_seq: int,
    ) -> Head:
        kill_if(self.kill_at, "before", events)
        head = super().append(space, events, blobs, expected_seq=expected_seq)
        kill_if(self.kill_at, "after", events)
        return head

    def persist(self, space: str, done: Any, **versions: int) -> Head:
        kill_if(self.kill_at, "before", done.events)
        head = super().persist(space, done, **versions)
        kill_if(self.kill_at, "after", done.events)
        return head


def kill_if(kill_at: str, moment: str, events: Sequence[Event]) -> None:
    if any(kill_at == f"{moment} {event.kind} {event.step}" for event in events):
        os.kill(os.getpid(), signal.SIGKILL)


def tools_of(folder: Path) -> list[Any]:
    """Two tools that leave a mark for every time they really ran."""

    @tool
    def pay(amount: int) -> str:
        """Pay, which must not happen twice."""
        with (folder / "paid").open("a") as file:
            file.write(f"{amount}\n")
        return f"paid {amount}"

    @tool(idempotent=True)
    def price(thing: str) -> str:
        """Tell a price."""
        with (folder / "asked").open("a") as file:
            file.write(f"{thing}\n")
        return f"{thing} costs 7"

    return [pay, price]


def play(prompt: str) -> Reply:
    """The next step, told from the prompt alone, so that a resumed request goes on where it was."""
    state = prompt.rpartition("\nSTATE\n")[2].partition("OBSERVATION\n")[0]
    if "price(" not in state:
        return step(
            delta=[node("n1", "an ox is wanted")],
            calls=[("price", {"thing": "ox"}), ("price", {"thing": "cow"})],
        )
    if "opened t1" not in state:
        return step(focus=["t1"])
    if "pay(" not in state:
        return step(calls=[("pay", {"amount": 7})])
    return step(
        delta=[node("n2", "paid", evidence=["t3"], refs=[{"relation": "follows", "target": "n1"}])],
        message="done",
    )


def node(node_id: str, summary: str, **fields: Any) -> dict[str, Any]:
    return {"type": "knowledge", "id": node_id, "summary": summary, "refs": [], "evidence": [], **fields}


def agent_of(folder: Path, store: LmdbStore) -> Agent:
    # Unchecked: the story makes the loop pass every commit point, whatever a grammar would offer.
    return Agent(ScriptedEngine(play, check=False), store, tools_of(folder))


async def main(folder: Path, kill_at: str) -> RequestResult:
    store = Killer.open(folder / "store")
    store.kill_at = kill_at
    return await agent_of(folder, store).run("Pay for the ox", space="s")


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
