"""A server in a process of its own, on a slow scripted model: `python serve_child.py FOLDER PORT`. To be killed."""

import asyncio
import sys
import time
from pathlib import Path
from typing import Any

from flowstate_local.server.running import Observed, run
from flowstate_local.server.service import Service
from flowstate_local.server.tenants import Tenants
from flowstate_local.stores.lmdb import LmdbStore
from flowstate_local.testing import ScriptedEngine, step
from flowstate_local.tools import Toolbox, tool

REPLY = "Paid 7, and that is all there is to say about it. " * 8
FOLDER = Path(sys.argv[1])


@tool
def pay(amount: int) -> str:
    """Pay."""
    with (FOLDER / "payments").open("a") as file:
        file.write(f"{amount}\n")
    time.sleep(0.4)
    return f"paid {amount}"


def story(prompt: str) -> Any:
    """Pay, note it, say it slowly."""
    turn = prompt.rpartition("REQUEST")[2]
    if "called t" not in turn and "t1" not in turn:
        return step(calls=[("pay", {"amount": 7})])
    if "added n" not in turn:
        return step(delta=[{"type": "knowledge", "id": "n1", "evidence": ["t1"], "summary": "Paid 7"}])
    return step(message=REPLY)


async def main() -> None:
    store, tenants = LmdbStore.open(FOLDER / "store"), Tenants(FOLDER / "tenants.sqlite")
    if not tenants.all():
        (FOLDER / "key").write_text(tenants.issue(tenants.create("ana"), "admin"))
    engine = ScriptedEngine(story, check=False, first_chunk_s=0.1, chunk_s=0.1)
    with Observed.by(None, ["pay"]) as observed:
        service = Service(engine, store, tenants, Toolbox([pay]), observer=observed.observer)
        await run(service, observed.metrics, "127.0.0.1", int(sys.argv[2]))
    store.close()
    tenants.close()
    (FOLDER / "closed").touch()


if __name__ == "__main__":
    asyncio.run(main())
