"""The command line on a memory that the scripted demo made: what it prints, writes and returns."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from flowstate_local.cli.main import app

runner = CliRunner()
SPACE = "demo-0-00"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with the paper's case in it, played by the script."""
    folder = tmp_path_factory.mktemp("memory")
    played = runner.invoke(app, ["demo", "--engine", "scripted", "--store", str(folder), "--json"])
    assert played.exit_code == 0, played.output
    return folder


def call(*arguments: str, code: int = 0) -> Result:
    result = runner.invoke(app, arguments, env={"COLUMNS": "160"})
    assert result.exit_code == code, result.output
    return result


def memory(store: Path, *arguments: str, space: str = SPACE, code: int = 0) -> Result:
    return call("memory", *arguments, "--space", space, "--store", str(store), code=code)


def as_json(result: Result) -> Any:
    return json.loads(result.stdout)


def test_the_story_needs_its_first_request_at_its_end(store: Path) -> None:
    nodes = {node["id"]: node for node in as_json(memory(store, "ls", "--json"))}
    decision = next(n for n in nodes.values() if n["request"] == "r6" and n["type"] == "judgement")
    old = next(ref["target"] for ref in decision["refs"] if ref["relation"] == "supersedes")
    assert nodes[old]["request"] == "r1"
    assert "Keep Hotel Aurora" in decision["summary"]


def test_nodes_are_listed_by_request(store: Path) -> None:
    shown = memory(store, "ls").stdout
    assert shown.index("r1") < shown.index("n1") < shown.index("r6")
    assert "supports n1" in shown


def test_the_past_can_be_listed(store: Path) -> None:
    timeline = as_json(memory(store, "timeline", "--json"))
    first_end = next(e["seq"] for e in timeline if e["kind"] == "RequestFinished")
    then = as_json(memory(store, "ls", "--as-of", str(first_end), "--json"))
    assert [node["id"] for node in then] == ["n1", "n2"]
    assert as_json(memory(store, "ls", "--as-of", "0", "--json")) == []


def test_a_node_and_its_evidence_are_shown(store: Path) -> None:
    assert "judgement" in memory(store, "show", "n2").stdout
    assert as_json(memory(store, "show", "n2", "--json"))["refs"] == [
        {"relation": "supports", "target": "n1"}
    ]
    raw = memory(store, "evidence", "t1").stdout
    assert raw.startswith("Booked Hotel Aurora")
    assert as_json(memory(store, "evidence", "t1", "--json"))["text"] == raw


def test_the_graph_reaches_from_the_decision_to_the_evidence(store: Path) -> None:
    edges = as_json(memory(store, "graph", "--json"))
    assert {"source": "n2", "relation": "supports", "target": "n1"} in edges
    assert {"source": "n1", "relation": "evidence", "target": "t1"} in edges
    drawn = memory(store, "graph", "n2").stdout
    assert drawn.index("n2") < drawn.index("supports n1") < drawn.index("evidence t1")
    assert memory(store, "graph", "--dot").stdout.startswith("digraph memory {")


def test_the_timeline_counts_without_gaps(store: Path) -> None:
    events = as_json(memory(store, "timeline", "--json"))
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    only = as_json(memory(store, "timeline", "--request", "r3", "--json"))
    assert {event["request"] for event in only} == {"r3"}
    assert "RequestFinished" in memory(store, "timeline").stdout


def test_verify_finds_nothing_wrong(store: Path) -> None:
    whole = call("memory", "verify", "--store", str(store))
    assert "1 space checked, 0 faults" in whole.stdout
    assert as_json(memory(store, "verify", "--json")) == {"spaces": [SPACE], "faults": []}


def test_verify_finds_a_flipped_byte(store: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    # In all copies: old pages keep theirs.
    data = (store / "data.mdb").read_bytes().replace(b"find_trains", b"find_trainz")
    (broken / "data.mdb").write_bytes(data)
    result = memory(broken, "verify", "--json", code=1)
    assert as_json(result)["faults"]


def test_an_export_holds_everything(store: Path) -> None:
    lines = [json.loads(line) for line in memory(store, "export").stdout.splitlines()]
    assert lines[0]["kind"] == "space"
    counts = {kind: sum(line["kind"] == kind for line in lines) for kind in ("request", "node", "event")}
    assert counts["request"] == 6
    assert counts["node"] == len(as_json(memory(store, "ls", "--json")))
    assert counts["event"] == lines[0]["seq"]
    terms = next(line for line in lines if line["kind"] == "evidence" and line["id"] == "t1")
    assert base64.b64decode(terms["base64"]).decode() == memory(store, "evidence", "t1").stdout


def test_spaces_are_counted(store: Path) -> None:
    (space,) = as_json(call("memory", "spaces", "--store", str(store), "--json"))
    assert (space["space"], space["requests"], space["open_request"]) == (SPACE, 6, None)
    assert SPACE in call("memory", "spaces", "--store", str(store)).stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["show", "n99"], "no node 'n99'"),
        (["evidence", "t99"], "no raw result 't99'"),
        (["graph", "n99"], "no node 'n99'"),
    ],
)
def test_what_is_not_there_is_named(store: Path, arguments: list[str], said: str) -> None:
    assert said in memory(store, *arguments, code=2).stderr


def test_a_space_or_store_that_is_not_there_is_named(store: Path, tmp_path: Path) -> None:
    result = memory(store, "ls", space="nobody", code=2)
    assert "no space 'nobody'" in result.stderr
    assert SPACE in result.stderr
    error = as_json(memory(tmp_path / "none", "ls", "--json", code=2))["error"]
    assert (error["type"], error["retryable"]) == ("UsageError", False)
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("space", ["a/b", "a\0b", "x" * 600])
def test_a_bad_name_of_a_space_is_refused(store: Path, space: str) -> None:
    assert "space" in memory(store, "ls", space=space, code=2).stderr


