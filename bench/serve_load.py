"""Many streaming clients of many tenants on one server, for minutes: errors, leaks, overhead, memory.

The server runs in a process of its own with LMDB, real HTTP and a scripted model that takes its time (`--first-chunk`,
`--chunk`: a step takes a second or two, as with 200 sequences on one GPU). Each client talks to its own space: a turn is three steps
(a tool of the server, a note, a streamed reply). Every tenth turn it also tries to read a space of another tenant.

    errors               turns that failed, of how many
    cross_tenant_reads   words or answers of another tenant that a client got to see
    overhead_p99_ms      of a step, at the client: what the turn took beyond the model's time, divided by its steps
    server_p99_ms        of a step, in the server alone (its own metric, upper bound of the bucket)
    rss_growth_mib       of the server, without LMDB's map, from a fifth of the time to the end
"""

import argparse
import asyncio
import itertools
import json
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from flowstate_local.server.admission import Limits
from flowstate_local.server.running import Observed, run
from flowstate_local.server.service import Service
from flowstate_local.server.tenants import Tenants
from flowstate_local.stores.lmdb import LmdbStore
from flowstate_local.testing import CHUNK_CHARS, ScriptedEngine, dump_step, step
from flowstate_local.tools import Toolbox, tool

STEPS = 3
MARKER = re.compile(r"m[0-9]{2}c[0-9]{3}n[0-9]{4}")
"""Tenant, client, turn: in each request, and in what is remembered of it."""
REPLY_CHARS = 480


@tool(idempotent=True)
def look_up(what: str) -> str:
    """Look something up."""
    return f"All about {what}: " + "it is what it is. " * 40


class Model:
    """The script: it also knows how long a real model of that speed would have taken, and says so in its reply."""

    def __init__(self, first_chunk_s: float, chunk_s: float) -> None:
        self._first, self._chunk = first_chunk_s, chunk_s
        self._spent: dict[str, float] = {}

    def __call__(self, prompt: str) -> Any:
        index, _, turn = prompt.rpartition("INDEX\n")[2].partition("REQUEST")
        marker = MARKER.findall(turn)[0]
        if "added n" in turn:
            known = " ".join(MARKER.findall(index))[-300:]
            reply = step(message=f"@000.000 I know {known}".ljust(REPLY_CHARS, "."))
            spent = self._spent.pop(marker) + self._takes(reply)
            return step(message=reply.assistant_message.replace("@000.000", f"@{spent:07.3f}"))
        if MARKER.search(turn.partition("called ")[2]):
            number = index.count(" knowledge: ") + 1
            note = {"type": "knowledge", "id": f"n{number}", "evidence": [f"t{number}"], "summary": marker}
            reply = step(delta=[note])
        else:
            reply = step(calls=[("look_up", {"what": marker})])
        self._spent[marker] = self._spent.get(marker, 0.0) + self._takes(reply)
        return reply

    def _takes(self, reply: Any) -> float:
        chunks = -(-len(dump_step(reply)) // CHUNK_CHARS)
        return self._first + (chunks - 1) * self._chunk


async def serve(folder: Path, port: int, first_chunk_s: float, chunk_s: float) -> None:
    """What the child process does."""
    store, tenants = LmdbStore.open(folder / "store"), Tenants(folder / "tenants.sqlite")
    model = Model(first_chunk_s, chunk_s)
    engine = ScriptedEngine(model, check=False, first_chunk_s=first_chunk_s, chunk_s=chunk_s, remember=False)
    with Observed.by(None, ["look_up"]) as observed:
        limits = Limits(max_running=1_000, max_waiting=1_000)
        service = Service(engine, store, tenants, Toolbox([look_up]), limits, observed.observer)
        await run(service, observed.metrics, "127.0.0.1", port)
    store.close()
    tenants.close()


@dataclass
class Seen:
    """What the clients saw."""

    turns: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    leaks: int = 0
    foreign_tries: int = 0
    overhead_s: list[float] = field(default_factory=list)
    rss_mib: list[tuple[float, float]] = field(default_factory=list)


@dataclass
class Client:
    """One of them."""

    http: httpx.AsyncClient
    tenant: int
    number: int
    keys: list[str]
    ids: list[str]
    seen: Seen

    async def talk(self, until: float) -> None:
        """Turn after turn."""
        await asyncio.sleep(self.number * 0.02)  # they don't all begin in the same moment
        for turn in itertools.count(1):
            if time.monotonic() >= until:
                return
            try:
                await self._turn(f"m{self.tenant:02}c{self.number:03}n{turn:04}")
                if turn % 10 == 0:
                    await self._pry()
            except (httpx.HTTPError, ValueError, KeyError) as error:
                self.seen.errors[repr(error)[:100]] += 1

    async def _turn(self, marker: str) -> None:
        body = {
            "stream": True,
            "user": f"space{self.number}",
            "messages": [{"role": "user", "content": f"Tell me about {marker}"}],
        }
        begun, said, done = time.perf_counter(), [], False
        async with self.http.stream(
            "POST", "/v1/chat/completions", json=body, headers=self._headers()
        ) as answer:
            if answer.status_code != 200:
                raise ValueError(f"status {answer.status_code}")
            async for line in answer.aiter_lines():
                if line == "data: [DONE]":
                    done = True
                elif line.startswith("data: "):
                    event = json.loads(line[6:])
                    said.append(event["choices"][0]["delta"].get("content") or "")
        took, text = time.perf_counter() - begun, "".join(said)
        if not done or not text.startswith("@"):
            raise ValueError(f"a stream without its end: {text[:40]!r}")
        self.seen.turns += 1
        self.seen.overhead_s.append((took - float(text[1:8])) / STEPS)
        mine = f"m{self.tenant:02}c{self.number:03}"
        self.seen.leaks += sum(not found.startswith(mine) for found in MARKER.findall(text))

    async def _pry(self) -> None:
        """Try to read what is another's, under every name it has."""
        other = (self.tenant + 1) % len(self.keys)
        space = f"space{(self.number + 1) % (4 * len(self.keys))}"
        for name in (space, f"tenant{other}~{space}", f"{self.ids[other]}.{space}"):
            answer = await self.http.get(f"/v1/spaces/{name}/nodes", headers=self._headers())
            self.seen.foreign_tries += 1
            self.seen.leaks += answer.status_code != 404 or MARKER.search(answer.text) is not None

    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.keys[self.tenant]}"}


