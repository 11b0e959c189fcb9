"""`flowstate task`: what it runs, decides, prints and returns, on stores on disk and with tools from a module."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import lmdb
import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from flowstate_local.cli.main import app
from flowstate_local.cli.task import app as task_app
from flowstate_local.cli.task import worker
from flowstate_local.cli.task.chart import Gantt
from flowstate_local.cli.task.state_view import task_view
from flowstate_local.cli.task.words import Family, one_line, seconds_text
from flowstate_local.stores.lmdb import LmdbStore
from flowstate_local.task_events import (
    CompensationStarted,
    RetryRule,
    StepError,
    StepName,
    StepSpec,
    TaskAction,
    TaskCreated,
    TaskEvent,
    TaskId,
    TaskStatusChanged,
    TaskStepFailed,
    TaskStepFinished,
    TaskStepStarted,
    ToolAction,
    ToolUse,
    UndoFailed,
    UndoFinished,
    UndoStarted,
    Value,
    WorkflowSpec,
)
from flowstate_local.task_state import fold
from flowstate_local.tasks.manager import TaskManager
from flowstate_local.tasks.runner import Runner
from flowstate_local.tasks.workflow import load
from flowstate_local.testing import ScriptedEngine, step

runner = CliRunner()

TOOLS = '''
import asyncio
import os
from typing import Any

from flowstate_local.errors import ToolError
from flowstate_local.tools import Toolbox, ToolContext, tool

calls: list[str] = []
down: dict[str, int] = {}


@tool(idempotent=True, for_model=False)
async def say(context: ToolContext, text: Any = None, wait: float = 0.0) -> Any:
    """Say something, unless it is down so many times."""
    await asyncio.sleep(wait)
    calls.append(context.step)
    if down.get(context.step, 0):
        down[context.step] -= 1
        raise ToolError("no answer", kind="unavailable", retryable=True)
    return context.step if text is None else text


@tool(for_model=False)
async def pay(context: ToolContext, amount: int, wait: float = 0.0) -> Any:
    """Pay, which must not happen twice."""
    await asyncio.sleep(wait)
    calls.append(context.step)
    if down.get(context.step, 0):
        raise ToolError("the card was declined", kind="declined")
    return {"paid": amount}


@tool(idempotent=True, for_model=False)
async def undo(context: ToolContext) -> None:
    """Undo it."""
    calls.append("undo " + context.step)


toolbox = Toolbox([say, pay, undo])
'''
QUICK = RetryRule(kinds=("*",), then="later", times=3, delay_s=0.01)


def call(name: str, tool: str = "say", needs: Sequence[str] = (), **fields: Any) -> StepSpec:
    arguments = fields.pop("args", {})
    return StepSpec.model_validate(
        {"name": name, "action": ToolAction(tool=tool, arguments=arguments), "needs": tuple(needs), **fields}
    )


INSURE = WorkflowSpec(name="insure", steps=(call("quote"), call("sign", needs=["quote"])))
TRIP = WorkflowSpec(
    name="trip",
    goal="book and pay a trip",
    steps=(
        call("hotel", undo=ToolUse(tool="undo"), args={"text": {"hotel": "Aurora", "notes": "x" * 2_000}}),
        call("train", retry=(QUICK,)),
        call("seat", needs=["train"], fallback="bus", retry=(RetryRule(then="fallback"),)),
        call("bus", needs=["train"]),
        StepSpec(name=StepName("insurance"), action=TaskAction(workflow=INSURE), needs=(StepName("hotel"),)),
        call("pay", "pay", needs=["hotel", "seat", "insurance"], args={"amount": "${params.price}"}),
        call(
            "tell",
            needs=["pay"],
            args={"text": "paid ${steps.pay.output.paid} for ${steps.hotel.output.hotel}"},
        ),
    ),
    result="${steps.tell.output}",
)


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The module of tools, importable as `trip_tools` here and in child processes."""
    folder = tmp_path_factory.mktemp("tools")
    (folder / "trip_tools.py").write_text(TOOLS)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        patch.setenv("PYTHONPATH", str(folder))
        import trip_tools  # type: ignore[import-not-found]

        yield trip_tools
        del sys.modules["trip_tools"]


@pytest.fixture(autouse=True)
def fresh(tools: Any) -> None:
    tools.calls.clear()
    tools.down.clear()


@contextmanager
def tasks(folder: Path, space: str = "default") -> Iterator[TaskManager[Any]]:
    with LmdbStore.open(folder) as store:
        yield TaskManager[Any](store, space)


def add(folder: Path, workflow: WorkflowSpec = TRIP, task: str = "t", **params: Any) -> None:
    with tasks(folder) as manager:
        manager.create(workflow, params or {"price": 200}, task=task, owner="ana")


