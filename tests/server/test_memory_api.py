"""The memory over HTTP: lists, hops, raw bytes, the past, export; and nothing of it for anybody else."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from flowstate_local.testing import step
from flowstate_local.tools import tool
from tests.server.conftest import Running

Serve = Callable[..., Running]


@tool(idempotent=True)
def read_page(name: str) -> str:
    """Read a page."""
    return f"All of {name}: <b>fee 80</b>"


SCRIPT = [
    step(calls=[("read_page", {"name": "terms"})]),
    step(
        delta=[
            {"type": "knowledge", "id": "n1", "evidence": ["t1"], "summary": "Fee 80 in the terms"},
            {
                "type": "judgement",
                "id": "n2",
                "refs": [{"relation": "supports", "target": "n1"}],
                "evidence": ["t1"],
                "summary": "Keep the hotel",
            },
        ],
        message="Kept.",
    ),
    step(delta=[{"type": "preference", "id": "n3", "summary": "Ana likes tea"}]),
    step(message="Noted."),
]


@pytest.fixture
def filled(serve: Serve) -> Iterator[tuple[Running, httpx.Client]]:
    server = serve(SCRIPT, tools=[read_page])
    with httpx.Client(
        base_url=f"{server.url}/v1", headers={"Authorization": f"Bearer {server.key('ana')}"}
    ) as api:
        for text in ("Keep the hotel?", "I like tea"):
            body = {"model": "x", "user": "trip", "messages": [{"role": "user", "content": text}]}
            assert api.post("/chat/completions", json=body).status_code == 200
        yield server, api


def test_what_is_in_a_space(filled: tuple[Running, httpx.Client]) -> None:
    _, api = filled
    assert [(s["space"], s["version"], s["nodes"]) for s in api.get("/spaces").json()] == [("trip", 2, 3)]
    assert [n["id"] for n in api.get("/spaces/trip/nodes").json()["data"]] == ["n1", "n2", "n3"]
    found = api.get("/spaces/trip/nodes", params={"q": "TEA ana"}).json()["data"]
    assert [n["id"] for n in found] == ["n3"]
    kinds = api.get("/spaces/trip/nodes", params={"type": "judgement"}).json()["data"]
    assert [n["id"] for n in kinds] == ["n2"]
    hop = api.get("/spaces/trip/nodes/n2").json()
    assert hop["rests_on"][0]["node"]["summary"] == "Fee 80 in the terms"
    assert hop["rests_on"][0]["evidence"][0]["tool"] == "read_page"
    raw = api.get("/spaces/trip/evidence/t1")
    assert raw.content == b"All of terms: <b>fee 80</b>"
    assert raw.headers["content-type"] == "application/octet-stream"
    assert [r["message"] for r in api.get("/spaces/trip/requests").json()["data"]] == ["Kept.", "Noted."]
    graph = api.get("/spaces/trip/graph").json()
    assert {"source": "n2", "relation": "supports", "target": "n1"} in graph["edges"]
    assert api.post("/spaces/trip/verify").json() == []
    lines = [json.loads(line) for line in api.get("/spaces/trip/export").text.splitlines()]
    assert lines[0]["space"] == "trip"
    assert {line["kind"] for line in lines} == {"space", "request", "evidence", "node", "event"}


def test_the_past_and_pages(filled: tuple[Running, httpx.Client]) -> None:
    _, api = filled
    log: list[Any] = []
    after = None
    while True:
        page = api.get(
            "/spaces/trip/timeline", params={"limit": 4} | ({"after": after} if after else {})
        ).json()
        log += page["data"]
        after = page["next"]
        if after is None:
            break
    assert [event["seq"] for event in log] == list(range(1, len(log) + 1))
    first_end = next(e["seq"] for e in log if e["kind"] == "RequestFinished")
    then = api.get("/spaces/trip/nodes", params={"as_of_seq": first_end}).json()["data"]
    assert [n["id"] for n in then] == ["n1", "n2"]
    one = api.get("/spaces/trip/nodes", params={"limit": 2}).json()
    assert one["next"] == "n2"
    rest = api.get("/spaces/trip/nodes", params={"limit": 2, "after": "n2"}).json()
    assert ([n["id"] for n in rest["data"]], rest["next"]) == (["n3"], None)
    assert [r["id"] for r in api.get("/spaces/trip/requests", params={"after": "1"}).json()["data"]] == ["r2"]


def test_a_node_is_added_without_the_model(filled: tuple[Running, httpx.Client]) -> None:
    server, api = filled
    note = {"type": "knowledge", "summary": "Gate 7 closes at 9:40", "source": "Board: gate 7, 9:40"}
    node = api.post("/spaces/trip/nodes", json=note).json()
    assert api.get(f"/spaces/trip/nodes/{node['id']}").json()["node"]["summary"] == note["summary"]
    assert api.get(f"/spaces/trip/evidence/{node['evidence'][0]}").text == note["source"]
    assert api.post("/spaces/trip/verify").json() == []
    bad = [
        note | {"type": "cat"},
        note | {"refs": [{"relation": "supports", "target": "n99"}]},
        {},
        note | {"x": 1},
    ]
    assert [api.post("/spaces/trip/nodes", json=one).status_code for one in bad] == [400] * 4
    with httpx.Client(headers={"Authorization": f"Bearer {server.key('ana', 'read')}"}) as reader:
        assert reader.post(f"{server.url}/v1/spaces/trip/nodes", json=note).status_code == 403


READS = [
    "",
    "/nodes",
    "/nodes/n1",
    "/evidence/t1",
    "/requests",
    "/timeline",
    "/graph",
    "/export",
    "/nodes?as_of_seq=3",
    "/nodes?after=n1",
    "/timeline?after=2",
    "/graph?as_of_seq=1",
]


@pytest.mark.parametrize("path", READS)
def test_nothing_of_it_is_for_anybody_else(path: str, filled: tuple[Running, httpx.Client]) -> None:
    server, api = filled
    owner = {t.name: t for t in server.tenants.all()}["ana"]
    with (
        httpx.Client(
            base_url=f"{server.url}/v1", headers={"Authorization": f"Bearer {server.key('bob')}"}
        ) as foreign,
    ):
        assert api.get(f"/spaces/trip{path}").status_code == 200
        there, nowhere = foreign.get(f"/spaces/trip{path}"), foreign.get(f"/spaces/none{path}")
        assert (there.status_code, nowhere.status_code) == (404, 404)
        assert there.json()["error"]["message"].replace("trip", "none") == nowhere.json()["error"]["message"]
        for name in (
            f"{owner.id}.trip",
            f"..%2F{owner.id}.trip",
            f"{owner.id}%2Etrip",
            "ana%2Ftrip",
            "%2e%2e",
            "*",
            "trip%00",
        ):
            assert foreign.get(f"/spaces/{name}{path}").status_code in (400, 404), name
        assert foreign.get("/spaces").json() == []
        assert httpx.get(f"{server.url}/v1/spaces/trip{path}").status_code == 401


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/nodes/n99", 404),
        ("/nodes/..%2f", 404),
        ("/evidence/t99", 404),
        ("/evidence/x", 404),
        ("/timeline?after=x", 400),
        ("/timeline?limit=0", 400),
        ("/timeline?limit=100000", 400),
        ("/nodes?type=thing", 400),
        ("/nodes?as_of_seq=-1", 400),
        ("/nodes?as_of_seq=999999", 400),
        ("/nodes?after=n99", 200),
        ("/nodes/n1?depth=99", 400),
    ],
)
def test_bad_reads_are_told(path: str, status: int, filled: tuple[Running, httpx.Client]) -> None:
    _, api = filled
    answer = api.get(f"/spaces/trip{path}")
    assert answer.status_code == status, answer.text
    if status != 200:
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
