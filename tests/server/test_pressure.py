"""Too much at once, too slow, too long: turned away in time, and nothing is lost."""

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from flowstate_local.server.admission import Limits
from flowstate_local.testing import step
from flowstate_local.tools import tool
from tests.server.conftest import Running
from tests.server.test_chat import remembering

pytestmark = pytest.mark.anyio
Serve = Callable[..., Running]
GATE = threading.Event()


@tool(idempotent=True, timeout_s=60)
def wait() -> str:
    """Wait."""
    GATE.wait(30)
    return "waited"


@pytest.fixture(autouse=True)
def _gate() -> Any:
    GATE.clear()
    yield
    GATE.set()


def waiting(prompt: str) -> Any:
    """Calls the tool that waits, then replies."""
    turn = prompt.rpartition("REQUEST")[2]
    return step(message="Done.") if "called t" in turn or "t1" in turn else step(calls=[("wait", {})])


class Asker:
    """Asks with the key of one tenant."""

    def __init__(self, server: Running, http: httpx.AsyncClient, tenant: str) -> None:
        self._http, self._url = http, f"{server.url}/v1/chat/completions"
        self._key = server.key(tenant)

    async def __call__(self, space: str, text: str = "Wait") -> httpx.Response:
        body = {"user": space, "messages": [{"role": "user", "content": text}]}
        return await self._http.post(self._url, json=body, headers={"Authorization": f"Bearer {self._key}"})


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(1_000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it never came to that")


async def test_what_the_engine_cannot_take_waits_and_what_cannot_wait_is_turned_away(serve: Serve) -> None:
    server = serve(waiting, tools=[wait], limits=Limits(max_running=2, max_waiting=2))
    service = server.service
    async with httpx.AsyncClient(timeout=60) as http:
        ana = Asker(server, http, "ana")
        asked = [asyncio.create_task(ana(f"s{i}")) for i in range(4)]
        await until(lambda: service.admission.n_running == 2 and service.admission.n_waiting == 2)
        refused = await ana("s4")
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "busy")
        assert int(refused.headers["retry-after"]) >= 1
        GATE.set()
        answers = await asyncio.gather(*asked)
        assert [a.json()["choices"][0]["message"]["content"] for a in answers] == ["Done."] * 4
        assert (service.admission.n_running, service.admission.n_waiting) == (0, 0)
        assert (await ana("s4")).status_code == 200


async def test_one_tenant_can_not_keep_the_others_out(serve: Serve) -> None:
    server = serve(waiting, tools=[wait], limits=Limits(max_running=8, max_per_tenant=2))
    async with httpx.AsyncClient(timeout=60) as http:
        ana, bob = Asker(server, http, "ana"), Asker(server, http, "bob")
        asked = [asyncio.create_task(ana(f"s{i}")) for i in range(2)]
        await until(lambda: server.service.admission.n_running == 2)
        refused = await ana("s9")
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "too_many_at_once")
        asked.append(asyncio.create_task(bob("s1")))
        await until(lambda: server.service.admission.n_running == 3)
        GATE.set()
        assert [(await task).status_code for task in asked] == [200] * 3


async def test_a_crowd_in_one_space_takes_one_place(serve: Serve) -> None:
    server = serve(waiting, tools=[wait], limits=Limits(max_running=2))
    async with httpx.AsyncClient(timeout=60) as http:
        ana = Asker(server, http, "ana")
        crowd = [asyncio.create_task(ana("one", f"Wait {i}")) for i in range(5)]
        await until(
            lambda: server.service.admission.n_running == 1 and server.service.admission.n_waiting == 4
        )
        other = asyncio.create_task(ana("two"))
        await until(lambda: server.service.admission.n_running == 2)
        GATE.set()
        assert [(await task).status_code for task in [*crowd, other]] == [200] * 6
    (head,) = [server.service.store.head(s) for s in server.service.store.spaces() if s.endswith("one")]
    assert head.version == 5


async def test_a_turn_that_takes_too_long_goes_on_when_it_is_asked_again(serve: Serve) -> None:
    server = serve(waiting, tools=[wait], limits=Limits(timeout_s=0.3))
    async with httpx.AsyncClient(timeout=60) as http:
        ana = Asker(server, http, "ana")
        late = await ana("s")
        assert (late.status_code, late.json()["error"]["code"]) == (504, "timeout")
        GATE.set()
        again = await ana("s")
        assert again.json()["choices"][0]["message"]["content"] == "Done."
    (space,) = server.service.store.spaces()
    assert server.service.store.head(space).version == 1, "it was the same request"


async def test_a_client_that_hangs_up_loses_nothing(serve: Serve) -> None:
    server = serve(waiting, tools=[wait])
    async with httpx.AsyncClient(timeout=60) as http:
        ana = Asker(server, http, "ana")
        asked = asyncio.create_task(ana("s"))
        await until(lambda: server.service.admission.n_running == 1)
        asked.cancel()
        GATE.set()
        await until(lambda: server.service.admission.n_running == 0)
        (space,) = server.service.store.spaces()
        assert [r.message for r in server.service.store.requests(space)] == ["Done."]


async def test_nobody_waits_for_what_is_forgotten(serve: Serve) -> None:
    """Locks of spaces and counts of tenants don't pile up."""
    server = serve(lambda prompt: step(message="x"))
    async with httpx.AsyncClient(timeout=60) as http:
        ana = Asker(server, http, "ana")
        await asyncio.gather(*(ana(f"s{i}") for i in range(30)))
    await until(lambda: not server.service.admission._locks)
    assert +server.service.admission._of_tenant == {}


CLIENT = """
import sys
from openai import OpenAI
client = OpenAI(base_url=sys.argv[1] + "/v1", api_key=sys.argv[2])
stream = client.chat.completions.create(
    model="any", user="trip", messages=[{"role": "user", "content": sys.argv[3]}], stream=True)
print("".join(c.choices[0].delta.content or "" for c in stream if c.choices))
"""


def test_client_processes_come_and_go_and_the_memory_stays(serve: Serve) -> None:
    server = serve(remembering)
    key = server.key("ana")

    def client(url: str, text: str) -> str:
        command = [sys.executable, "-c", CLIENT, url, key, text]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    assert client(server.url, "I never fly at night") == "I know 1:"
    server.stop()
    time.sleep(0.1)
    later = serve(remembering)
    assert client(later.url, "Book me a flight") == "I know 2: I never fly at night"
