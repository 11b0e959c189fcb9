"""The server against the bare engine: what a step costs more when HTTP, tenants, agents, grammars and a store go with it.

A real model behind the real server, asked by streaming clients over HTTP. The peer is the same engine in the same process, given the
same prompts, grammars and bounds by as many callers, with nothing in between. Both begin with an empty prefix cache.

    overhead_ms     of a step: what a caller waits longer than a caller of the bare engine
    ratio           time of a step to that of the bare engine
    server_ms       of a step: what the server itself says that it did beside waiting for the model and tools
"""

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from batch import MODEL, Recorder
from prometheus_client.parser import text_string_to_metric_families

from flowstate_local.engines.base import Engine, complete
from flowstate_local.engines.vllm import VllmEngine
from flowstate_local.models import resolve
from flowstate_local.server.admission import Limits
from flowstate_local.server.app import make_app
from flowstate_local.server.metrics import Metrics
from flowstate_local.server.observe import EventLog, Observers
from flowstate_local.server.service import Service
from flowstate_local.server.tenants import Tenants
from flowstate_local.stores.lmdb import LmdbStore
from flowstate_local.tools import Toolbox

MAX_STEPS = 3
MAX_TOKENS = 200


async def over_http(engine: Engine, clients: int, turns: int) -> tuple[Recorder, float, float]:
    """What the engine was asked, seconds a step at the clients, milliseconds a step in the server."""
    recorder, metrics = Recorder(engine), Metrics()
    with tempfile.TemporaryDirectory(prefix="flowstate-bench-") as name:
        tenants = Tenants(Path(name) / "tenants.sqlite")
        key = tenants.issue(tenants.create("bench"))
        with LmdbStore.open(Path(name) / "store") as store:
            observer = Observers([metrics, EventLog()])
            limits = Limits(max_steps=MAX_STEPS)
            service = Service(recorder, store, tenants, Toolbox([]), limits, observer)
            config = uvicorn.Config(make_app(service, metrics), port=0, log_config=None, access_log=False)
            server = uvicorn.Server(config)
            serving = asyncio.create_task(server.serve())
            while not server.started:
                await asyncio.sleep(0.01)
            url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
            headers = {"Authorization": f"Bearer {key}"}
            async with httpx.AsyncClient(base_url=url, headers=headers, timeout=600) as http:
                times = await asyncio.gather(*(_talk(http, number, turns) for number in range(clients)))
                server_ms = _mean_overhead_ms((await http.get("/metrics")).text)
            server.should_exit = True
            await serving
        tenants.close()
    return recorder, sum(times) / len(recorder.calls), server_ms


async def _talk(http: httpx.AsyncClient, number: int, turns: int) -> float:
    """Seconds that a client waited in all."""
    waited_s = 0.0
    for turn in range(turns):
        text = f"Client {number} likes table {turn}. What do I like?"
        body = {
            "user": f"space{number}",
            "stream": True,
            "temperature": 0.0,
            "max_tokens": MAX_TOKENS,
            "messages": [{"role": "user", "content": text}],
        }
        begun = time.perf_counter()
        async with http.stream("POST", "/v1/chat/completions", json=body) as answer:
            lines = [line async for line in answer.aiter_lines()]
        waited_s += time.perf_counter() - begun
        assert answer.status_code == 200, lines
        assert lines[-2] == "data: [DONE]", lines[-5:]
    return waited_s


def _mean_overhead_ms(text: str) -> float:
    values = {sample.name: sample.value for f in text_string_to_metric_families(text) for sample in f.samples}
    name = "flowstate_step_overhead_seconds"
    return 1e3 * values[f"{name}_sum"] / values[f"{name}_count"]


async def bare(engine: Engine, asked: Recorder, callers: int, salt: str) -> float:
    """Seconds a step of the same calls with nothing in between."""
    waiting, waited_s = iter(asked.calls), 0.0

    async def worker() -> None:
        nonlocal waited_s
        for prompt, constraint, sampling in waiting:
            begun = time.perf_counter()
            await complete(engine, prompt, constraint, sampling, cache_salt=salt)
            waited_s += time.perf_counter() - begun

    await asyncio.gather(*(worker() for _ in range(callers)))
    return waited_s / len(asked.calls)


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    engine = await VllmEngine.start(str(resolve(MODEL)), context_window=8_192, max_num_seqs=options.clients)
    ours, theirs, server = [], [], []
    try:
        warm, _, _ = await over_http(engine, options.clients, 1)
        await bare(engine, warm, options.clients, "warm")
        for number in range(options.rounds):
            asked, step_s, server_ms = await over_http(engine, options.clients, options.turns)
            ours.append(step_s)
            server.append(server_ms)
            theirs.append(await bare(engine, asked, options.clients, f"bare {number}"))
            if not options.json:
                print(
                    f"{len(asked.calls)} steps of {options.clients} clients: {1e3 * ours[-1]:.0f} ms a step over "
                    f"HTTP, {1e3 * theirs[-1]:.0f} ms from the bare engine; {server_ms:.1f} ms in the server"
                )
    finally:
        await engine.close()
    step_s, peer_s = statistics.median(ours), statistics.median(theirs)
    return {
        "step_ms": {"value": round(1e3 * step_s, 1), "unit": "ms", "peer": round(1e3 * peer_s, 1)},
        "ratio": {"value": round(step_s / peer_s, 3), "unit": "of the bare engine's time"},
        "overhead_ms": {"value": round(1e3 * (step_s - peer_s), 1), "unit": "ms a step"},
        "server_ms": {"value": round(statistics.median(server), 2), "unit": "ms a step"},
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print only the JSON line")
    parser.add_argument("--clients", type=int, default=8, help="at once")
    parser.add_argument("--turns", type=int, default=6, help="of each client")
    parser.add_argument("--rounds", type=int, default=3, help="each side; the median counts")
    figures = asyncio.run(measure(parser.parse_args()))
    print(json.dumps({"name": "serve", "figures": figures}))


if __name__ == "__main__":
    main()
