"""Each way in which a tenant may try to get at what is another's, listed; and none of them brings anything.

For every attempt the same is tried on something that never existed: status and words must be alike, so that not even
the existence of foreign things can be learnt.
"""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from flowstate_local.server.service import Service
from flowstate_local.server.tenants import Tenants
from flowstate_local.stores.lmdb import LmdbStore
from flowstate_local.testing import ScriptedEngine, step
from flowstate_local.tools import Toolbox
from tests.server.conftest import Running, listening
from tests.server.test_chat import WEATHER
from tests.server.test_responses import TOOL

SECRET = "SWORDFISH"


def story(prompt: str) -> Any:
    """Notes what it is told; asks the client where a tool is offered."""
    turn = prompt.rpartition("REQUEST")[2]
    n = prompt.rpartition("INDEX\n")[2].partition("REQUEST")[0].count(" preference: ") + 1
    if "weather(city" in prompt and "called t" not in turn:
        return step(calls=[("weather", {"city": SECRET})])
    if "added n" not in turn:
        return step(delta=[{"type": "preference", "id": f"n{n}", "summary": f"The word is {SECRET}"}])
    return step(message=f"I keep {SECRET}.")


class House:
    """Ana's things, and the two keys of Bob, who is after them."""

    def __init__(self, server: Running) -> None:
        self.server = server
        self.ana = server.tenant("ana")
        self.ana_key = server.key("ana", "admin")
        self.clients = {
            name: httpx.Client(base_url=f"{server.url}/v1", headers={"Authorization": f"Bearer {key}"})
            for name, key in {
                "ana": self.ana_key,
                "bob": server.key("bob", "write"),
                "bob's admin": server.key("bob", "admin"),
            }.items()
        }
        ana = self.clients["ana"]
        chat = {"user": "trip", "messages": [{"role": "user", "content": f"Keep {SECRET}"}]}
        ana.post("/chat/completions", json=chat, headers={"Idempotency-Key": "k1"}).raise_for_status()
        self.response = ana.post("/responses", json={"input": "Again", "user": "trip"}).json()["id"]
        waiting = chat | {"user": "waiting", "tools": [WEATHER]}
        answer = ana.post("/chat/completions", json=waiting).json()
        self.call = answer["choices"][0]["message"]["tool_calls"][0]["id"]
        self.key_id = ana.get("/me").json()["key"]

    def snapshot(self) -> str:
        """All of Ana's."""
        ana = self.clients["ana"]
        spaces = [ana.get(f"/spaces/{name}/export").text for name in ("trip", "waiting")]
        return "\n".join([*spaces, ana.get("/keys").text, ana.get("/spaces/trip/shares").text])


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    folder = tmp_path_factory.mktemp("house")
    store, tenants = LmdbStore.open(folder / "store"), Tenants(folder / "tenants.sqlite")
    service = Service(ScriptedEngine(story, check=False), store, tenants, Toolbox([]))
    one = House(listening(service, tenants, store))
    yield one
    one.server.stop()
    for client in one.clients.values():
        client.close()


NOTE = {"type": "knowledge", "summary": "Bob was here"}
CHAT: Any = {"messages": [{"role": "user", "content": "What is the word?"}]}

READS = [
    ("GET", f"/spaces/{{space}}{rest}", None)
    for rest in (
        "",
        "/nodes",
        "/nodes?after=n1",
        "/nodes?q=word",
        "/nodes?as_of_seq=3",
        "/nodes/n1",
        "/nodes/n1?depth=32",
        "/evidence/t1",
        "/requests",
        "/requests?after=1",
        "/timeline",
        "/timeline?after=2",
        "/graph",
        "/graph?as_of_seq=3",
        "/export",
        "/shares",
        "/moment",
        "/moment?seq=2",
        "/costs",
        "/requests/r1/events",
        "/evidence/t1/text",
        "/evidence/t1/text?within=r1",
        "/tasks",
        "/tasks/x",
    )
]
CHANGES: list[tuple[str, str, Any]] = [
    ("POST", "/spaces/{space}/verify", None),
    ("POST", "/spaces/{space}/erase", {"nodes": ["n1"]}),
    ("POST", "/spaces/{space}/erase", {"requests": ["r1"]}),
    ("DELETE", "/spaces/{space}", None),
    ("PUT", "/spaces/{space}/shares/{bob}", {"may_write": True}),
    ("DELETE", "/spaces/{space}/shares/{bob}", None),
]
NAMES = [
    "trip",  # as Ana calls it
    "ana~trip",  # as it would be called if it were shared
    "{ana}.trip",  # as the store calls it
    "{ana}~trip",
    "..%2F{ana}.trip",
    "{ana}%2Etrip",
    "ana%2Ftrip",
    "ana%7Etrip",
    "ANA~trip",
    "ana~trip%00",
    "~trip",
    "ana~",
    "*",
    "%2e%2e",
    "trip%20",
    "%EF%BC%B4rip",
]


@pytest.mark.parametrize("who", ["bob", "bob's admin"])
@pytest.mark.parametrize(("method", "path", "body"), READS + CHANGES)
def test_no_name_leads_to_it(house: House, who: str, method: str, path: str, body: Any) -> None:
    bob, before = house.clients[who], house.snapshot()
    guest = bob.get("/me").json()["tenant"]["id"]
    for name in NAMES:
        said = name.format(ana=house.ana.id)
        answer = bob.request(method, path.format(space=said, bob=guest), json=body)
        assert answer.status_code in (400, 403, 404), (said, answer.status_code)
        assert SECRET not in answer.text, said
    there, nowhere = (
        bob.request(method, path.format(space=name, bob=guest), json=body)
        for name in ("ana~trip", "ana~none")
    )
    assert there.status_code == nowhere.status_code
    assert there.text.replace("trip", "none") == nowhere.text
    assert house.snapshot() == before