async def load(options: argparse.Namespace, url: str, pid: int, folder: Path) -> Seen:
    """Let all of them talk."""
    tenants = Tenants(folder / "tenants.sqlite")
    owners = [tenants.create(f"tenant{i}") for i in range(options.tenants)]
    keys = [tenants.issue(owner) for owner in owners]
    tenants.close()
    seen, begun = Seen(), time.monotonic()
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=120, limits=limits) as http:
        clients = [
            Client(http, i % options.tenants, i, keys, [owner.id for owner in owners], seen)
            for i in range(options.clients)
        ]
        talking = [asyncio.create_task(client.talk(begun + options.seconds)) for client in clients]
        while not all(task.done() for task in talking):
            await asyncio.wait(talking, timeout=5)
            seen.rss_mib.append((time.monotonic() - begun, _rss_mib(pid)))
            if not options.json:
                print(
                    f"\r{time.monotonic() - begun:5.0f} s  {seen.turns:,} turns, {seen.errors.total()} errors, "
                    f"{seen.leaks} leaks, {seen.rss_mib[-1][1]:.0f} MiB",
                    end="",
                    file=sys.stderr,
                    flush=True,
                )
        for task in talking:
            task.result()
    return seen


def _rss_mib(pid: int) -> float:
    """Memory of its own, without what is mapped from files."""
    found = re.search(r"RssAnon:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) / 1024 if found else 0.0


def quantile(values: list[float], share: float) -> float:
    """The value that `share` of them don't exceed."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def _server_quantile(url: str, share: float) -> float:
    """Upper bound, in seconds, of the bucket of the server's own metric."""
    buckets: dict[float, float] = {}
    for family in text_string_to_metric_families(httpx.get(f"{url}/metrics").text):
        for sample in family.samples:
            if sample.name == "flowstate_step_overhead_seconds_bucket":
                buckets[float(sample.labels["le"])] = sample.value
    total = max(buckets.values())
    return min(bound for bound, count in buckets.items() if count >= share * total)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="flowstate-bench-") as name:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        url = f"http://127.0.0.1:{port}"
        timing = [str(options.first_chunk), str(options.chunk)]
        child = subprocess.Popen([sys.executable, __file__, "--serve", name, str(port), *timing])
        try:
            _wait(url, child)
            seen = asyncio.run(load(options, url, child.pid, Path(name)))
            server_p99 = _server_quantile(url, 0.99)
        finally:
            child.terminate()
            child.wait(60)
        with LmdbStore.open(Path(name) / "store", readonly=True) as store:
            spaces = store.spaces()
            faults = sum(len(store.verify(space)) for space in spaces)
    settled = [mib for at, mib in seen.rss_mib if at >= options.seconds / 5]
    for error, times in seen.errors.most_common(5):
        print(f"{times} x {error}", file=sys.stderr)
    overhead_ms = [1e3 * value for value in seen.overhead_s]
    return {
        "turns": {"value": seen.turns, "unit": f"of {STEPS} steps, {len(spaces)} spaces"},
        "steps_per_s": {"value": round(seen.turns * STEPS / options.seconds, 1), "unit": "steps/s"},
        "errors": {"value": seen.errors.total(), "unit": f"of {seen.turns + seen.errors.total()} turns"},
        "cross_tenant_reads": {"value": seen.leaks, "unit": f"{seen.foreign_tries} attempts"},
        "overhead_p50_ms": {"value": round(statistics.median(overhead_ms), 1), "unit": "ms a step"},
        "overhead_p99_ms": {"value": round(quantile(overhead_ms, 0.99), 1), "unit": "ms a step"},
        "server_p99_ms": {"value": round(1e3 * server_p99, 1), "unit": "ms a step, at most"},
        "rss_mib": {"value": round(settled[-1]), "unit": "MiB"},
        "rss_growth_mib": {"value": round(settled[-1] - settled[0], 1), "unit": "MiB"},
        "faults": {"value": faults, "unit": "that verification found in the end"},
    }


def _wait(url: str, child: "subprocess.Popen[bytes]") -> None:
    for _ in range(600):
        try:
            httpx.get(f"{url}/ready").raise_for_status()
            return
        except httpx.HTTPError:
            if child.poll() is not None:
                break
            time.sleep(0.1)
    raise SystemExit("the server didn't start")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print only the JSON line")
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--tenants", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--first-chunk", type=float, default=0.5, help="seconds to the model's first words")
    parser.add_argument("--chunk", type=float, default=0.2, help=f"seconds for {CHUNK_CHARS} characters")
    parser.add_argument("--serve", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        folder, port, first_chunk, chunk = options.serve
        asyncio.run(serve(Path(folder), int(port), float(first_chunk), float(chunk)))
        return
    print(json.dumps({"name": "serve_load", "figures": measure(options)}))


if __name__ == "__main__":
    main()