class TestDemo:
    def test_every_variant_is_right_without_a_model_and_it_says_so(self) -> None:
        lines = call("demo", "--engine", "scripted", "--variants", "4", "--json").stdout.splitlines()
        *plays, result = [json.loads(line) for line in lines]
        assert sorted(play["variant"] for play in plays) == [0, 1, 2, 3]
        assert all(play["verdict"]["right"] for play in plays)
        assert (result["name"], result["model"]) == ("demo", "none: a script plays the model")
        values = {name: figure["value"] for name, figure in result["figures"].items()}
        assert (values["variants"], values["right"], values["opened_evidence"]) == (4, 4, 4)
        assert (values["unparsable"], values["cut_off"]) == (0, 0)
        assert values["cached_share_later_steps"] > 0.85

    def test_one_play_is_shown_to_its_verdict(self) -> None:
        shown = call("demo", "--engine", "scripted").stdout
        assert "no model runs" in shown
        assert "which is right" in shown
        assert "cached in steps 2.." in shown

    def test_a_kept_play_is_not_mixed_with_another(self, store: Path) -> None:
        again = call("demo", "--engine", "scripted", "--store", str(store), code=2)
        assert "was played before" in again.stderr


class TestRun:
    def test_it_needs_exactly_one_thing_to_do(self, tmp_path: Path) -> None:
        for arguments in ([], ["Go", "--resume"], ["--resume", "--abandon"]):
            result = call("run", *arguments, "--store", str(tmp_path), code=2)
            assert "--resume" in result.stderr

    def test_an_unknown_model_is_said_at_once(self, tmp_path: Path) -> None:
        result = call(
            "run", "Go", "--model", "no-such-model", "--store", str(tmp_path / "s"), "--json", code=2
        )
        assert "no-such-model" in as_json(result)["error"]["message"]

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (["--engine", "nothing"], "unknown engine 'nothing'"),
            (["--profile", "nothing"], "unknown profile 'nothing'"),
            (["--engine", "server"], "--url"),
        ],
    )
    def test_a_bad_choice_is_named(self, tmp_path: Path, arguments: list[str], said: str) -> None:
        assert said in call("run", "Go", *arguments, "--store", str(tmp_path), code=2).stderr

    def test_a_server_that_is_not_there_is_named(self, tmp_path: Path) -> None:
        url = "http://127.0.0.1:9"
        result = call("run", "Go", "--engine", "server", "--url", url, "--store", str(tmp_path), code=3)
        assert url in result.stderr


def test_doctor_says_what_is_here_and_what_to_mend(tmp_path: Path) -> None:
    result = runner.invoke(app, ["doctor", "--store", str(tmp_path), "--json"])
    checks = {check["name"]: check for check in json.loads(result.stdout)}
    assert {"python", "engine vllm", "token masks", "threads", "KV space"} <= set(checks)
    assert all(check["remedy"] for check in checks.values() if check["level"] == "fault")
    assert result.exit_code == int(any(check["level"] == "fault" for check in checks.values()))


@pytest.mark.parametrize(
    "command", [[], ["demo"], ["run"], ["chat"], ["doctor"], ["memory"], ["memory", "graph"], ["model"]]
)
def test_help_is_there(command: list[str]) -> None:
    assert "Usage" in call(*command, "--help").stdout


def test_an_export_comes_back_as_another_space(store: Path, tmp_path: Path) -> None:
    exported = memory(store, "export").stdout
    file, other = tmp_path / "space.jsonl", tmp_path / "other"
    file.write_text(exported)
    done = as_json(memory(other, "import", str(file), "--json", space="copy"))
    assert done["requests"] == 6
    assert as_json(memory(other, "ls", "--json", space="copy")) == as_json(memory(store, "ls", "--json"))
    assert "0 faults" in call("memory", "verify", "--store", str(other)).stdout
    assert "already" in memory(other, "import", str(file), space="copy", code=2).stderr
    file.write_text(exported[:5_000])
    assert "line" in memory(other, "import", str(file), space="cut", code=2).stderr
    assert "can't read" in memory(other, "import", str(tmp_path / "none"), space="x", code=2).stderr


def test_what_is_erased_is_in_no_listing(store: Path, tmp_path: Path) -> None:
    file, other = tmp_path / "space.jsonl", tmp_path / "other"
    file.write_text(memory(store, "export").stdout)
    memory(other, "import", str(file), space="copy")
    assert "Hotel Aurora" in memory(other, "export", space="copy").stdout
    refused = memory(other, "erase", space="copy", code=2)
    assert "name nodes, requests, or --all" in refused.stderr
    memory(other, "erase", "n1", space="copy", code=1)  # nobody said yes
    done = as_json(memory(other, "erase", "n1", "--yes", "--json", space="copy"))
    assert done["nodes"] == ["n1"]
    assert "[erased]" in memory(other, "show", "n1", space="copy").stdout
    requests = [flag for n in range(1, 7) for flag in ("--request", f"r{n}")]
    memory(other, "erase", *requests, "--yes", space="copy")
    assert "Aurora" not in memory(other, "export", space="copy").stdout
    assert "0 faults" in call("memory", "verify", "--store", str(other)).stdout
    memory(other, "erase", "--all", "--yes", space="copy")
    assert as_json(call("memory", "spaces", "--store", str(other), "--json")) == []
