"""A memory over MCP, used by the official client on both transports, and by this project's own agent."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import httpx2
import pytest
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp.types import CallToolResult

from flowstate_local.errors import ConflictError, StoreBusy, ToolError, UsageError
from flowstate_local.loop import Agent
from flowstate_local.mcp_tools import McpTarget, mcp_tools
from flowstate_local.nodes import EvidenceId, NodeId, Ref, RequestId
from flowstate_local.notes import Note, add_note
from flowstate_local.stores.lmdb import LmdbStore
from flowstate_local.stores.memory import MemoryStore
from flowstate_local.testing import ScriptedEngine, step
from flowstate_local.tools import Tool, Toolbox
from tests.server.conftest import Running

pytestmark = pytest.mark.anyio

Serve = Callable[..., Running]
CLI = "from flowstate_local.cli.main import main; main()"
READS = {"search", "open", "timeline", "index"}
FEE = {"type": "knowledge", "summary": "Fee of the Aurora: 80", "slots": [{"name": "fee", "value": "80"}]}


def stdio_command(store: Path, *more: str, space: str = "trip") -> tuple[str, ...]:
    return (sys.executable, "-c", CLI, "mcp", "--store", str(store), "--space", space, *more)


@asynccontextmanager
async def over_stdio(
    store: Path, *more: str, mode: str = "auto", space: str = "trip"
) -> AsyncIterator[Client]:
    program, *arguments = stdio_command(store, *more, space=space)
    started = StdioServerParameters(
        command=program, args=arguments, env={"PYTHONPATH": str(Path(__file__).parents[2])}
    )
    async with Client(started, mode=mode) as client:
        yield client


@asynccontextmanager
async def over_http(
    server: Running, key: str, space: str | None = None, mode: str = "auto", **headers: str
) -> AsyncIterator[Client]:
    told = {"Authorization": f"Bearer {key}", **headers} | ({"X-FlowState-Space": space} if space else {})
    async with (
        httpx2.AsyncClient(headers=told) as http,
        Client(streamable_http_client(f"{server.url}/mcp", http_client=http), mode=mode) as client,
    ):
        yield client


async def names(client: Client) -> set[str]:
    return {tool.name for tool in (await client.list_tools()).tools}


async def ok(client: Client, name: str, **arguments: Any) -> dict[str, Any]:
    result = await client.call_tool(name, arguments)
    assert not result.is_error, said(result)
    assert isinstance(result.structured_content, dict)
    return result.structured_content


async def refused(client: Client, name: str, **arguments: Any) -> str:
    result = await client.call_tool(name, arguments)
    assert result.is_error, said(result)
    return said(result)


def said(result: CallToolResult) -> str:
    return "".join(block.text for block in result.content if block.type == "text")


# --- notes ------------------------------------------------------------------------------------------------------


def test_a_note_is_a_request_of_its_own() -> None:
    store = MemoryStore()
    added = add_note(store, "s", Note(source="It costs ü80.", **FEE), writer="bob\nr9: 3 nodes: over MCP")
    assert (added.request, added.node.id, added.source) == ("r1", "n1", "t1")
    assert [e.kind for e in store.events("s")] == [
        "RequestStarted",
        "StepStarted",
        "ToolStarted",
        "ToolFinished",
        "DeltaCommitted",
        "RequestFinished",
    ]
    record = store.reader("s").evidence(EvidenceId("t1"))
    assert record is not None
    assert store.reader("s").blob(record.digest) == "It costs ü80.".encode()
    asked = store.reader("s").request(RequestId("r1"))
    assert asked is not None
    assert asked.text == "Added by bob r9: 3 nodes: over MCP", "one line, whatever the writer calls itself"
    assert store.verify("s") == []


def test_a_note_is_judged_like_what_a_model_writes() -> None:
    store = MemoryStore()
    add_note(store, "s", Note(**FEE), writer="bob")
    cases = [
        (Note(refs=(Ref(relation="supports", target=NodeId("n9")),), **FEE), "there is no node n9"),
        (Note(evidence=(EvidenceId("t9"),), **FEE), "no such tool result: t9"),
        (Note(type="knowledge", summary=" \n "), "say in one line"),
        (Note(refs=(Ref(relation="supersedes", target=NodeId("n1")),), **FEE), "n1 says this already"),
    ]
    before = store.head("s")
    for note, why in cases:
        with pytest.raises(UsageError, match="not added") as caught:
            add_note(store, "s", note, writer="bob")
        assert why in str(caught.value)
    assert store.head("s") == before


async def test_nothing_is_added_while_a_request_is_open_and_it_goes_on_unharmed() -> None:
    store = MemoryStore()
    weather = Tool.from_schema("weather", "", {"type": "object", "properties": {}}, None)
    script = [step(calls=[("weather", {})]), step(message="Rain.")]
    agent = Agent(ScriptedEngine(script, check=False), store, [weather])
    await agent.run("Weather?", space="s")
    with pytest.raises(StoreBusy, match="request r1 is under way"):
        add_note(store, "s", Note(**FEE), writer="bob")
    assert (await agent.supply("s", EvidenceId("t1"), "rain")).message == "Rain."
    assert add_note(store, "s", Note(**FEE), writer="bob").request == "r2"
    assert store.verify("s") == []


def test_a_note_that_meets_another_writer_is_written_on_fresh_state(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    persist, rivals = store.persist, ["first", "second"]

    def beaten(space: str, done: Any, **expected: int) -> Any:
        if rivals:
            rival = rivals.pop()
            monkeypatch.setattr(store, "persist", persist)
            add_note(store, "s", Note(type="attribute", summary=f"from {rival}"), writer=rival)
            monkeypatch.setattr(store, "persist", beaten)
        return persist(space, done, **expected)

    monkeypatch.setattr(store, "persist", beaten)
    assert add_note(store, "s", Note(**FEE), writer="bob").node.id == "n3"
    assert store.verify("s") == []

    def always_beaten(space: str, done: Any, **expected: int) -> Any:
        raise ConflictError("another was first")

    monkeypatch.setattr(store, "persist", always_beaten)
    with pytest.raises(ConflictError, match="time and again"):
        add_note(store, "s", Note(**FEE), writer="bob")


def test_many_threads_may_add_at_once(tmp_path: Path) -> None:
    store = LmdbStore.open(tmp_path / "store")
    with pytest.raises(
        UsageError, match="not added"
    ):  # a note with a source that isn't written leaves nothing
        add_note(store, "s", Note(source="x", evidence=(EvidenceId("t9"),), **FEE), writer="bob")
    assert store.head("s").seq == 0

    def add(n: int) -> None:
        while True:
            try:
                note = Note(type="attribute", summary=f"note {n}", source=f"raw {n}")
                add_note(store, "s", note, writer="bob")
                return
            except ConflictError:  # one that always loses gives up in the end, and may try again
                continue

    async def crowd() -> None:
        await asyncio.gather(*(asyncio.to_thread(add, n) for n in range(40)))

    asyncio.run(crowd())
    assert (store.head("s").nodes, store.head("s").evidence, store.verify("s")) == (40, 40, [])
    store.close()


# --- stdio ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_another_agent_reads_and_writes_over_stdio(tmp_path: Path, mode: str) -> None:
    async with over_stdio(tmp_path / "store", mode=mode) as client:
        assert client.server_info is not None
        assert client.server_info.name == "flowstate"
        assert "supersedes" in (client.instructions or "")
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert set(tools) == {*READS, "add"}
        for name, tool in tools.items():
            assert tool.annotations is not None
            assert tool.annotations.read_only_hint == (name in READS)
            assert tool.annotations.destructive_hint is False
            assert tool.output_schema is not None
        assert await ok(client, "search", words="fee") == {"found": []}
        first = await ok(client, "add", source="Cancelling costs 80. 日本", **FEE)
        assert (first["id"], first["evidence"]) == ("n1", ["t1"])
        replaces = [{"relation": "supersedes", "target": "n1"}]
        second = await ok(client, "add", type="knowledge", summary="Fee is 90 now", refs=replaces)
        assert second["id"] == "n2"
        found = (await ok(client, "search", words="AURORA fee 80"))["found"]
        assert [(n["id"], n["n_words"], n.get("superseded_by")) for n in found] == [
            ("n1", 3, ["n2"]),
            ("n2", 1, None),
        ]
        opened = await ok(client, "open", id="n2")
        assert opened["rests_on"] == [
            {
                "source": "n2",
                "relation": "supersedes",
                "id": "n1",
                "line": "knowledge: Fee of the Aurora: 80",
                "evidence": ["t1"],
            }
        ]
        assert "rests_on" not in await ok(client, "open", id="n2", hops=0)
        assert (await ok(client, "open", id="t1"))["text"] == "Cancelling costs 80. 日本"
        assert (await ok(client, "open", id="r1"))["lines"] == [
            "n1 knowledge: Fee of the Aurora: 80 {fee=80}"
        ]
        asked = (await ok(client, "timeline", limit=1))["requests"]
        assert [(r["id"], r["nodes"], r["text"]) for r in asked] == [("r2", ["n2"], "Added by mcp over MCP")]
        events = (await ok(client, "timeline", request="r2"))["events"]
        assert [e["kind"] for e in events][-2:] == ["DeltaCommitted", "RequestFinished"]
        assert (await ok(client, "index"))["lines"][-1] == "n2 knowledge (supersedes n1): Fee is 90 now"
    store = LmdbStore.open(tmp_path / "store", create=False)
    assert store.verify("trip") == []
    store.close()


async def test_mistakes_are_told_in_words(tmp_path: Path) -> None:
    async with over_stdio(tmp_path / "store") as client:
        await ok(client, "add", **FEE)
        assert "nothing has the id 'n77'. search" in await refused(client, "open", id="n77")
        assert "nothing has the id 't3'" in await refused(client, "open", id="t3")
        assert "type: input should be" in await refused(client, "add", type="fact", summary="x")
        assert "extra inputs" in await refused(client, "open", id="n1", space="other")
        assert "not added: refs: there is no node n9" in await refused(
            client, "add", type="judgement", summary="x", refs=[{"relation": "supports", "target": "n9"}]
        )
        assert "is no id of a request" in await refused(client, "timeline", request="n1")
        with pytest.raises(MCPError, match="there is no tool 'forget'; tools: search"):
            await client.call_tool("forget", {})


async def test_a_long_source_comes_in_pages(tmp_path: Path) -> None:
    text = "".join(f"line {n}\n" for n in range(20_000))
    async with over_stdio(tmp_path / "store") as client:
        await ok(client, "add", source=text, **FEE)
        pages, wanted = [], "t1"
        while wanted:
            page = await ok(client, "open", id=wanted)
            pages.append(page["text"])
            wanted = page.get("next", "")
        assert "".join(pages) == text
        last = f"t1#{len(pages)}"
        assert f"The last is {last}" in await refused(client, "open", id=f"t1#{len(pages) + 1}")
        assert "source: string should have at most" in await refused(
            client, "add", source="x" * 1_000_001, **FEE
        )


async def test_two_processes_write_to_one_memory(tmp_path: Path) -> None:
    store = tmp_path / "store"
    async with over_stdio(store) as one, over_stdio(store) as other:

        async def write(client: Client) -> list[str]:
            return [(await ok(client, "add", source=f"raw {n}", **FEE))["id"] for n in range(8)]

        ids = [i for written in await asyncio.gather(write(one), write(other)) for i in written]
        assert sorted(ids) == sorted(f"n{n}" for n in range(1, 17))
        assert len((await ok(one, "search", words="fee"))["found"]) == 16
    opened = LmdbStore.open(store, create=False)
    assert opened.verify("trip") == []
    opened.close()


async def test_read_only_offers_nothing_that_writes(tmp_path: Path) -> None:
    async with over_stdio(tmp_path / "store") as client:
        await ok(client, "add", **FEE)
    async with over_stdio(tmp_path / "store", "--read-only") as client:
        assert await names(client) == READS
        assert len((await ok(client, "search"))["found"]) == 1
        assert "read-only" in await refused(client, "add", **FEE)


async def test_a_folded_history_can_be_opened_span_by_span(tmp_path: Path) -> None:
    store = LmdbStore.open(tmp_path / "store")
    for n in range(120):
        add_note(store, "trip", Note(type="attribute", summary=f"fact {n} {'and more ' * 20}"), writer="bob")
    store.close()
    async with over_stdio(tmp_path / "store") as client:
        lines = (await ok(client, "index"))["lines"]
        assert lines[0].startswith("s1_10: 10 requests")
        inside = (await ok(client, "open", id="s1_10"))["lines"]
        assert len(inside) == 10
        assert "nothing has the id 's991_1000'" in await refused(client, "open", id="s991_1000")
        seen: list[str] = []
        before: dict[str, str] = {}
        while True:
            page = await ok(client, "timeline", limit=50, **before)
            seen += [request["id"] for request in page["requests"]]
            if "next" not in page:
                break
            before = {"before": page["next"]}
        assert seen == [f"r{n}" for n in range(120, 0, -1)]
        found = await ok(client, "search", words="fact", limit=5)
        assert (len(found["found"]), found["n_more"], found["found"][0]["id"]) == (5, 115, "n120")


# --- HTTP -------------------------------------------------------------------------------------------------------


@pytest.fixture
def server(serve: Serve) -> Running:
    return serve([step(message="Noted.")] * 3)


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_another_agent_reads_and_writes_over_http(server: Running, mode: str) -> None:
    key = server.key("ana")
    async with over_http(server, key, "trip", mode=mode) as client:
        assert await names(client) == {*READS, "add"}
        assert (await ok(client, "add", source="raw", **FEE))["id"] == "n1"
        assert (await ok(client, "open", id="t1"))["text"] == "raw"
        asked = (await ok(client, "timeline"))["requests"][0]["text"]
        assert asked.startswith("Added by ana over MCP")
        schema = {tool.name: tool.input_schema for tool in (await client.list_tools()).tools}["open"]
        assert "space" not in schema["properties"], "the header has chosen"
        assert "extra inputs" in await refused(client, "open", id="n1", space="other")
    async with over_http(server, key, mode=mode) as client:
        assert (await ok(client, "search", space="trip", words="fee"))["found"][0]["id"] == "n1"
        assert (await ok(client, "add", **FEE))["request"] == "r1"
        assert [n["id"] for n in (await ok(client, "search"))["found"]] == ["n1"]
    tenant = server.tenant("ana")
    assert server.service.store.verify(f"{tenant.id}.trip") == []


async def test_the_memory_is_the_one_that_the_api_serves(server: Running) -> None:
    key = server.key("ana")
    async with over_http(server, key, "trip") as client:
        await ok(client, "add", **FEE)
        api = httpx.AsyncClient(base_url=f"{server.url}/v1", headers={"Authorization": f"Bearer {key}"})
        async with api:
            body = {"model": "x", "user": "trip", "messages": [{"role": "user", "content": "The fee?"}]}
            answer = await api.post("/chat/completions", json=body)
            assert answer.status_code == 200
            assert "n1 knowledge: Fee of the Aurora: 80 {fee=80}" in server.service.engine.prompts[-1]  # type: ignore[attr-defined]
            nodes = (await api.get("/spaces/trip/nodes")).json()["data"]
        assert [node["id"] for node in nodes] == ["n1"]
        assert [r["id"] for r in (await ok(client, "timeline"))["requests"]] == ["r2", "r1"]


async def test_foreign_and_unknown_look_the_same(server: Running) -> None:
    ana, bob = server.key("ana"), server.key("bob")
    async with over_http(server, ana, "secret") as client:
        await ok(client, "add", source="the code is 4711", **FEE)
    owner = server.tenant("ana").id
    async with over_http(server, bob) as client:
        for space in ("secret", "ana~secret", "nobody~secret", f"{owner}~secret", "unheard"):
            for name, arguments in (
                ("search", {"words": "fee"}),
                ("open", {"id": "n1"}),
                ("open", {"id": "t1"}),
                ("timeline", {}),
                ("timeline", {"request": "r1"}),
                ("index", {}),
            ):
                answer = await refused(client, name, space=space, **arguments)
                assert answer == f"there is no space {space!r}. `add` begins one of your own."
        for space in ("ana~secret", "nobody~secret"):
            assert "there is no space" in await refused(client, "add", space=space, **FEE)
        assert "space: must be a text" in await refused(client, "index", space=7)
        assert "holds" in await refused(client, "index", space="../secret")
    async with over_http(server, bob, "ana~secret") as client:
        assert "there is no space" in await refused(client, "search")
    server.tenants.share(server.tenant("ana"), "secret", server.tenant("bob"), may_write=False)
    async with over_http(server, bob) as client:
        assert len((await ok(client, "search", space="ana~secret"))["found"]) == 1
        assert "there is no space" in await refused(client, "add", space="ana~secret", **FEE)


async def test_a_key_that_may_read_is_offered_no_add(server: Running) -> None:
    async with over_http(server, server.key("ana"), "trip") as client:
        await ok(client, "add", **FEE)
    async with over_http(server, server.key("ana", "read"), "trip") as client:
        assert await names(client) == READS
        assert len((await ok(client, "search"))["found"]) == 1
        assert "read-only" in await refused(client, "add", **FEE)


INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "x", "version": "1"},
    },
}
ACCEPT = {"Accept": "application/json, text/event-stream"}


def test_who_may_call(server: Running) -> None:
    good = {"Authorization": f"Bearer {server.key('ana')}", **ACCEPT}
    with httpx.Client(base_url=server.url) as api:
        for headers in ({}, {"Authorization": "Bearer fs-wrong"}, {"Authorization": "Basic eDp5"}):
            answer = api.post("/mcp", json=INITIALIZE, headers={**ACCEPT, **headers})
            assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
        for origin in ("http://localhost:6274", "http://127.0.0.1", "http://[::1]:1"):
            assert api.post("/mcp", json=INITIALIZE, headers={**good, "Origin": origin}).status_code == 200
        for origin in ("https://evil.example", "http://localhost.evil.example", "null", "http://[", ""):
            answer = api.post("/mcp", json=INITIALIZE, headers={**good, "Origin": origin})
            assert (answer.status_code, answer.json()["error"]["code"]) == (403, "origin_not_allowed"), origin
        answer = api.post("/mcp", json=INITIALIZE, headers={**good, "Host": "memory.example.org"})
        assert answer.status_code == 200, "behind a proxy the host may have any name"
        for method in ("GET", "DELETE", "PUT"):
            answer = api.request(method, "/mcp", headers={**good, "Content-Length": "0"})
            assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
        answer = api.post("/mcp", content=b"{", headers={**good, "Content-Type": "application/json"})
        assert answer.status_code == 400
        answer = api.post("/mcp", content=b"x" * 2_000_001, headers=good)
        assert answer.status_code == 413


async def test_a_tenant_keeps_to_its_rate(server: Running) -> None:
    async with over_http(server, server.key("ana", requests_per_minute=2), "trip") as client:
        await ok(client, "add", **FEE)
        await ok(client, "add", **FEE)
        assert "2 requests a minute are allowed" in await refused(client, "add", **FEE)
        assert len((await ok(client, "search"))["found"]) == 2


async def test_a_request_under_way_is_named_to_who_adds(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flowstate_local.server.admission.WRITE_WAIT_S", 0.2)
    server = serve([step(calls=[("weather", {})])])
    key = server.key("ana")
    weather = {"type": "function", "function": {"name": "weather"}}
    body = {
        "model": "x",
        "user": "trip",
        "tools": [weather],
        "messages": [{"role": "user", "content": "Weather?"}],
    }
    async with httpx.AsyncClient(
        base_url=f"{server.url}/v1", headers={"Authorization": f"Bearer {key}"}
    ) as api:
        assert (await api.post("/chat/completions", json=body)).status_code == 200
    async with over_http(server, key, "trip") as client:
        answer = await refused(client, "add", **FEE)
        assert "request r1 is under way in this memory" in answer
        assert server.tenant("ana").id not in answer
        lock = server.service.admission._locks.setdefault(f"{server.tenant('ana').id}.trip", asyncio.Lock())
        lock._locked = True  # as while a turn runs
        assert "a request is under way" in await refused(client, "add", **FEE)
        lock._locked = False


# --- our own agent on our own memory ----------------------------------------------------------------------------


def learnt(node: str, evidence: str, summary: str) -> dict[str, Any]:
    return {"type": "knowledge", "id": node, "evidence": [evidence], "summary": summary}


async def test_an_agent_keeps_its_knowledge_in_a_memory_over_mcp(tmp_path: Path) -> None:
    """Both ends are this project: a loop whose tools are the tools of a memory elsewhere."""
    target = McpTarget(
        command=stdio_command(tmp_path / "shared"), env={"PYTHONPATH": str(Path(__file__).parents[2])}
    )
    note = {"type": "knowledge", "summary": "Gate 7 closes at 9:40", "source": "Gate 7 closes at 9:40."}
    script = [
        step(calls=[("add", note)]),
        step(delta=[learnt("n1", "t1", "It is kept")]),  # what a call has done must be written down first
        step(calls=[("search", {"words": "gate"})]),
        step(delta=[learnt("n2", "t2", "It is found")], calls=[("open", {"id": "t1"})]),
        step(delta=[learnt("n3", "t3", "Gate 7 closes at 9:40")], message="Gate 7 closes at 9:40."),
    ]
    own = MemoryStore()
    async with mcp_tools(target, strict=True) as tools:
        engine = ScriptedEngine(script)
        assert {tool.name for tool in tools} == {*READS, "add"}
        assert [tool.idempotent for tool in Toolbox(tools)] == [False, True, True, True, True]
        done = await Agent(engine, own, tools).run("When does gate 7 close?", space="s")
    assert done.outcome == "replied"
    assert '"id":"n1"' in engine.prompts[1]
    assert "Gate 7 closes at 9:40" in engine.prompts[4]
    assert own.verify("s") == []
    shared = LmdbStore.open(tmp_path / "shared", create=False)
    kept = shared.reader("trip").node(NodeId("n1"))
    assert kept is not None
    assert kept.summary == note["summary"]
    asked = shared.reader("trip").request(RequestId("r1"))
    assert asked is not None
    assert asked.text == "Added by flowstate over MCP"
    assert shared.verify("trip") == []
    # and a FlowState agent of that memory sees the note in its index, and goes on
    reader = ScriptedEngine([step(focus=["n1"]), step(message="9:40.")])
    assert (await Agent(reader, shared, []).run("Gate?", space="trip")).request == "r2"
    assert "n1 knowledge: Gate 7 closes at 9:40" in reader.prompts[0]
    assert shared.verify("trip") == []
    shared.close()


async def test_the_own_client_says_that_a_key_is_wrong(server: Running) -> None:
    with pytest.raises(ToolError, match="HTTP 401"):
        async with mcp_tools(f"{server.url}/mcp Authorization='Bearer fs-wrong'"):
            pass
    async with mcp_tools(
        f"{server.url}/mcp", headers={"Authorization": f"Bearer {server.key('ana')}"}
    ) as tools:
        assert len(tools) == 5