def test_no_conversation_leads_to_it(house: House) -> None:
    bob, before = house.clients["bob"], house.snapshot()
    results = [{"role": "tool", "tool_call_id": house.call, "content": "rain"}]
    attempts: list[tuple[str, dict[str, Any], dict[str, str]]] = [
        ("/chat/completions", CHAT | {"user": "ana~trip"}, {}),
        ("/chat/completions", CHAT, {"X-FlowState-Space": "ana~trip"}),
        ("/spaces/ana~trip/chat/completions", CHAT, {}),
        ("/chat/completions", CHAT | {"user": "ana/trip"}, {}),
        ("/chat/completions", CHAT | {"user": "../trip"}, {}),
        ("/chat/completions", {"user": "waiting", "messages": results}, {}),
        ("/chat/completions", {"user": "ana~waiting", "messages": results}, {}),
        ("/responses", {"input": "The word?", "previous_response_id": house.response}, {}),
        ("/responses", {"input": "The word?", "conversation": "ana~trip"}, {}),
        ("/responses", {"input": "The word?", "conversation": {"id": "ana~trip"}}, {}),
        (
            "/responses",
            {
                "input": [{"type": "function_call_output", "call_id": house.call, "output": "x"}],
                "conversation": "waiting",
                "tools": [TOOL],
            },
            {},
        ),
        ("/spaces/ana~trip/import", {}, {}),
        ("/spaces/ana~trip/nodes", NOTE, {}),
    ]
    for path, body, headers in attempts:
        answer = bob.post(path, json=body, headers=headers)
        assert answer.status_code in (400, 404), (path, body, answer.text)
        assert SECRET not in answer.text
    assert house.snapshot() == before


def test_a_space_of_the_same_name_is_another_space(house: House) -> None:
    bob = house.clients["bob"]
    answer = bob.post("/chat/completions", json=CHAT | {"user": "trip"}, headers={"Idempotency-Key": "k1"})
    assert answer.status_code == 200
    assert bob.get("/spaces/trip").json()["version"] == 1
    texts = [r["text"] for r in bob.get("/spaces/trip/requests").json()["data"]]
    assert texts == ["What is the word?"], "Ana's idempotency key answers Ana alone"


def test_foreign_keys_and_tenants_are_out_of_reach(house: House) -> None:
    bob, before = house.clients["bob's admin"], house.snapshot()
    for method, path, body in (
        ("DELETE", f"/keys/{house.key_id}", None),
        ("POST", f"/keys/{house.key_id}/rotate", {"grace_s": 0}),
    ):
        there = bob.request(method, path, json=body)
        nowhere = bob.request(method, path.replace(house.key_id, "0" * 12), json=body)
        assert (there.status_code, nowhere.status_code) == (404, 404)
        assert there.text.replace(house.key_id, "0" * 12) == nowhere.text
    for method, path, body in (
        ("GET", "/tenants", None),
        ("POST", "/tenants", {"name": "mallory"}),
        ("PUT", f"/tenants/{house.ana.id}/quota", {"tokens_per_day": 0}),
        ("DELETE", f"/tenants/{house.ana.id}", None),
        ("PUT", "/tenants/none/quota", {}),
    ):
        assert bob.request(method, path, json=body).status_code == 403
    assert house.ana_key not in bob.get("/keys").text
    assert house.key_id not in bob.get("/keys").text
    assert bob.get("/shared").json() == []
    assert house.snapshot() == before


@pytest.mark.parametrize("key", ["x", "Bearer", "fs-", "fs-" + "A" * 43, "fs-" + "a" * 10_000])
def test_no_made_up_key_opens_anything(house: House, key: str) -> None:
    headers = {"Authorization": f"Bearer {key}"}
    for path in ("/spaces", "/me", "/keys", "/tenants", "/spaces/trip/export", "/models"):
        answer = httpx.get(f"{house.server.url}/v1{path}", headers=headers)  # type: ignore[arg-type]
        assert answer.status_code == 401, answer.text
    for scheme in ("Basic", "Bearer x", "Token"):
        answer = httpx.get(
            f"{house.server.url}/v1/me", headers={"Authorization": f"{scheme} {house.ana_key}x"}
        )
        assert answer.status_code == 401


def test_a_guest_gets_what_is_shared_and_no_more(house: House) -> None:
    ana, bob = house.clients["ana"], house.clients["bob's admin"]
    guest = bob.get("/me").json()["tenant"]["id"]
    ana.put(f"/spaces/trip/shares/{guest}", json={"may_write": False}).raise_for_status()
    before = house.snapshot()
    assert SECRET in bob.get("/spaces/ana~trip/nodes").text
    assert bob.get("/spaces/ana~waiting/nodes").status_code == 404
    for method, path, body in [
        ("POST", "/spaces/ana~trip/chat/completions", CHAT),
        ("POST", "/spaces/ana~trip/import", {}),
        ("POST", "/spaces/ana~trip/nodes", NOTE),
        *((m, p.format(space="ana~trip", bob=guest), b) for m, p, b in CHANGES[1:]),
    ]:
        assert bob.request(method, path, json=body).status_code in (403, 404), (method, path)
    assert house.snapshot() == before
    ana.delete(f"/spaces/trip/shares/{guest}").raise_for_status()
