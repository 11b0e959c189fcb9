"""A server that runs: what watches it, and how it stops."""

import asyncio
import signal
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

import uvicorn

from flowstate_local.server.app import DRAIN_S, make_app
from flowstate_local.server.metrics import Metrics
from flowstate_local.server.observe import EventLog, Observer, Observers
from flowstate_local.server.service import Service
from flowstate_local.server.tracing import Tracing, exporting

COMMITTERS = 64
"""Turns that may wait for the disk at once."""


@dataclass(frozen=True)
class Observed:
    """What watches a server."""

    metrics: Metrics
    observer: Observer

    @classmethod
    @contextmanager
    def by(cls, otlp: str | None, own_tools: Sequence[str]) -> Iterator["Observed"]:
        """Metrics, the log, and traces if there is a collector; what they hold back goes out in the end.

        Args:
            otlp: address of an OpenTelemetry collector.
            own_tools: names of the tools that the server runs.
        """
        metrics = Metrics(own_tools)
        if otlp is None:
            yield cls(metrics, Observers([metrics, EventLog()]))
            return
        provider = exporting(otlp)
        try:
            yield cls(metrics, Observers([Tracing(provider), metrics, EventLog()]))
        finally:
            provider.shutdown()


class _Server(uvicorn.Server):
    """Takes nothing new from the first signal on; the second ends it at once."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._service.admission.draining = True
        super().handle_exit(sig, frame)


async def run(
    service: Service, metrics: Metrics, host: str, port: int, *, origins: Collection[str] = ()
) -> None:
    """Serve until a signal; then let streams end, for a while."""
    # By default there are six threads on two cores. Commits wait for the disk, not for a core, and those that wait
    # together share one sync: the more may wait, the shorter it takes.
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(COMMITTERS, thread_name_prefix="commit"))
    config = uvicorn.Config(
        make_app(service, metrics, origins=origins),
        host=host,
        port=port,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=round(DRAIN_S),
    )
    # uvicorn raises a signal again when it has stopped. By default SIGTERM would then end the process before its
    # caller has closed the engine, sent the last traces, and closed the store.
    signal.signal(signal.SIGTERM, lambda *_: None)
    await _Server(config, service).serve()
