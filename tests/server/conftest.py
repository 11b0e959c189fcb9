"""A real server in a thread, on a scripted model, and keys for two tenants."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from flowstate_local.server.admission import Limits
from flowstate_local.server.app import make_app
from flowstate_local.server.metrics import Metrics
from flowstate_local.server.observe import EventLog, Observer, Observers
from flowstate_local.server.service import Service
from flowstate_local.server.tenants import Quota, Tenant, Tenants
from flowstate_local.stores.base import Store
from flowstate_local.stores.lmdb import LmdbStore
from flowstate_local.testing import ScriptedEngine
from flowstate_local.tools import Tool, Toolbox


@dataclass
class Running:
    """A server that listens."""

    url: str
    service: Service
    tenants: Tenants
    stop: Callable[[], None]

    def key(self, tenant: str, scope: Any = "write", **quota: int) -> str:
        return self.tenants.issue(self.tenant(tenant, **quota), scope)

    def tenant(self, name: str, **quota: int) -> Tenant:
        known = {t.name: t for t in self.tenants.all()}
        return known.get(name) or self.tenants.create(name, Quota(**quota))


def listening(service: Service, tenants: Tenants, store: Store, metrics: Metrics | None = None) -> Running:
    """A server in a thread on a free port; its `stop` closes store and tenants too."""
    server = uvicorn.Server(uvicorn.Config(make_app(service, metrics), port=0, log_level="warning"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.005)
    port = server.servers[0].sockets[0].getsockname()[1]

    def stop() -> None:
        if thread.is_alive():
            server.should_exit = True
            thread.join(30)
            store.close()
            tenants.close()

    return Running(f"http://127.0.0.1:{port}", service, tenants, stop)


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    """`serve(script, tools=..., limits=...)`: a server on the store of this test; again after a stop, with what is there."""
    running: list[Running] = []

    def start(
        script: Any,
        *,
        tools: list[Tool] | None = None,
        limits: Limits | None = None,
        observers: Sequence[Observer] = (),
    ) -> Running:
        store, tenants = LmdbStore.open(tmp_path / "store"), Tenants(tmp_path / "tenants.sqlite")
        toolbox = Toolbox(tools or [])
        metrics = Metrics(toolbox.names)
        observer = Observers([metrics, EventLog(), *observers])
        engine = ScriptedEngine(script, check=False)
        service = Service(engine, store, tenants, toolbox, limits or Limits(), observer)
        running.append(listening(service, tenants, store, metrics))
        return running[-1]

    yield start
    for one in running:
        one.stop()
