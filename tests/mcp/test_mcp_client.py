"""Foreign tools in the loop, from real MCP servers on both transports: what they bring, and how they fail."""

import asyncio
import functools
import logging
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import mcp
import pytest

from flowstate_local.cli.roots import opened_toolbox
from flowstate_local.completion import Profile
from flowstate_local.errors import GrammarError, ToolError, UsageError
from flowstate_local.loop import Agent
from flowstate_local.mcp_tools import McpTarget, mcp_tools
from flowstate_local.protocol import ToolCall
from flowstate_local.stores.memory import MemoryStore
from flowstate_local.testing import ScriptedEngine, step
from flowstate_local.tools import Toolbox, ToolResult

pytestmark = pytest.mark.anyio

HERE = Path(__file__).parent
FOREIGN, HOSTILE = str(HERE / "foreign_server.py"), str(HERE / "hostile_server.py")
STDIO = McpTarget(command=(sys.executable, FOREIGN))


def hostile(which: str) -> McpTarget:
    return McpTarget(command=(sys.executable, HOSTILE, which))


class HttpServer:
    """The foreign server in a process of its own, which can be ended and started again on its port."""

    def __init__(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/mcp"
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, FOREIGN, str(self.port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        deadline = time.monotonic() + 30
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                assert time.monotonic() < deadline
                time.sleep(0.05)

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def http() -> Iterator[HttpServer]:
    server = HttpServer()
    yield server
    server.stop()


@pytest.fixture(params=["stdio", "http"])
def target(request: pytest.FixtureRequest) -> McpTarget:
    if request.param == "stdio":
        return STDIO
    return McpTarget(url=request.getfixturevalue("http").url)


@asynccontextmanager
async def toolbox_of(target: McpTarget, **options: Any) -> AsyncIterator[Toolbox]:
    async with mcp_tools(target, **options) as tools:
        yield Toolbox(tools)


async def call(box: Toolbox, name: str, **arguments: Any) -> ToolResult:
    return await box.run(ToolCall(name=name, arguments=arguments))


async def text(box: Toolbox, name: str, **arguments: Any) -> str:
    result = await call(box, name, **arguments)
    assert result.failure is None, result.failure
    return result.raw.decode()


async def test_foreign_tools_are_tools(target: McpTarget) -> None:
    async with toolbox_of(target) as box:
        taxi = box.get("taxi_price")
        assert taxi is not None
        assert taxi.signature.startswith(
            'taxi_price(hotel: string, persons?: integer 1..8, kind?: "car"|"van") - What'
        )
        assert (taxi.idempotent, box.get("rooms").idempotent, box.get("echo").idempotent) == (
            True,
            True,
            False,
        )  # type: ignore[union-attr]
        assert await text(box, "taxi_price", hotel="Aurora", persons=2) == "car to Aurora for 2: 14 dollars"
        assert await text(box, "echo", text='日本 ☹ "quoted"\nnew line') == '日本 ☹ "quoted"\nnew line'
        assert len(await text(box, "big", n=1_000_000)) == 1_000_000
        assert await text(box, "dotted_name_2", value=4) == "5"
        refused = await call(box, "taxi_price", hotel="Aurora", persons=9)
        assert refused.failure is not None
        assert refused.failure.kind == "bad_arguments"


async def test_results_of_all_kinds(target: McpTarget) -> None:
    async with toolbox_of(target) as box:
        assert await text(box, "picture") == "a dot\n[image image/png, 100 bytes]"
        assert await text(box, "summed") == 'two items\n{"items":[1,2]}'
        rooms = await text(box, "rooms", city="Rome")
        assert rooms.count("Aurora") == 1, "structured content that a text repeats is told once"


async def test_failures_are_values(target: McpTarget) -> None:
    async with toolbox_of(target) as box:
        failed = (await call(box, "refuses")).failure
        assert failed is not None
        assert (failed.message, failed.retryable) == ("no rooms on that day ☹", False)
        crashed = (await call(box, "fails", why="x")).failure
        assert crashed is not None
        assert "fails" in crashed.message
        assert await text(box, "echo", text="still there") == "still there"


async def test_a_slow_call_times_out_and_the_others_go_on(target: McpTarget) -> None:
    async with toolbox_of(target, timeout_s=1.5) as box:
        slow, quick = await asyncio.gather(call(box, "slow", seconds=20), call(box, "slow", seconds=0.1))
        assert slow.failure is not None
        assert slow.failure.kind == "timeout"
        assert quick.raw == b"done"
        assert await text(box, "echo", text="on") == "on"


async def test_a_server_that_dies_in_a_call_is_started_again_for_the_next() -> None:
    async with toolbox_of(STDIO) as box:
        first = await text(box, "process")
        dead = (await call(box, "dies")).failure
        assert dead is not None
        assert (dead.kind, dead.retryable) == ("connection_lost", False)
        assert "whether the call took effect is unknown" in dead.message
        assert await text(box, "process") != first


async def test_calls_on_their_way_fail_when_the_server_dies() -> None:
    async with toolbox_of(STDIO) as box:
        waiting = asyncio.create_task(call(box, "slow", seconds=30))
        await asyncio.sleep(0.3)
        await call(box, "dies")
        lost = (await asyncio.wait_for(waiting, 10)).failure
        assert lost is not None
        assert lost.kind == "connection_lost"


async def test_a_server_that_died_unnoticed_costs_no_call() -> None:
    async with toolbox_of(STDIO) as box:
        pid = int(await text(box, "process"))
        subprocess.run(["kill", "-9", str(pid)], check=True)
        await asyncio.sleep(0.5)
        assert await text(box, "echo", text="on") == "on"


async def test_a_server_behind_a_url_may_go_and_come_back(http: HttpServer) -> None:
    async with toolbox_of(McpTarget(url=http.url), timeout_s=20) as box:
        first = await text(box, "process")
        http.stop()
        gone = (await call(box, "process")).failure
        assert gone is not None
        assert gone.retryable
        still_gone = (await call(box, "process")).failure
        assert still_gone is not None
        assert (still_gone.kind, still_gone.retryable) == ("unreachable", True)
        http.start()
        assert await text(box, "process") != first


@pytest.fixture
def handshake(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client speaks to servers as to those of before 2026, which keep sessions."""
    monkeypatch.setattr(mcp, "Client", functools.partial(mcp.Client, mode="legacy"))


@pytest.mark.usefixtures("handshake")
async def test_servers_of_the_older_protocol(target: McpTarget) -> None:
    async with toolbox_of(target, timeout_s=1.5) as box:
        assert await text(box, "taxi_price", hotel="Aurora") == "car to Aurora for 1: 14 dollars"
        slow = (await call(box, "slow", seconds=20)).failure
        assert slow is not None
        assert slow.kind == "timeout"
        assert await text(box, "echo", text="on") == "on"


@pytest.mark.usefixtures("handshake")
async def test_a_session_that_the_server_forgot_is_begun_anew(http: HttpServer) -> None:
    async with toolbox_of(McpTarget(url=http.url), timeout_s=20) as box:
        first = await text(box, "process")
        http.stop()
        http.start()
        assert await text(box, "process") != first, "it costs no call"


@pytest.mark.parametrize(
    ("target", "said"),
    [
        (McpTarget(command=("no-such-program-here", "--token=secret")), "no-such-program-here can't be used"),
        (McpTarget(command=(sys.executable, "-c", "pass")), "Connection closed"),
        (
            McpTarget(url="http://user:secret@127.0.0.1:9/mcp?key=secret"),
            "http://127.0.0.1:9/mcp can't be used",
        ),
    ],
)
async def test_what_cannot_be_reached_is_named_without_its_secrets(target: McpTarget, said: str) -> None:
    with pytest.raises(ToolError, match="can't be used") as caught:
        async with mcp_tools(target):
            pass
    assert said in str(caught.value)
    assert "secret" not in str(caught.value)
    assert (caught.value.kind, caught.value.retryable) == ("unreachable", True)


GARBAGE = """
import json, sys
print("hello, I am no JSON")
for line in sys.stdin:
    asked = json.loads(line)
    if "id" in asked and asked["method"] == "initialize":
        info = {"name": "g", "version": "1"}
        result = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": info}
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)
    elif "id" in asked:
        ok = asked["method"] == "tools/list"
        tools = [{"name": "x", "inputSchema": {"type": "string"}}]
        said = {"result": {"tools": tools}} if ok else {"error": {"code": -32601, "message": "what?"}}
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **said}), flush=True)
"""


async def test_a_server_that_talks_nonsense_is_named() -> None:
    with pytest.raises(ToolError, match="its list of tools is no such list"):
        async with mcp_tools(McpTarget(command=(sys.executable, "-c", GARBAGE))):
            pass


async def test_an_empty_list_is_no_tools() -> None:
    async with mcp_tools(hostile("empty")) as tools:
        assert tools == []


async def test_an_endless_list_is_cut(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        async with mcp_tools(hostile("endless")) as tools:
            assert len(tools) == 100
    assert "has no end" in caplog.text


async def test_names_are_made_apart(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        async with toolbox_of(hostile("twice"), taken={"_3d"}) as box:
            assert set(box.names) == {"same", "a_b", "twice_a_b", "twice__3d", "tool"}
            assert box.get("same").description == "first"  # type: ignore[union-attr]
            assert await text(box, "a_b") == "a-b {}"
            assert await text(box, "twice_a_b") == "a_b {}"
            assert await text(box, "tool") == "日本 {}"
    assert "two tools called 'same'" in caplog.text


@pytest.mark.parametrize("profile", ["guidance", "xgrammar", "outlines"])
async def test_schemas_that_no_grammar_holds_are_left_out_with_a_warning(
    profile: Profile, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        async with mcp_tools(hostile("hostile"), profile=profile) as tools:
            box = Toolbox(tools, profile=profile)
            assert set(box.names) == {"fine", "mostly", "old"}
            fine = box.get("fine")
            assert fine is not None
            assert len(fine.signature) < 1_500, "a foreign text doesn't fill the prompt"
            assert set(box.get("mostly").schema["properties"]) == {"q"}  # type: ignore[union-attr]
            told = await text(box, "old", place={"description": "here"}, count=2, host="h")
            assert told == "old {'place': {'description': 'here'}, 'count': 2, 'host': 'h'}"
    for name, path, keyword in (
        ("anything", "/properties/value", "type"),
        ("remote", "/properties/q", "$ref"),
    ):
        assert f"tool {name} is left out: tool {name}: {path}: {keyword}: " in caplog.text
    assert "argument extra is left out: tool mostly: /properties/extra" in caplog.text


async def test_strict_raises_instead() -> None:
    with pytest.raises(GrammarError) as caught:
        async with mcp_tools(hostile("hostile"), only=["mostly"], strict=True):
            pass
    error = caught.value
    assert (error.tool, error.path) == ("mostly", "/properties/extra")


def test_targets_are_read_as_a_shell_would(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", "k 1")
    url = McpTarget.parse('https://u:p@host:8/mcp Authorization="Bearer $KEY" X-FlowState-Space=trip')
    assert url.headers == {"Authorization": "Bearer k 1", "X-FlowState-Space": "trip"}
    assert str(url) == "https://host:8/mcp"
    command = McpTarget.parse("TOKEN=$KEY npx -y @some/server postgres://u:p@host/db --x=1")
    assert (command.env, command.command[0]) == ({"TOKEN": "k 1"}, "npx")
    assert str(command) == "npx @some/server"
    for wrong in ("", "A=b", "'open", "https://host/mcp stray", "A=${UNSET_HERE} npx"):
        with pytest.raises(UsageError):
            McpTarget.parse(wrong)


async def test_a_key_that_cannot_be_sent_is_not_repeated() -> None:
    with pytest.raises(UsageError, match="header Authorization holds") as caught:
        async with mcp_tools("http://127.0.0.1:9/mcp", headers={"Authorization": "Bearer se\ncret"}):
            pass
    assert "cret" not in str(caught.value)


async def test_the_command_line_joins_tools_of_all_servers() -> None:
    command = f"A=1 {sys.executable} {HOSTILE} twice"
    async with opened_toolbox("flowstate_local.calculator:calculate", [command, command]) as box:
        assert {"calculate", "same", "twice_same", "a_b", "twice_a_b", "a_b_2", "a_b_3"} <= set(box.names)
        assert await text(box, "a_b_2") in ("a-b {}", "a_b {}")
    async with opened_toolbox(None, None) as box:
        assert box.names == ()


async def test_without_the_package_the_remedy_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    with pytest.raises(UsageError, match="MCP needs the package mcp") as caught:
        async with mcp_tools(STDIO):
            pass
    assert "flowstate-local[mcp]" in caught.value.hint


async def test_an_agent_works_with_foreign_tools(target: McpTarget) -> None:
    store = MemoryStore()
    script = [
        step(calls=[("taxi_price", {"hotel": "Aurora"})]),
        step(
            delta=[
                {"type": "knowledge", "id": "n1", "evidence": ["t1"], "summary": "Taxi to Aurora: 14 dollars"}
            ],
            message="14 dollars.",
        ),
    ]
    async with mcp_tools(target, only=["taxi_price", "rooms"]) as tools:
        agent = Agent(ScriptedEngine(script), store, tools)
        done = await agent.run("What does a taxi to the Aurora cost?", space="s")
    assert (done.outcome, done.message) == ("replied", "14 dollars.")
    record = store.reader("s").evidence(store.reader("s").node(done.nodes[0]).evidence[0])  # type: ignore[union-attr]
    assert record is not None
    assert store.reader("s").blob(record.digest) == b"car to Aurora for 1: 14 dollars"
    assert store.verify("s") == []