def play(folder: Path, tools: Any, workflow: WorkflowSpec = TRIP, task: str = "t") -> None:
    """Make a task and run it to its end."""
    add(folder, workflow, task)
    with tasks(folder) as manager:
        asyncio.run(Runner(manager, tools.toolbox, poll_s=0.02).run(task))


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture(scope="module")
def failed(tools: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a trip that failed at its payment: a retry, a stand-in, a sub-task, an undoing, a blocked step."""
    folder = tmp_path_factory.mktemp("failed") / "store"
    tools.down.update({"train": 1, "seat": 1, "pay": 1})
    play(folder, tools)
    return folder


def task(*arguments: str, store: Path, code: int = 0, columns: int = 160, **env: str) -> Result:
    result = runner.invoke(
        app, ["task", *arguments, "--store", str(store)], env={"COLUMNS": str(columns), **env}
    )
    assert result.exit_code == code, result.output
    return result


def as_json(result: Result) -> Any:
    return json.loads(result.stdout)


def lines(result: Result) -> list[Any]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def with_tools(*arguments: str, store: Path, code: int = 0, columns: int = 160, **env: str) -> Result:
    return task(*arguments, "--tools", "trip_tools:toolbox", store=store, code=code, columns=columns, **env)


# --- run ----------------------------------------------------------------------------------------------------

BUY = """\
name: buy
goal: buy something
params:
  what: {type: string}
  amount: {type: integer, default: 3}
steps:
  look:
    tool: say
    with: {text: {item: "${params.what}", seen: [1, 2]}}
  pay:
    tool: pay
    needs: [look]
    with: {amount: "${params.amount}"}
result: "${steps.look.output.item} for ${steps.pay.output.paid}"
"""
ASK = """\
name: ask
params:
  city: {type: string}
steps:
  inner:
    task:
      name: question
      params:
        city: {type: string}
      steps:
        ask:
          agent: What does ${params.city} cost?
      result: "${steps.ask.output}"
    with: {city: "${params.city}"}
result: "${steps.inner.output}"
"""


@pytest.fixture
def buy(tmp_path: Path) -> str:
    (tmp_path / "buy.yaml").write_text(BUY)
    return str(tmp_path / "buy.yaml")


class TestRun:
    def test_a_workflow_becomes_a_task_and_ends(self, store: Path, buy: str) -> None:
        options = ("--param", "what=tea", "--param", "amount=4", "--id", "tea-1", "--owner", "ana")
        result = with_tools("run", buy, *options, store=store)
        first, *_, last = result.stdout.splitlines()
        assert first.endswith("task created for ana: buy, 2 steps")
        assert last == "result  tea for 4"
        (record,) = _records(store)
        assert (record["id"], record["owner"], record["status"]) == ("tea-1", "ana", "completed")
        again = with_tools("run", buy, *options, store=store, code=2)
        assert "there is a task 'tea-1' already" in again.stderr
        assert f"flowstate task resume tea-1 --store {store} --tools trip_tools:toolbox" in again.stderr

    def test_parameters_come_from_a_file_and_the_command_line(
        self, store: Path, buy: str, tmp_path: Path
    ) -> None:
        file = tmp_path / "params.json"
        file.write_text(json.dumps({"what": "tea", "amount": 7}))
        # What is declared as a text stays one, though it's a number.
        options = ("--params-file", str(file), "--param", "what=4711", "--json")
        assert lines(with_tools("run", buy, *options, store=store))[-1]["result"] == "4711 for 7"

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ([], "buy needs the parameter 'what' (string)"),
            (["--param", "what=tea", "--param", "amount=much"], 'parameter amount: "much" is no integer'),
            (["--param", "what=tea", "--param", "colour=red"], "buy has no parameter 'colour'"),
            (["--param", "tea"], "'tea' is not NAME=VALUE"),
            (["--params-file", "/nowhere.json"], "can't read parameters from /nowhere.json"),
            (["--param", "what=tea", "--id", "No Id"], "'No Id' can't be a task id"),
        ],
    )
    def test_what_can_not_be_is_said(self, store: Path, buy: str, options: list[str], said: str) -> None:
        assert said in with_tools("run", buy, *options, store=store, code=2).stderr

    def test_a_workflow_with_a_mistake_leaves_nothing_behind(
        self, store: Path, buy: str, tmp_path: Path
    ) -> None:
        error = as_json(task("run", buy, "--param", "what=tea", "--json", store=store, code=2))["error"]
        assert error["type"] == "WorkflowError"
        assert "buy.yaml:8: step look: there is no tool 'say'" in error["message"]
        nothing = with_tools("run", str(tmp_path / "none.yaml"), store=store, code=2)
        assert "none.yaml" in nothing.stderr
        assert not store.exists()

    def test_a_failure_is_1_and_why_is_told(self, store: Path, buy: str, tools: Any) -> None:
        tools.down["pay"] = 1
        result = with_tools("run", buy, "--param", "what=tea", "--json", store=store, code=1)
        assert lines(result)[-1]["error"] == "declined: the card was declined"

    def test_an_engine_is_started_if_a_step_asks_the_agent_and_only_then(
        self, store: Path, buy: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        started: list[str] = []

        @asynccontextmanager
        async def scripted(choice: Any, console: Console) -> AsyncIterator[ScriptedEngine]:
            started.append(choice.model)
            yield ScriptedEngine([step(message="It costs a lot."), step(message="Still.")])

        monkeypatch.setattr(worker, "opened_engine", scripted)
        with_tools("run", buy, "--param", "what=tea", store=store)
        assert started == []
        (tmp_path / "ask.yaml").write_text(ASK)
        log = tmp_path / "log.jsonl"
        asks = ("run", str(tmp_path / "ask.yaml"), "--param", "city=Rome", "--model", "tiny")
        assert lines(task(*asks, "--log", str(log), "--json", store=store))[-1]["result"] == "It costs a lot."
        assert started == ["tiny"]
        kinds = [json.loads(line)["message"] for line in log.read_text().splitlines()]
        assert {"RequestStarted", "TaskStepStarted"} <= set(kinds)

    def test_no_task_is_made_if_the_engine_does_not_start(self, store: Path, tmp_path: Path) -> None:
        (tmp_path / "ask.yaml").write_text(ASK)
        url = "http://127.0.0.1:9"
        options = ("--param", "city=Rome", "--engine", "server", "--url", url)
        assert url in task("run", str(tmp_path / "ask.yaml"), *options, store=store, code=3).stderr
        with tasks(store) as manager:
            assert list(manager.tasks()) == []


# --- resume, retry, work ------------------------------------------------------------------------------------


class TestRunning:
    def test_resume_runs_a_task_to_its_end_and_prints_a_line_per_event(self, store: Path) -> None:
        add(store)
        shown = with_tools("resume", "t", store=store).stdout
        assert "hotel started" in shown
        assert "pay completed" in shown
        assert shown.splitlines()[-2].startswith("t ✓ completed  6 of 7 steps")
        assert shown.splitlines()[-1] == "result  paid 200 for Aurora"

    def test_json_is_a_line_per_event_and_the_task_last(self, store: Path) -> None:
        add(store)
        *events, last = lines(with_tools("resume", "t", "--json", store=store))
        own = [event["seq"] for event in events if event["task"] == "t"]
        assert own == list(range(2, last["seq"] + 1))
        assert {event["task"] for event in events} > {"t"}  # the sub-task's, too
        assert (last["kind"], last["status"], last["result"]) == ("task", "completed", "paid 200 for Aurora")

    def test_a_terminal_shows_a_table_instead(self, store: Path) -> None:
        add(store)
        shown = with_tools("resume", "t", store=store, FORCE_COLOR="1").stdout
        assert "hotel started" not in shown
        assert "needs train" in shown or "completed" in shown

    def test_a_failed_task_exits_with_1_and_can_be_tried_again(self, store: Path, tools: Any) -> None:
        tools.down["pay"] = 1
        add(store)
        result = with_tools("resume", "t", store=store, code=1)
        assert "declined: the card was declined" in result.stdout
        assert f"flowstate task retry t --store {store} --tools trip_tools:toolbox" in result.stderr
        tools.calls.clear()
        tools.down.clear()
        assert "paid 200" in with_tools("retry", "t", store=store).stdout
        # What was undone is done again, what had completed isn't.
        assert tools.calls == ["hotel", "pay", "tell"]

    def test_only_marking_leaves_it_to_a_worker(self, store: Path, tools: Any) -> None:
        tools.down["pay"] = 1
        add(store)
        with_tools("resume", "t", store=store, code=1)
        tools.down.clear()
        marked = as_json(task("retry", "t", "--step", "pay", "--no-run", "--json", store=store))
        assert marked["status"] == "running"
        assert "nobody works on it" in task("resume", "t", "--no-run", store=store).stdout
        done = with_tools("work", store=store)
        assert "1 completed" in done.stdout

    def test_without_its_tools_a_task_is_not_begun(self, store: Path) -> None:
        add(store)
        result = task("resume", "t", store=store, code=2)
        assert "task t calls tools that --tools doesn't name: pay, say, undo" in result.stderr
        assert as_json(task("ls", "--json", store=store))[0]["status"] == "pending"

    def test_a_paused_task_exits_with_6_and_says_how_to_go_on(self, store: Path, tools: Any) -> None:
        ask = RetryRule(kinds=("declined",), then="ask")
        flow = WorkflowSpec(name="buy", steps=(call("pay", "pay", args={"amount": 5}, retry=(ask,)),))
        tools.down["pay"] = 1
        add(store, flow)
        result = with_tools("resume", "t", store=store, code=6)
        assert "flowstate task settle t pay" in result.stderr
        assert "flowstate task retry t --step pay" in result.stderr
        settled = as_json(task("settle", "t", "pay", '{"paid": 5}', "--json", store=store))
        assert settled["status"] == "running"
        with_tools("resume", "t", store=store)
        outputs = as_json(task("show", "t", "--json", store=store))["task"]["steps"]
        assert outputs["pay"]["output"]["inline"] == {"paid": 5}
        assert tools.calls == ["pay"]

    def test_a_log_holds_every_event_with_its_numbers(self, store: Path, tmp_path: Path) -> None:
        add(store)
        log = tmp_path / "log.jsonl"
        with_tools("resume", "t", "--log", str(log), store=store)
        written = [json.loads(line) for line in log.read_text().splitlines()]
        finished = next(w for w in written if w["message"] == "TaskStepFinished" and w["step"] == "pay")
        assert finished["task"] == "t"
        assert "can't write the log" in with_tools("work", "--log", str(tmp_path), store=store, code=2).stderr


class TestWork:
    def test_it_takes_up_all_that_can_run_and_leaves_alone_what_it_cannot(self, store: Path) -> None:
        add(store, task="t1")
        add(store, task="t2")
        add(store, WorkflowSpec(name="other", steps=(call("a", "unheard_of"),)), task="t3")
        last = lines(with_tools("work", "--json", store=store, code=2))[-1]
        assert [(one["id"], one["status"]) for one in last["tasks"]] == [
            ("t1", "completed"),
            ("t2", "completed"),
        ]
        assert "unheard_of" in last["left"]["t3"]
        statuses = {record["id"]: record["status"] for record in as_json(task("ls", "--json", store=store))}
        assert statuses["t3"] == "pending"

    def test_a_failed_task_is_told_by_the_exit_code(self, store: Path, tools: Any) -> None:
        tools.down["pay"] = 1
        add(store, task="t1")
        add(store, task="t2")
        assert "2 failed" in with_tools("work", "--concurrency", "1", store=store, code=1).stdout

    def test_the_engine_is_started_when_a_task_needs_it(
        self, store: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        started: list[str] = []

        @asynccontextmanager
        async def scripted(choice: Any, console: Console) -> AsyncIterator[ScriptedEngine]:
            started.append(choice.model)
            yield ScriptedEngine(lambda _: step(message="a lot"))

        monkeypatch.setattr(worker, "opened_engine", scripted)
        (tmp_path / "ask.yaml").write_text(ASK)
        asks = load(tmp_path / "ask.yaml").spec
        for name in ("t1", "t2"):
            add(store, asks, task=name, city="Rome")
        add(store, task="t3")
        last = lines(with_tools("work", "--json", store=store))[-1]
        assert [one["status"] for one in last["tasks"]] == ["completed"] * 3
        assert started == ["qwen2.5-coder-1.5b-instruct"]

    def test_nothing_to_do(self, failed: Path) -> None:
        assert "nothing to do" in with_tools("work", store=failed).stdout


# --- stopping, dying, going on ------------------------------------------------------------------------------

SLOW = WorkflowSpec(
    name="slow",
    steps=(
        call("first", args={"wait": 1.0}),
        call("pay", "pay", needs=["first"], args={"amount": 1, "wait": 30.0}),
    ),
)


@contextmanager
def child(*arguments: str, store: Path, until: str) -> Iterator[subprocess.Popen[str]]:
    """The command line in a process of its own, once it has printed `until`."""
    code = "from flowstate_local.cli.main import main; main()"
    command = [sys.executable, "-c", code, "task", *arguments, "--store", str(store)]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        [*command, "--tools", "trip_tools:toolbox"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    ) as process:
        assert process.stdout is not None
        assert any(until in line for line in process.stdout), process.communicate()
        yield process
        process.kill()


class TestStopping:
    def test_sigterm_lets_steps_end_and_says_how_to_go_on(self, store: Path) -> None:
        add(store, SLOW)
        with child("resume", "t", store=store, until="first started") as process:
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=20)
            assert process.returncode == 130
        assert "first completed" in out
        assert "pay started" not in out
        assert f"go on: flowstate task resume t --store {store} --tools trip_tools:toolbox" in err

    def test_a_second_ctrl_c_leaves_at_once_and_nothing_is_done_twice(self, store: Path) -> None:
        add(store, SLOW)
        with child("work", store=store, until="pay started") as process:
            assert process.stderr is not None
            process.send_signal(signal.SIGINT)
            assert "stopping" in process.stderr.readline()
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=5)
            assert process.returncode == 130
        shown = as_json(task("show", "t", "--json", store=store))
        assert (shown["task"]["steps"]["pay"]["status"], shown["held_by"]) == ("running", "")
        # Whether it was paid can't be known.
        result = with_tools("resume", "t", store=store, code=6)
        assert "unknown_outcome" in task("show", "t", store=store).stdout
        assert "settle t pay" in result.stderr

    def test_a_worker_that_watches_takes_up_what_comes_and_can_be_looked_at(self, store: Path) -> None:
        add(store)
        with child("work", "--watch", store=store, until="t task completed") as process:
            add(store, SLOW, task="later")
            assert process.stdout is not None
            assert any("pay started" in line for line in process.stdout)
            shown = as_json(task("show", "later", "--json", store=store))
            assert str(process.pid) in shown["held_by"]
            assert "is being worked on" in with_tools("resume", "later", store=store, code=4).stderr
            # An operator elsewhere ends it: its worker winds it up.
            words = task("cancel", "later", store=store)
            assert f"process {process.pid} winds it up" in words.stderr
            assert any("later task failed" in line for line in process.stdout)
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=10)
            assert process.returncode == 0


# --- deciding -----------------------------------------------------------------------------------------------


class TestDeciding:
    def test_pause_and_resume(self, store: Path) -> None:
        add(store)
        paused = as_json(task("pause", "t", "--reason", "ask Ana", "--json", store=store))
        assert (paused["status"], paused["reason"]) == ("paused", "ask Ana")
        assert "nothing to do" in with_tools("work", store=store).stdout
        assert "‖ paused" in task("ls", store=store).stdout
        assert "completed" in with_tools("resume", "t", store=store).stdout

    def test_cancel_of_what_was_not_begun(self, store: Path) -> None:
        add(store)
        assert as_json(task("cancel", "t", "--json", store=store))["status"] == "failed"
        assert "is failed" in task("pause", "t", store=store, code=2).stderr

    def test_cancel_undoes_what_was_done_if_it_has_the_tools(self, store: Path, tools: Any) -> None:
        ask = RetryRule(kinds=("declined",), then="ask")
        flow = WorkflowSpec(
            name="buy",
            steps=(
                call("hotel", undo=ToolUse(tool="undo")),
                call("pay", "pay", ["hotel"], args={"amount": 5}, retry=(ask,)),
            ),
        )
        tools.down["pay"] = 1
        add(store, flow)
        with_tools("resume", "t", store=store, code=6)
        told = task("cancel", "t", store=store)
        assert "to be cancelled" in told.stdout
        assert "nobody works on it" in told.stderr
        ended = with_tools("cancel", "t", store=store)
        assert "cancelled by its operator" in ended.stdout
        assert tools.calls == ["hotel", "pay", "undo hotel"]
        assert as_json(task("ls", "--json", store=store))[0]["status"] == "failed"

    def test_a_fork_goes_another_way_and_differs_from_its_origin(self, store: Path, tools: Any) -> None:
        play(store, tools)
        events = lines(task("log", "t", "--json", store=store))
        seq = next(e["seq"] for e in events if e["kind"] == "TaskStepFinished" and e["step"] == "insurance")
        tools.calls.clear()
        last = lines(with_tools("fork", "t", "--at", str(seq), "--id", "u", "--run", "--json", store=store))[
            -1
        ]
        assert (last["id"], last["status"]) == ("u", "completed")
        assert "hotel" not in tools.calls
        changes = as_json(task("diff", "t", "u", "--json", store=store))
        assert ["id"] in [change["path"] for change in changes]
        assert "origin" in task("diff", "t", "u", store=store).stdout
        only = task("fork", "t", "--at", "3", "--id", "v", store=store)
        assert "run it: flowstate task resume v" in only.stderr
        assert "already" in task("fork", "t", "--at", "3", "--id", "v", store=store, code=2).stderr
        assert "no version 999" in task("fork", "t", "--at", "999", store=store, code=2).stderr

    def test_archiving_keeps_the_state_and_gives_up_the_log(self, store: Path, tools: Any) -> None:
        play(store, tools)
        assert as_json(task("archive", "--older-than", "1h", "--json", store=store)) == {"archived": []}
        swept = as_json(task("archive", "--older-than", "0s", "--keep-last", "1", "--json", store=store))
        assert swept["archived"] == [record["id"] for record in _records(store) if record["parent"]]
        assert as_json(task("archive", "t", "--json", store=store)) == {"archived": ["t"]}
        assert "paid 200" in task("show", "t", store=store).stdout
        assert "hotel" in task("gantt", "t", store=store).stdout
        assert "were archived" in task("log", "t", store=store).stderr
        assert "archived" in task("ls", store=store).stdout
        assert as_json(task("verify", "--json", store=store)) == {"tasks": 2, "faults": []}

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (["archive"], "give a task, or --older-than"),
            (["archive", "t", "--older-than", "1d"], "give a task, or --older-than"),
            (["archive", "--older-than", "soon"], "'soon' is no duration"),
            (["archive", "nobody"], "no task 'nobody'"),
            (["settle", "t", "pay", "1"], "task t is failed"),
            (["resume", "t", "--no-run"], "You may retry it"),
            (["retry", "t", "--step", "nothing", "--no-run"], "no step 'nothing'"),
        ],
    )
    def test_what_can_not_be_is_said(self, failed: Path, arguments: list[str], said: str) -> None:
        assert said in task(*arguments, store=failed, code=2).stderr


def _records(store: Path) -> list[Any]:
    return list(as_json(task("ls", "--json", store=store)))


# --- looking ------------------------------------------------------------------------------------------------


class TestLooking:
    def test_ls_finds_by_owner_status_step_and_time(self, failed: Path) -> None:
        ids = {record["id"] for record in as_json(task("ls", "--json", store=failed))}
        assert len(ids) == 2
        for found in (["--owner", "ana"], ["--status", "failed"], ["--step", "pay"], ["--since", "1h"]):
            assert "t" in {record["id"] for record in as_json(task("ls", *found, "--json", store=failed))}
        nothing = (["--owner", "bo"], ["--status", "paused"], ["--step", "hotel"], ["--since", "2100-01-01"])
        for missed in nothing:
            assert as_json(task("ls", *missed, "--json", store=failed)) == []
            assert "no tasks" in task("ls", *missed, store=failed).stderr
        assert len(as_json(task("ls", "--limit", "1", "--json", store=failed))) == 1

    @pytest.mark.parametrize("columns", [80, 120])
    def test_ls_shows_sub_tasks_under_theirs(self, failed: Path, columns: int) -> None:
        _, top, below = task("ls", store=failed, columns=columns).stdout.splitlines()
        assert top.startswith("t ")
        assert "✗ failed" in top
        assert "declined" in top
        assert below.startswith("  insurance-")

    def test_show_says_where_it_stands_and_what_blocks_what(self, failed: Path) -> None:
        shown = task("show", "t", store=failed, columns=80).stdout
        assert max(map(len, shown.splitlines())) <= 80
        table = {line.split()[0]: " ".join(line.split()[1:]) for line in shown.splitlines() if line.strip()}
        assert table["t"].startswith("✗ failed 4 of 7 steps, 1 undone")
        assert table["error"] == "pay: declined: the card was declined"
        assert table["hotel"].startswith("↺ undone 1")
        assert "2,0" in table["hotel"]  # big outputs are named, not printed
        assert table["train"].startswith("✓ completed 2")
        assert table["seat"].endswith("→ bus stands in")
        assert table["quote"].startswith("✓ completed")
        assert table["tell"] == "⊘ blocked blocked by pay"
        assert "⊘ tell BLOCKED by pay" in shown
        assert "✗ pay FAILED  also needs" in shown
        assert "bus completed  stands in for seat" in shown

    def test_show_goes_back_in_time(self, failed: Path) -> None:
        state = as_json(task("show", "t", "--at", "3", "--json", store=failed))["task"]
        assert (state["seq"], state["status"]) == (3, "running")
        assert "· waiting" in task("show", "t", "--at", "3", store=failed).stdout
        assert "no version 999" in task("show", "t", "--at", "999", store=failed, code=2).stderr

    def test_log_is_one_event_per_line(self, failed: Path) -> None:
        shown = task("log", "t", store=failed, columns=40).stdout.splitlines()
        events = lines(task("log", "t", "--json", store=failed))
        assert len(shown) == len(events)
        assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
        assert "train failed, try 1: unavailable: no answer → tried again in" in "\n".join(shown)
        rest = lines(task("log", "t", "--after", "4", "--json", store=failed))
        assert rest == events[4:]

    def test_why_leads_to_what_it_rests_on(self, failed: Path) -> None:
        shown = task("why", "t", "--step", "pay", store=failed).stdout
        assert shown.startswith("run pay, done: hotel, seat, insurance")
        assert "seat (try 1): unavailable" in shown
        assert "run train, try 2 after unavailable" in shown
        first, *below = as_json(task("why", "t", "--step", "pay", "--json", store=failed))
        rests_on = {one["choice"]["step"] for one in below if one["seq"] in first["rests_on"]}
        assert {"hotel", "seat", "insurance"} <= rests_on
        assert len({one["seq"] for one in (first, *below)}) == len(below) + 1
        assert "no step 'x'" in task("why", "t", "--step", "x", store=failed, code=2).stderr

    def test_diff_of_two_versions(self, failed: Path) -> None:
        assert "no difference" in task("diff", "t", "5", "5", store=failed).stdout
        shown = task("diff", "t", "2", "8", store=failed).stdout
        assert '"pending" → ' in shown
        assert "'x' is no version" in task("diff", "t", "x", "3", store=failed, code=2).stderr

    def test_replay_calls_nothing_and_tells_divergences(
        self, failed: Path, tools: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from flowstate_local.tasks import retry

        assert "0 divergences" in task("replay", "t", store=failed).stdout
        assert tools.calls == []
        monkeypatch.setattr(retry, "decide", lambda *_: retry.Decision("ask"))
        result = task("replay", "t", store=failed, code=1)
        assert "≠ this failure would now lead to ask" in result.stdout
        assert any(f["divergence"] for f in as_json(task("replay", "t", "--json", store=failed, code=1)))

    def test_verify(self, failed: Path, store: Path, tools: Any) -> None:
        assert "2 tasks checked, 0 faults" in task("verify", store=failed).stdout
        play(store, tools)
        environment = lmdb.open(str(store), max_dbs=24, lib_version=0)
        with environment.begin(write=True) as txn:
            txn.drop(environment.open_db(b"blobs", txn=txn), delete=False)
        environment.close()
        faults = as_json(task("verify", "--json", store=store, code=1))["faults"]
        assert {fault["subject"] for fault in faults} == {"task t"}
        assert "task t" in task("verify", store=store, code=1).stdout

    def test_a_store_space_or_task_that_is_not_there_is_named(self, failed: Path, tmp_path: Path) -> None:
        assert "no store at" in task("ls", store=tmp_path / "none", code=2).stderr
        assert not (tmp_path / "none").exists()
        result = task("ls", "--space", "nobody", store=failed, code=2)
        assert "Spaces there: default" in result.stderr
        error = as_json(task("show", "nobody", "--json", store=failed, code=2))["error"]
        assert (error["type"], error["message"]) == ("UnknownTask", "space 'default' has no task 'nobody'")
        assert "unknown status 'done'" in task("ls", "--status", "done", store=failed, code=2).stderr
        assert "'never' is no time" in task("ls", "--since", "never", store=failed, code=2).stderr

    def test_gantt_has_a_row_per_step_sub_tasks_under_theirs(self, failed: Path) -> None:
        rows = [row.split("│") for row in task("gantt", "t", store=failed).stdout.splitlines() if "│" in row]
        labels = [row[0].strip() for row in rows]
        assert labels.index("quote") == labels.index("insurance") + 1
        assert labels[-1] == "tell"
        notes = {row[0].strip(): row[2].strip() for row in rows}
        assert notes["tell"] == "blocked by pay"
        assert notes["pay"] == "failed: declined"
        assert notes["seat"] == "failed → bus"
        found = as_json(task("gantt", "t", "--json", store=failed))
        train = next(row for row in found["rows"] if row["step"] == "train")
        assert [bar["kind"] for bar in train["bars"]] == ["failed", "completed"]


# --- the chart, to the character ----------------------------------------------------------------------------


def made_up() -> Family:
    """A task of 10 seconds: steps in parallel, a second try, a failure, an undoing, a blocked step."""
    workflow = WorkflowSpec(
        name="trip",
        steps=(
            call("hotel", undo=ToolUse(tool="undo")),
            call("train"),
            call("pay", needs=["hotel", "train"]),
            call("tell", needs=["pay"]),
        ),
    )
    error = StepError(kind="declined", message="the card was declined")
    late = StepError(kind="timeout", message="no answer")

    def at(seconds: float, kind: type[Any], **fields: Any) -> Any:
        return kind(task="trip-1", at=1_000_000.0 + seconds, **fields)

    def starts(seconds: float, name: str, attempt: int = 1) -> Any:
        return at(
            seconds,
            TaskStepStarted,
            step=name,
            attempt=attempt,
            idempotency_key=name,
            idempotent=True,
        )

    def ends(seconds: float, name: str) -> Any:
        return at(seconds, TaskStepFinished, step=name, idempotency_key=name, output=Value())

    def fails(seconds: float, name: str, error: StepError, then: str) -> Any:
        return at(seconds, TaskStepFailed, step=name, idempotency_key=name, error=error, then=then)

    events: list[TaskEvent] = [
        at(0, TaskCreated, workflow=workflow),
        at(0, TaskStatusChanged, status="running"),
        starts(0, "hotel"),
        starts(0, "train"),
        fails(1.5, "train", late, "retry"),
        ends(3, "hotel"),
        starts(3, "train", 2),
        ends(5, "train"),
        starts(5, "pay"),
        fails(7, "pay", error, "give_up"),
        at(7, CompensationStarted, error=error, step="pay"),
        at(8, UndoStarted, step="hotel", attempt=1, idempotency_key="u"),
        at(10, UndoFinished, step="hotel"),
        at(10, TaskStatusChanged, status="failed"),
    ]
    numbered = [event.model_copy(update={"seq": seq}) for seq, event in enumerate(events, start=1)]
    return Family(fold(None, numbered), "", numbered)


CHART = """\
trip-1 ✗ failed  2 of 4 steps, 1 undone · 10.0 s · version 14
from 1970-01-12 13:46:40 UTC, 10.0 s in all

       0         2s        4s        6s        8s
      ┌┬─────────┬─────────┬─────────┬─────────┬─────────┐
hotel │███████████████                         ░░░░░░░░░░│ undone
train │▓▓▓▓▓▓×········██████████                         │ 2.0 s, 2 tries
pay   │·························▓▓▓▓▓▓▓▓▓×               │ failed: declined
tell  │··················································│ blocked by pay
      └──────────────────────────────────────────────────┘
       █ completed  ▓× failed try  ▒ running  · waiting  ░ undone
"""


def rendered(family: Family, columns: int, now: float = 1_000_010.0) -> str:
    console = Console(width=columns, file=open(os.devnull, "w"), record=True)  # noqa: SIM115
    with console.file:
        console.print(Gantt(family, now))
    return console.export_text()


def test_the_chart_fits_and_reads_without_colours() -> None:
    assert rendered(made_up(), 76) == CHART
    for columns in (40, 80, 120, 200):
        widths = {len(line) for line in rendered(made_up(), columns).splitlines() if "│" in line}
        assert max(widths) <= columns


def test_the_chart_of_what_still_runs_reaches_to_now() -> None:
    family = made_up()
    events = family.events[:9]
    family = Family(fold(None, events), "me", events)
    row = next(line for line in rendered(family, 80, 1_000_010.0).splitlines() if line.startswith("pay"))
    assert row.count("▒") > 20
    assert row.endswith("│ 5.0 s")
    left = Family(family.state, "", events)
    row = next(line for line in rendered(left, 80).splitlines() if line.startswith("pay"))
    assert row.endswith("│ no worker")


def test_what_could_not_be_undone_stands_out() -> None:
    events = made_up().events[:12]
    late = StepError(kind="timeout", message="no answer")
    failed = UndoFailed(
        task=TaskId("trip-1"), at=1_000_009.0, step=StepName("hotel"), error=late, then="give_up"
    )
    events = [*events, failed.model_copy(update={"seq": 13})]
    family = Family(fold(None, events), "", events)
    row = next(line for line in rendered(family, 80).splitlines() if line.startswith("hotel"))
    assert row.rstrip().endswith("░░×│ not undone: timeout")
    console = Console(width=100, highlight=False)
    with console.capture() as shown:
        console.print(task_view(family, 1_000_010.0))
    assert "not undone  hotel: `flowstate task retry` goes on undoing" in shown.get()
    assert "✗ hotel NOT UNDONE" in shown.get()


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.02, "20 ms"),
        (1.5, "1.5 s"),
        (200, "3 m 20 s"),
        (3600, "1 h"),
        (7500, "2 h 5 m"),
        (86_400 * 4, "4 d"),
    ],
)
def test_durations_are_said_in_the_unit_that_fits(seconds: float, said: str) -> None:
    assert seconds_text(seconds) == said


def test_characters_that_steer_a_terminal_are_not_printed() -> None:
    assert one_line("a\x1b[2Jb\nc", 20) == "a�[2Jb c"


COMMANDS = [command.name for command in task_app.registered_commands]


def test_there_are_these_commands() -> None:
    shown = runner.invoke(app, ["task", "--help"]).stdout
    assert len(COMMANDS) == 17
    assert all(f" {name} " in shown for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_has_help_with_an_example(name: str) -> None:
    shown = runner.invoke(app, ["task", name, "--help"], env={"COLUMNS": "200"}).stdout
    assert "Usage" in shown
    assert re.search(rf"Examples?: flowstate task {name}\b", shown)
