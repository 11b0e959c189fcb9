"""`flowstate bench` and `flowstate batch` from the shell, the oracle instead of a model."""

import json
import signal
import subprocess
import sys
import time
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from flowstate_local.cli.main import app

QUICK = ["--engine", "oracle", "--set", "raw_chars=200", "--limit", "2"]


def flowstate(*arguments: str, cwd: Path, code: int = 0) -> Result:
    with chdir(cwd):
        done = CliRunner().invoke(app, arguments, env={"COLUMNS": "160"})
    assert done.exit_code == code, done.output
    return done


def run(tmp_path: Path, *more: str, code: int = 0) -> list[Any]:
    arguments = ["bench", "run", "dependence", *QUICK, "--methods", "flowstate,bm25", "--json", *more]
    return [json.loads(line) for line in flowstate(*arguments, cwd=tmp_path, code=code).stdout.splitlines()]


def test_run_goes_on_reports_and_replays(tmp_path: Path) -> None:
    first = run(tmp_path)
    assert [line["scores"]["right"] for line in first[:-1]] == [1.0] * 4
    assert first[-1]["name"] == "bench dependence"
    assert first[-1]["figures"]["flowstate.right"] == {"value": 1.0, "unit": "share"}
    assert first[-1]["figures"]["bm25.prompt_tokens"]["ratio"] < 1
    again = run(tmp_path)
    assert again == first[-1:], "nothing is played twice"
    more = run(tmp_path, "--methods", "full_context", "--trials", "2")
    assert {(line["method"], line["trial"]) for line in more[:-1]} == {
        ("full_context", 0),
        ("full_context", 1),
    }
    written = json.loads(flowstate("bench", "report", "runs/dependence", "--json", cwd=tmp_path).stdout)
    assert "full_context" in (tmp_path / written["html"]).read_text()
    assert "| bm25 |" in (tmp_path / written["markdown"]).read_text()
    assert flowstate("bench", "replay", "runs/dependence", cwd=tmp_path).stdout.startswith(
        "8 same, 0 different"
    )
    shown = flowstate(
        "bench",
        "replay",
        "runs/dependence",
        "--show",
        first[0]["task"],
        "--method",
        "flowstate",
        cwd=tmp_path,
    )
    assert "REQUEST (2026-03-01)" in shown.stdout
    assert "state_focus" in shown.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "nothing"], "no preset 'nothing'"),
        (["run", "dependence", "--methods", "magic"], "unknown method 'magic'"),
        (["run", "dependence", "--set", "requests=1", "--engine", "oracle"], "requests"),
        (["run", "dependence", "--set", "colour=red", "--engine", "oracle"], "colour"),
        (["run", "dependence", "--set", "requests", "--engine", "oracle"], "is not name=value"),
        (["run", "dependence", "--engine", "abacus"], "unknown engine"),
        (["run", "bad.yaml"], "bad.yaml: suite"),
        (["report", "nowhere"], "holds no run"),
        (["replay", "nowhere"], "holds no run"),
    ],
)
def test_bad_input_is_named(arguments: list[str], said: str, tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("methods: all\n")
    done = flowstate("bench", *arguments, "--json", cwd=tmp_path, code=2)
    assert said in json.loads(done.stdout)["error"]["message"]


def test_a_preset_file_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(
        "suite: dependence\nsettings: {requests: 5, raw_chars: 200}\nmethods: none\ntrials: 2\n"
    )
    arguments = ["bench", "run", "mine.yaml", "--engine", "oracle", "--limit", "1", "--json", "--out", "here"]
    lines = flowstate(*arguments, cwd=tmp_path).stdout.splitlines()
    assert sorted(json.loads(line)["trial"] for line in lines[:-1]) == [0, 1]
    assert (tmp_path / "here" / "run.json").exists()


def test_list_names_everything(tmp_path: Path) -> None:
    told = json.loads(flowstate("bench", "list", "--json", cwd=tmp_path).stdout)
    assert {"flowstate", "without_isu", "without_psa", "full_context", "bm25", "zipact"} <= set(
        told["methods"]
    )
    assert "hops" in told["suites"]["dependence"]["settings"]
    assert "dependence-short" in told["presets"]
    text = flowstate("bench", "list", cwd=tmp_path).stdout
    assert "dependence-short" in text


def test_ctrl_c_keeps_what_is_done(tmp_path: Path) -> None:
    arguments = ["bench", "run", "dependence", "--engine", "oracle", "--out", "r", "--set", "per_cell=20"]
    child = subprocess.Popen(
        [sys.executable, "-c", "from flowstate_local.cli.main import main; main()", *arguments],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Whoever runs the tests in the background ignores SIGINT, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    episodes = tmp_path / "r" / "episodes.jsonl"
    deadline = time.monotonic() + 60
    try:
        while time.monotonic() < deadline and not (
            episodes.exists() and episodes.read_bytes().count(b"\n") > 3
        ):
            time.sleep(0.05)
        child.send_signal(signal.SIGINT)
        _, said = child.communicate(timeout=60)
    finally:
        child.kill()
        child.communicate()
    assert child.returncode == 130, said
    assert "the same command goes on" in said
    assert all(json.loads(line) for line in episodes.read_text().splitlines())


def test_batch_checks_a_file_and_names_what_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text('{"id": "a", "requests": ["x", "y"]}\n{"id": "b", "requests": ["z"]}\n')
    told = json.loads(flowstate("batch", "t.jsonl", "--out", "o", "--check", "--json", cwd=tmp_path).stdout)
    assert told == {"tasks": 2, "requests": 3, "spaces": 2, "of_this_shard": 2}
    for shard, said in (("3/2", "none of 1/2"), ("x", "is not i/n")):
        done = flowstate("batch", "t.jsonl", "--out", "o", "--shard", shard, "--check", cwd=tmp_path, code=2)
        assert said in done.stderr
    (tmp_path / "t.jsonl").write_text('{"id": "a"}\n')
    assert "line 1: requests" in flowstate("batch", "t.jsonl", "--out", "o", cwd=tmp_path, code=2).stderr
    assert not (tmp_path / "o").exists(), "nothing was run"


def test_the_doctor_says_what_is_missing_and_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TAU2_DATA_DIR", raising=False)
    checks = {
        c["name"]: c for c in json.loads(flowstate("bench", "doctor", "--json", cwd=tmp_path, code=1).stdout)
    }
    assert checks["dependence"]["level"] == "ok"
    assert checks["tau3 data"]["level"] == "fault"
    assert "TAU2_DATA_DIR" in checks["tau3 data"]["remedy"]


def test_what_needs_no_judge_says_so(tmp_path: Path) -> None:
    run(tmp_path)
    arguments = [
        "bench",
        "judge",
        "runs/dependence",
        "--url",
        "http://localhost:1/v1",
        "--model",
        "j",
        "--json",
    ]
    assert "judge_url" in flowstate(*arguments, cwd=tmp_path, code=2).stdout
